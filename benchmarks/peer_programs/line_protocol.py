"""How a reader talks with the benchmark: a line comes in, a line goes out. Uses the standard library alone, because some
readers run in environments of their own.
"""

import json
import sys
import threading


def answer_counts(count, on_word=None):
    """Until the input ends. count: () -> (user records, bytes). on_word: hears of words other than "count", and may
    return more for the answer.
    """
    for line in sys.stdin:
        word, more = line.strip(), None
        if word != "count" and on_word is not None:
            more = on_word(word)
        records, size = count()
        print(json.dumps({"records": records, "bytes": size, **(more or {})}), flush=True)


def answer_counts_beside(count, on_word=None):
    """The same in a thread, for a program whose main thread runs its worker."""
    threading.Thread(target=answer_counts, args=(count, on_word), daemon=True).start()
