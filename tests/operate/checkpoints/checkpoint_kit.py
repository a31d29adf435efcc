"""An operator beside a simulated fleet: looks, plans and writes with what the commands use."""

from __future__ import annotations

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.errors import PyKclError
from pykcl.local.stream import LocalKinesis
from pykcl.model.kpl import aggregate
from pykcl.operate.aws.lease_table import OwnTableNames, TableScanner
from pykcl.operate.checkpoints.apply import Audit, apply_plan
from pykcl.operate.checkpoints.backup import backup_lines, plan_restore, read_backup
from pykcl.operate.checkpoints.plan import Destination
from pykcl.operate.checkpoints.reset import plan_reset_to, read_situation
from pykcl.operate.idle import wait_until_idle
from pykcl.testing.fleet import STREAM, TABLE, Fleet
from pykcl.testing.memory.stream import MemoryStream
from pykcl.testing.runtime import EPOCH_MILLIS
from tests.java_peer.peer import java_peer

FAILOVER = 10.0
JAVA = {
    "failover": FAILOVER,
    "parent_poll": 1.0,
    "startup_wait": 5.0,
    "auditor_interval": 20.0,
    "election_interval": 30.0,
    "cleanup_interval": 10.0,
}
JAVA_WORKER = object()
"""Stands in `Fleet.workers` for one of Java."""


class DiedError(Exception):
    """The tool was killed."""


class Operator:
    """dies_before: the tool dies before its write of that number, counted from 0."""

    def __init__(self, fleet: Fleet, name: str = "operator") -> None:
        self.fleet = fleet
        self.runtime = fleet.simulation.runtime(name)
        self.table = DynamoDBLeaseTable(fleet.dynamodb, TABLE, self.runtime)
        own = OwnTableNames.of(TABLE)
        self.scan = TableScanner(fleet.dynamodb, TABLE, self.runtime, own).scan
        self.stream = MemoryStream(fleet.kinesis, STREAM, self.runtime, fleet.simulation.switch)
        self.reads = 0

    def now_millis(self) -> int:
        return EPOCH_MILLIS + int(self.fleet.simulation.now * 1000)

    def situation(self):
        return read_situation(self.table, self.stream)

    def plan(self, destination: Destination, keys=None):
        def read() -> None:
            self.reads += 1

        return plan_reset_to(self.situation(), destination, keys, self.stream, self.runtime, read)

    def plan_to(self, millis: int, keys=None):
        return self.plan(Destination("time", at_millis=millis), keys)

    def still(self, **options):
        return wait_until_idle(self.scan, self.runtime, failover=FAILOVER, **options)

    def backup(self, plan, situation=None) -> str:
        found = situation or self.situation()
        created = [step.key for step in plan.changes if step.action == "create"]
        lines = backup_lines(
            found.leases.values(),
            table=TABLE,
            stream=found.stream,
            now_millis=found.now_millis,
            absent=created,
        )
        return "\n".join(lines)

    def apply_plan(self, plan, dies_before: int | None = None) -> int:
        done = [0]

        def count(step) -> None:
            done[0] += 1
            if done[0] == dies_before:
                raise DiedError

        if dies_before == 0:
            raise DiedError
        return apply_plan(plan, self.table, self.runtime, Audit("somebody", TABLE, "backup"), count)

    def reset_to(self, millis: int, keys=None) -> str:
        """The whole of it; the backup."""
        self.still()
        plan = self.plan_to(millis, keys)
        saved = self.backup(plan)
        self.apply_plan(plan)
        return saved

    def restore(self, saved: str, dies_before: int | None = None):
        plan = plan_restore(self.situation(), read_backup(saved, "backup"))
        self.apply_plan(plan, dies_before)
        return plan


def every_record(fleet: Fleet) -> dict[bytes, int]:
    """Payload -> arrival in epoch milliseconds, of every user record that the stream holds."""
    return {record.data: int(record.arrived_at_millis) for record in user_records(fleet.kinesis)}


def user_records(kinesis: LocalKinesis):
    from pykcl.model.kpl import deaggregate
    from pykcl.model.record import Record

    found = []
    for shard in kinesis.list_shards(STREAM, operation=None):
        iterator = kinesis.get_shard_iterator(STREAM, shard.shard_id, "TRIM_HORIZON")
        while iterator is not None:
            page = kinesis.get_records(iterator, 10_000)
            for one in page.records:
                record = Record(
                    one.data,
                    one.partition_key,
                    one.sequence_number,
                    one.arrived_at_millis,
                    shard.shard_id,
                    STREAM,
                )
                found.extend(deaggregate(record, None))
            iterator = page.next_iterator if page.records or page.millis_behind_latest else None
    return found


def put_aggregate(fleet: Fleet, *payloads: bytes, key: str = "k") -> None:
    for blob in aggregate([(key, None, payload) for payload in payloads]):
        number = int(blob.explicit_hash_key) if blob.explicit_hash_key else None
        fleet.kinesis.put_record(STREAM, blob.data, blob.partition_key, number)


def start(fleet: Fleet, name: str, kind: str = "pykcl", **options) -> None:
    if kind == "java":
        java_peer(fleet, name, **JAVA, **options).start()
        fleet.workers[name] = JAVA_WORKER
    else:
        fleet.start(name, failover_time=FAILOVER, **options)


def stop_all(fleet: Fleet) -> None:
    """A Java worker is killed: stopped in order it leaves its rows alike, owned by itself."""
    for name, worker in fleet.workers.items():
        if worker is JAVA_WORKER:
            fleet.simulation.kill(name)
        else:
            worker.stop()
    fleet.workers.clear()


def clean_rows(fleet: Fleet):
    """What the rows say of positions: (checkpoint, pending, children) by key."""
    return {
        key: (str(row.checkpoint), row.pending, tuple(sorted(row.children)))
        for key, row in fleet.rows().items()
    }


__all__ = ["DiedError", "Operator", "PyKclError"]
