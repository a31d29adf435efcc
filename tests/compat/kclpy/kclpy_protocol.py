"""A table of conversations of a MultiLangDaemon with one child, and what came out of each: run as a file, with a Python
that has the real amazon_kclpy, it writes protocol_golden.json anew.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kclpy_programs import PROGRAMS

GOLDEN = Path(__file__).parent / "protocol_golden.json"


def record(payload, number=1000, sub=0):
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return {
        "action": "record",
        "data": base64.b64encode(data).decode(),
        "partitionKey": f"key{number}",
        "sequenceNumber": str(number),
        "subSequenceNumber": sub,
        "approximateArrivalTimestamp": 1_700_000_000_123,
    }


def batch(*payloads, first=1000):
    records = [record(payload, first + place) for place, payload in enumerate(payloads)]
    return {"action": "processRecords", "records": records, "millisBehindLatest": 7}


def answer(error=None):
    return {"action": "checkpoint", "sequenceNumber": None, "subSequenceNumber": None, "error": error}


INITIALIZE = {
    "action": "initialize",
    "shardId": "shardId-000000000001",
    "sequenceNumber": "TRIM_HORIZON",
    "subSequenceNumber": 0,
}
LOST, ENDED, ASKED = ({"action": name} for name in ("leaseLost", "shardEnded", "shutdownRequested"))

CONVERSATIONS = {
    "nothing": [],
    "initialize": [INITIALIZE],
    "fresh shard": [{**INITIALIZE, "sequenceNumber": None, "subSequenceNumber": None}],
    "batches, then the lease is lost": [
        INITIALIZE,
        batch(["note"], ["note"]),
        batch(["note"], first=2000),
        LOST,
    ],
    "the end of the shard": [INITIALIZE, batch(["note"]), ENDED, answer()],
    "the end of the shard is refused": [INITIALIZE, ENDED, answer("ShutdownException")],
    "the worker stops": [INITIALIZE, ASKED, answer(), LOST],
    "empty batch": [INITIALIZE, batch()],
    "checkpoint()": [INITIALIZE, batch(["checkpoint"]), answer()],
    "checkpoint(seq)": [INITIALIZE, batch(["checkpoint", "mine"]), answer()],
    "checkpoint(seq, sub)": [INITIALIZE, batch(["checkpoint", "mine", 3]), answer()],
    "checkpoint(None, sub)": [INITIALIZE, batch(["checkpoint", None, 3]), answer()],
    "checkpoint(number)": [INITIALIZE, batch(["checkpoint", 1000]), answer()],
    "checkpoint(rubbish)": [INITIALIZE, batch(["checkpoint", "rubbish"]), answer("IllegalArgumentException")],
    "throttled": [INITIALIZE, batch(["checkpoint"]), answer("ThrottlingException")],
    "an answer without the word error": [
        INITIALIZE,
        batch(["checkpoint"]),
        {"action": "checkpoint", "sequenceNumber": "5", "subSequenceNumber": 0},
    ],
    "another message instead of an answer": [INITIALIZE, batch(["checkpoint"]), LOST],
    "raises": [INITIALIZE, batch(["raise"], ["note"]), batch(["note"], first=2000), LOST],
    "exits with 3": [INITIALIZE, batch(["exit", 3]), LOST],
    "exits with nothing": [INITIALIZE, batch(["exit"]), LOST],
    "prints": [INITIALIZE, batch(["print", "hello"], ["print", '{"action":"status"}']), LOST],
    "unknown action": [INITIALIZE, {"action": "dance"}, LOST],
    "no action": [INITIALIZE, {"reason": "none"}, LOST],
    "no JSON": [INITIALIZE, "this is not JSON", LOST],
    "JSON, but no object": [INITIALIZE, "7", LOST],
    "a field is missing": [{"action": "initialize", "shardId": "shardId-000000000001"}],
}
OF_EVERY_VERSION = (
    "batches, then the lease is lost",
    "the end of the shard",
    "the end of the shard is refused",
    "the worker stops",
    "checkpoint(seq, sub)",
    "raises",
)
CASES = {
    **{
        f"{version}: {name}": (version, CONVERSATIONS[name])
        for version in ("v1", "v2")
        for name in OF_EVERY_VERSION
    },
    **{f"v3: {name}": ("v3", lines) for name, lines in CONVERSATIONS.items()},
    "README: batches, then the lease is lost": ("README", CONVERSATIONS["batches, then the lease is lost"]),
    "stdout moved: prints": ("stdout moved", CONVERSATIONS["prints"]),
}
"""name: (program, lines)"""


def converse(python, program, lines, environment=()):
    """What the child wrote to its standard output, the notes it took, its exit code and whether it wrote to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        file, notes = Path(folder, "program.py"), Path(folder, "notes")
        file.write_text(program)
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        done = subprocess.run(
            [python, str(file), str(notes)],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, **dict(environment)},
        )
        return {
            "wrote": done.stdout,
            "noted": [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else [],
            "exit": done.returncode,
            "complained": bool(done.stderr),
        }


if __name__ == "__main__":
    golden = {
        name: converse(sys.executable, PROGRAMS[program], lines) for name, (program, lines) in CASES.items()
    }
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
