"""Rows of every bad kind, and those that KCL 3.5 keeps beside the leases."""

import json
from pathlib import Path

_FIXTURES = Path(__file__).parents[1] / "fixtures"
_N0 = {"N": "0"}
_LEASE = {
    "leaseCounter": {"N": "5"},
    "ownerSwitchesSinceCheckpoint": _N0,
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": _N0,
}


def _without(name):
    return {key: value for key, value in _LEASE.items() if key != name}


UNREADABLE = {
    "no counter": _without("leaseCounter"),
    "no switches": _without("ownerSwitchesSinceCheckpoint"),
    "no checkpoint": _without("checkpoint"),
    "a counter of text": {**_LEASE, "leaseCounter": {"S": "5"}},
    "a counter of 38 digits": {**_LEASE, "leaseCounter": {"N": "9" * 38}},
    "a negative counter": {**_LEASE, "leaseCounter": {"N": "-1"}},
    "a counter with a fraction": {**_LEASE, "leaseCounter": {"N": "1.5"}},
    "an owner of another type": {**_LEASE, "leaseOwner": {"N": "7"}},
    "an owner of 300 kB": {**_LEASE, "leaseOwner": {"S": "w" * 300_000}},
    "hash keys of words": {**_LEASE, "startingHashKey": {"S": "zero"}, "endingHashKey": {"S": "all"}},
    "hash keys beyond all": {**_LEASE, "startingHashKey": _N0, "endingHashKey": {"S": "9" * 60}},
    "hash keys the wrong way round": {**_LEASE, "startingHashKey": {"S": "9"}, "endingHashKey": {"S": "3"}},
    "a checkpoint of 100 kB": {**_LEASE, "checkpoint": {"S": "4" * 100_000}},
    "a checkpoint of words": {**_LEASE, "checkpoint": {"S": "here"}},
    "parents that are text": {**_LEASE, "parentShardId": {"S": "shardId-000000000000"}},
    "forty parents": {**_LEASE, "parentShardId": {"SS": [f"shardId-{number}" for number in range(40)]}},
    "a hand-off to a number": {**_LEASE, "checkpointOwner": {"N": "1"}},
    "a pending state of text": {**_LEASE, "pendingCheckpoint": {"S": "1"}, "pendingCheckpointState": {"S": "x"}},
    "a sub-sequence number of text": {**_LEASE, "checkpointSubSequenceNumber": {"S": "0"}},
}  # fmt: skip
"""Each is reported once and left as it is, whatever the shard."""

FOREIGN = {
    "metrics": {
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": "1"},
        "sts": {"M": {"C": {"L": [_N0]}}},
    },
    "TableMigration3.5": {"entityType": {"S": "TABLE_MIGRATION"}, "tm": {"S": "TABLE_MIGRATION_STATUS_INIT"}},
    "Leader": {"entityType": {"S": "LEADER"}, "ownerName": {"S": "j9"}, "leaseDuration": {"S": "120000"}},
    "123456789012:a:1790000000:": {
        "entityType": {"S": "STREAM"},
        "streamId": {"S": "123456789012:a:1790000000"},
    },
    "later": {**_LEASE, "entityType": {"S": "SOMETHING_OF_KCL_4"}},
    "123456789012:a:1790000000:shardId-000000000000": {
        **_LEASE,
        "streamName": {"S": "123456789012:a:1790000000"},
    },
}

HOSTILE_KEYS = (
    "shardId-\x1b]0;pwned\x07\x1b[2J",
    "shardId-a\nERROR forged line",
    "shardId-b\r\x85\u2028\x9b31m\u202e",
    "shardId.of.a.hierarchy",
    "shardId-" + "\x07" * 200,
)
"""Keys that drive a terminal or forge a line where they are written as they are."""


def rows_of_hostile_keys():
    """By key: leases that can be read, and that nobody owns."""
    return {key: {"leaseKey": {"S": key}, **_LEASE} for key in HOSTILE_KEYS}


def _cut(value, longest):
    return value[:longest] if isinstance(value, str) else value


def _recorded():
    """The rows of a recorded 3.5.1 fleet that are no leases: `Migration3.0`, and the metrics of its worker."""
    text = (_FIXTURES / "java-3.5.1-compatible-with-2x.jsonl").read_text("utf-8")
    items = [json.loads(line)["item"] for line in text.splitlines()]
    return {
        item["leaseKey"]["S"]: {name: value for name, value in item.items() if name != "leaseKey"}
        for item in items
        if item.get("entityType", {}).get("S", "LEASE") != "LEASE"
    }


def rows(longest=400_000):
    """(unreadable rows, foreign rows) by key. The first unreadable one is that of a shard of the stream.

    longest: text is cut to so many characters.
    """
    unreadable = {}
    for number, given in enumerate(UNREADABLE.values()):
        row = {
            name: {kind: _cut(value, longest) for kind, value in each.items()} for name, each in given.items()
        }
        key = "shardId-000000000002" if number == 0 else f"shardId-00000000090{number:02}"
        unreadable[key] = {"leaseKey": {"S": key}, **row}
    foreign = {key: {"leaseKey": {"S": key}, **row} for key, row in {**FOREIGN, **_recorded()}.items()}
    return unreadable, foreign
