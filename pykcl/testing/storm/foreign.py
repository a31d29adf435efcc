"""What does not belong to the application: rows of others in its table, and tables of others under its name."""

from __future__ import annotations

import random
from typing import Any

from pykcl.errors import NativeFleet, SetupError
from pykcl.testing.storm.fleet import StormFleet
from pykcl.testing.storm.promises import Promise
from pykcl.testing.storm.world import TABLE, World

_N0 = {"N": "0"}
_ELSEWHERE = "arn:aws:kinesis:us-east-1:123456789012:stream/elsewhere"
_MIGRATION = "Migration3.0"
_NATIVE = {
    "leaseKey": {"S": _MIGRATION},
    "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
    "cv": {"S": "CLIENT_VERSION_3X"},
}
_MULTI_STREAM = "123456789012:other:1790000000000:shardId-000000000000"
_ROWS: dict[str, dict[str, Any]] = {
    "worker-metrics": {"entityType": {"S": "WORKER_METRIC_STATS"}, "sts": {"M": {"C": {"L": [_N0]}}}},
    "Leader": {"entityType": {"S": "LEADER"}, "leaderName": {"S": "x"}, "leaseDuration": {"N": "300000"}},
    _MIGRATION: {"entityType": {"S": "CLIENT_VERSION_MIGRATION"}, "cv": {"S": "CLIENT_VERSION_2X"}, "h": {"L": []}},
    _MULTI_STREAM: {
        "leaseCounter": {"N": "7"}, "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": _N0,
        "ownerSwitchesSinceCheckpoint": _N0, "streamName": {"S": "123456789012:other:1790000000000"},
    },
    "junk": {"anything": {"B": b"\x00\xff"}, "more": {"SS": ["a", "b"]}, "null": {"NULL": True}},
    "shardId-999999999990": {"leaseCounter": {"S": "not a number"}, "checkpoint": {"S": "TRIM_HORIZON"}},
    "shardId-999999999991": {"leaseCounter": {"N": "3"}, "checkpoint": {"S": "9" * 500}},
    "shardId-999999999992": {"leaseCounter": {"N": "-5"}, "checkpoint": {"N": "12"}, "leaseOwner": {"S": "z" * 2000}},
}  # fmt: skip


class Foreigners:
    """F13.foreign and F15: pykcl reads past all of it, and touches none of it."""

    def __init__(self, world: World, fleet: StormFleet) -> None:
        self._world, self._fleet = world, fleet
        self._put: dict[str, dict[str, Any]] = {}
        self._tables = 0

    def put_rows(self, rng: random.Random) -> bool:
        """A row of each of a few kinds; or, in a lease of ours, an attribute we do not know."""
        if TABLE not in self._world.dynamodb.tables or self._world.faults.has("F20"):
            # Java 2.x cannot read a table with such rows in it; its own KCL 3.5 peers forbid that combination.
            return False
        leases = self._world.rows()
        if leases and rng.random() < 0.5:
            key = rng.choice(sorted(leases))
            note = {"throughputKBps": {"N": str(rng.randint(1, 99))}}
            self._world.dynamodb.tables[TABLE].rows[key] = {**leases[key], **note}
            return True
        key = rng.choice(sorted(_ROWS))
        # A table of such leases alone is that of another application, and refused.
        if key in self._put or (key == _MULTI_STREAM and not leases):
            return False
        if key == "Leader" and _MIGRATION not in self._put:
            # Left over in a fleet that went back to 2.x. A leader of whom nobody knows better is a reason to refuse.
            self._put_row(_MIGRATION)
        self._put_row(key)
        return True

    def _put_row(self, key: str) -> None:
        self._put[key] = {"leaseKey": {"S": key}, **_ROWS[key]}
        self._world.dynamodb.put_raw(TABLE, self._put[key])

    def judge(self) -> None:
        """FOREIGN_KEPT, once more at the end: the rows are as they were put."""
        rows = self._world.dynamodb.rows(TABLE)
        for key, row in sorted(self._put.items()):
            self._world.verdict.expect(rows.get(key) == row, Promise.FOREIGN_KEPT, f"the row {key} changed")

    def visit_another_table(self, rng: random.Random) -> bool:
        """A worker is configured with the name of a table that is none of its own: it says so and changes nothing."""
        self._tables += 1
        table = f"other-{self._tables}"
        attribute = "leaseKey" if rng.random() < 0.5 else "id"
        self._world.dynamodb.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": attribute, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": attribute, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        row: dict[str, Any] = {attribute: {"S": "shardId-000000000000"}}
        if attribute == "leaseKey":
            row |= {
                "leaseCounter": {"N": "4"},
                "checkpoint": {"S": "LATEST"},
                "checkpointSubSequenceNumber": _N0,
            }
            row |= {"ownerSwitchesSinceCheckpoint": _N0, "pykcl": {"M": {"streamArn": {"S": _ELSEWHERE}}}}
            if self._tables % 2 == 0:
                row = _NATIVE
        self._world.dynamodb.put_raw(table, row)
        self._world.simulation.spawn(f"visitor-{table}", f"w0{table}", lambda: self._visit(table, row))
        return True

    def _visit(self, table: str, row: dict[str, Any]) -> None:
        name = f"w0{table}"
        worker = self._world.worker(name, table=table, stop=lambda: False)
        refused = False
        try:
            worker.start()
        except NativeFleet:
            refused = row is _NATIVE
        except SetupError:
            refused = row is not _NATIVE
        worker.stop()
        found = self._world.dynamodb.rows(table)
        self._world.beliefs.forget(name)
        kept = list(found.values()) == [row]
        self._world.verdict.expect(
            refused and kept, Promise.FOREIGN_KEPT, f"a worker on {table}: refused {refused}, row kept {kept}"
        )
