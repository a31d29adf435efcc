"""A lease table in memory whose rows a test writes as workers would, and a clock that only waiting moves."""

from __future__ import annotations

from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PykclMetadata
from pykcl.model.lease_item import parse_row, to_item
from pykcl.operate.aws.lease_table import OwnTableNames, RowWriter, TableScanner
from pykcl.operate.snapshot import Sampler
from pykcl.runtime import SystemRuntime
from pykcl.testing.memory.dynamodb import MemoryDynamoDB
from tests.java_compat.scenarios import java_3x

NAME = "orders-app"
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
JAVA = "ip-10-0-1-7:5a0f3c7e-1d2b-4c3d-9e4f-0123456789ab"


def shard(number: int) -> str:
    return f"shardId-{number:012d}"


def at(number: int, sub: int = 0) -> Checkpoint:
    return Checkpoint(str(10**40 + number), sub)


def lease(number: int, owner: str | None = None, checkpoint: Checkpoint = AT_TRIM_HORIZON, **more) -> Lease:
    return Lease(shard(number), checkpoint, owner=owner, counter=more.pop("counter", 5), **more)


def ended(number: int, *children: int, **more) -> Lease:
    return lease(number, checkpoint=AT_SHARD_END, children=tuple(map(shard, children)), **more)


def note(owner: str, **more) -> PykclMetadata:
    return PykclMetadata(
        stream_arn=ARN, stream_created_at=1_790_000_000_000, owner=owner, version="0.1.0", **more
    )


class SteppingClock(SystemRuntime):
    """Waiting costs nothing, moves the clock, and lets whoever asked do something first."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.waits: list[float] = []
        self.meanwhile = lambda: None

    def monotonic(self) -> float:
        return self.now

    def event(self):
        return _Waiting(self)


class _Waiting:
    def __init__(self, clock: SteppingClock) -> None:
        self._clock = clock

    def is_set(self) -> bool:
        return False

    def set(self) -> None:
        raise AssertionError("nobody sets it here")

    clear = set

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.waits.append(timeout)
        self._clock.now += timeout
        self._clock.meanwhile()
        return False


_INDEX = [("leaseKey", "RANGE"), ("leaseOwner", "HASH")]
OWNER_INDEX = {
    "IndexName": java_3x.OWNER_INDEX,
    "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in reversed(_INDEX)],
    "Projection": {"ProjectionType": "KEYS_ONLY"},
}
STATE, METRICS = f"{NAME}-CoordinatorState", f"{NAME}-WorkerMetricStats"


def metrics_item(worker: str, reported_at: float, sts=None, opr=None, **more) -> dict:
    """The row of a worker's metrics as Java writes it. sts, opr: kind -> numbers."""
    series = {
        name: {
            "M": {
                kind: {"L": [{"N": str(one)} for one in numbers]} for kind, numbers in (given or {}).items()
            }
        }
        for name, given in (("sts", sts), ("opr", opr))
    }
    at = {"N": str(int(reported_at))}
    kind = {"S": "WORKER_METRIC_STATS"}
    return {
        "leaseKey": {"S": worker},
        "entityType": kind,
        "lut": at,
        "slu": at,
        "sup": {"N": "1"},
        **series,
        **more,
    }


def old(row: dict, key: str = "key") -> dict:
    """The row as KCL 3.0-3.4 has it in a table of its own."""
    without = ("leaseKey", "entityType", "sup", "slu")
    return {key: row["leaseKey"], **{name: value for name, value in row.items() if name not in without}}


class FleetTable:
    def __init__(
        self,
        clock: SteppingClock,
        *,
        billing: str = "PAY_PER_REQUEST",
        page_bytes: int = 1024**2,
        indexed: bool = False,
    ) -> None:
        self.clock = clock
        self.client = MemoryDynamoDB(page_bytes=page_bytes)
        self.client.create_table(
            TableName=NAME,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in _INDEX[: 1 + indexed]],
            BillingMode=billing,
            **({"GlobalSecondaryIndexes": [OWNER_INDEX]} if indexed else {}),
            **({"ProvisionedThroughput": {"ReadCapacityUnits": 10, "WriteCapacityUnits": 10}} if billing == "PROVISIONED" else {}),
        )  # fmt: skip

    def put(self, *leases: Lease) -> None:
        for one in leases:
            self.client.put_raw(NAME, to_item(one))

    def put_item(self, **item) -> None:
        self.client.put_raw(NAME, item)

    def lead(self, owner: str, version: str = "v1", *, mode: str | None = java_3x.NATIVE, **more) -> None:
        """The rows of a fleet of KCL 3.x: its client version, if there is one, and the lock of its leader."""
        if mode is not None:
            self.client.put_raw(NAME, java_3x.migration_row(mode, owner, 1_790_000_000_000))
        self.client.put_raw(NAME, java_3x.leader_lock(owner, version, **more))

    def report(self, worker: str, ago: float = 5.0, sts=None, opr=None) -> None:
        self.client.put_raw(NAME, metrics_item(worker, self.seconds - ago, sts, opr))

    @property
    def seconds(self) -> float:
        return self.clock.utcnow_millis() / 1000

    def make_own_tables(self) -> None:
        """The tables of KCL 3.0-3.4, empty."""
        for name, key in ((STATE, "key"), (METRICS, "wid")):
            self.client.create_table(
                TableName=name,
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )

    def row(self, number: int) -> Lease | None:
        found = self.client.rows(NAME).get(shard(number))
        return parse_row(found) if found else None

    def renew(self, *numbers: int) -> None:
        for number in numbers:
            found = self.row(number)
            self.put(found.with_(counter=found.counter + 1))

    @property
    def scanner(self) -> TableScanner:
        return TableScanner(self.client, NAME, self.clock, OwnTableNames.of(NAME))

    def view(self):
        return self.scanner.scan()

    def sampler(self) -> Sampler:
        return Sampler(self.scanner.scan, self.clock)

    @property
    def rows(self) -> RowWriter:
        return RowWriter(self.client, NAME, self.clock)

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.client.requests]

    def writes(self) -> list[str]:
        return [one.operation for one in self.client.changes]
