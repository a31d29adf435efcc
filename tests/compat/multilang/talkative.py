"""A child with many ways to behave: `python -I -S talkative.py BEHAVIOUR JOURNAL [WORD…]`.

It writes what it is told, as JSON lines, into JOURNAL. Written by hand down to the wire: no library of ours or others.
"""

import base64
import json
import os
import signal
import sys
import time

behaviour, journal, *words = sys.argv[1:]
wire_in, wire_out = sys.stdin, sys.stdout


def note(**what):
    with open(journal, "a") as file:
        file.write(json.dumps({"pid": os.getpid(), **what}) + "\n")


def say(message):
    wire_out.write(json.dumps(message) + "\n")
    wire_out.flush()


def raw(text):
    os.write(1, text if isinstance(text, bytes) else text.encode())


def checkpoint(sequence=None, sub=None):
    say({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub})
    answer = json.loads(wire_in.readline())
    note(checkpoint=answer)
    return answer["error"]


def done(message):
    say({"action": "status", "responseFor": message["action"]})


def payloads(message):
    return [base64.b64decode(record["data"]).decode() for record in message["records"]]


def once(name):
    """True for the first process that asks, in all that share the journal."""
    try:
        os.close(os.open(f"{journal}.{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def messages():
    while line := wire_in.readline():
        message = json.loads(line)
        note(told=message["action"], message={k: v for k, v in message.items() if k != "records"})
        yield message


def good():
    for message in messages():
        if message["action"] == "processRecords":
            note(given=payloads(message))
            checkpoint()
        elif message["action"] == "shardEnded":
            checkpoint()
        done(message)
    note(end="of input")


def hoarder():
    """Works on what it holds, and says so, with every third batch only. Word "dies": the first one that comes to its
    third batch is killed in it, with two in its hands."""
    held = []
    for message in messages():
        if message["action"] == "processRecords":
            given = payloads(message)
            note(given=given)
            if words == ["dies"] and len(held) == 2 and once("died"):
                os.kill(os.getpid(), signal.SIGKILL)
            held.append((given, message["records"][-1]["sequenceNumber"]))
        if held and (len(held) == 3 or message["action"] in ("shardEnded", "shutdownRequested")):
            note(finished=[payload for batch, _ in held for payload in batch])
            checkpoint(held[-1][1])
            held = []
        if message["action"] == "shardEnded":
            checkpoint()
        done(message)


def scripted():
    """words: what to do, as Python, with `message` at hand, after each action that is in it; then the status."""
    for message in messages():
        exec(words[0], globals(), {"message": message})
        done(message)


def without_kclpy():
    import amazon_kclpy  # noqa: F401 - not there with -I -S


def without_line_ends():
    """Prints on standard error as the sample program of amazon_kclpy does, and goes on."""
    for message in messages():
        os.write(2, b"no line end: \xc3\xa4 " + b"z" * 3000 + message["action"].encode())
        done(message)


def complains():
    """Says one line on each of its outputs, and exits."""
    raw("printed\n")
    os.write(2, b"complained\n")
    note(complained=True)


def mute():
    """Reads, and never answers what words[0] names."""
    for message in messages():
        if message["action"] != words[0]:
            done(message)


def stubborn():
    """Will not go: neither for the end of its input, nor for SIGTERM."""
    signal.signal(signal.SIGTERM, lambda number, frame: note(signal=number))
    signal.signal(signal.SIGINT, lambda number, frame: note(signal=number))
    for message in messages():
        done(message)
    note(end="of input")
    while True:
        time.sleep(60)


def hung():
    """Works on its first batch for a minute, and will not go for SIGTERM meanwhile."""
    signal.signal(signal.SIGTERM, lambda number, frame: note(signal=number))
    for message in messages():
        if message["action"] == "processRecords":
            time.sleep(60)
        done(message)


def polite():
    """Notes each signal, and goes by the end of its input."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: note(signal=number))
    note(group=os.getpgid(0), session=os.getsid(0))
    good()


def exits():
    sys.exit(int(words[0]))


globals()[behaviour]()
