"""How a reader talks with the benchmark: a line comes in, a line goes out. Uses the standard library alone, because one
reader runs in an environment of its own.
"""

import json
import sys


def answer_counts(count, on_word=None):
    """Until the input ends. count: () -> (user records, bytes). on_word: hears of words other than "count"."""
    for line in sys.stdin:
        word = line.strip()
        if word != "count" and on_word is not None:
            on_word(word)
        records, size = count()
        print(json.dumps({"records": records, "bytes": size}), flush=True)
