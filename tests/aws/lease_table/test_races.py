"""Many writers on one row: never two of them kept on the same counter, and the counter only grows, by one."""

import random
import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.interfaces import Applied
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint
from pykcl.model.lease_writes import parse_row
from pykcl.runtime import SystemRuntime
from pykcl.testing.memory.dynamodb import Fault, MemoryDynamoDB, timed_out

KEY = "shardId-000000000000"
NEVER = float("inf")


def assert_counter_grows_by_one(changes):
    """Over every write DynamoDB applied: +1 exactly, checkpoints never move backwards, nobody is upserted."""
    for change in changes:
        if change.before is None:
            assert change.operation == "PutItem"
            continue
        before, after = parse_row(change.before), parse_row(change.after)
        assert isinstance(before, Lease)
        assert isinstance(after, Lease)
        assert after.counter == before.counter + 1
        assert after.checkpoint >= before.checkpoint


class FleetOnOneRow(RuleBasedStateMachine):
    """Three workers, answers that get lost and requests that arrive late, on one row."""

    def __init__(self):
        super().__init__()
        self.faults = []
        self.client = MemoryDynamoDB(fault=lambda operation, params: self.next_fault(operation))
        self.table = DynamoDBLeaseTable(self.client, "leases", NoWaiting())
        self.table.prepare(create=True)
        self.beliefs = {}
        self.kept = set()

    def next_fault(self, operation):
        return self.faults.pop(0) if self.faults and operation == "UpdateItem" else None

    @initialize()
    def start(self):
        assert isinstance(self.send("nobody", lease_writes.create(Lease(KEY, AT_TRIM_HORIZON))), Applied)

    def send(self, me, write):
        answer = self.table.write(write, until=self.table._runtime.monotonic() + 1.0)
        if isinstance(answer, Applied) and write.kind != "create":
            assert answer.lease.counter not in self.kept
            self.kept.add(answer.lease.counter)
            self.beliefs[me] = answer.lease if answer.lease.owner == me else None
        elif write.kind != "create" and not hasattr(answer, "cause"):
            self.beliefs[me] = None
        return answer

    @rule(me=st.sampled_from("abc"))
    def take(self, me):
        seen = self.table.read(KEY)
        if self.beliefs.get(me) is None:
            self.send(me, lease_writes.take(seen, me))

    @rule(
        me=st.sampled_from("abc"), what=st.sampled_from(["renew", "checkpoint", "prepare", "release", "end"])
    )
    def write(self, me, what):
        held = self.beliefs.get(me)
        if held is None or held.is_ended:
            return
        ahead = Checkpoint(str(held.counter + 1000), 0)
        if ahead < held.checkpoint:
            return
        build = {
            "renew": lambda: lease_writes.renew(held),
            "checkpoint": lambda: lease_writes.checkpoint(held, ahead),
            "prepare": lambda: lease_writes.prepare(held, PendingCheckpoint(ahead, b"s")),
            "release": lambda: lease_writes.release(held),
            "end": lambda: lease_writes.end_shard(held, ["c"]),
        }
        self.send(me, build[what]())

    @rule(how=st.sampled_from(["before", "after", "postponed"]), times=st.integers(1, 4))
    def break_the_next_writes(self, how, times):
        self.faults.extend([Fault(**{how: timed_out()})] * times)

    @rule()
    def deliver_what_was_under_way(self):
        self.client.deliver_postponed()

    @invariant()
    def the_row_is_well_kept(self):
        if "leases" in self.client.tables:
            assert_counter_grows_by_one(self.client.changes)
            for row in self.client.rows("leases").values():
                assert isinstance(parse_row(row), Lease)


class NoWaiting(SystemRuntime):
    """A clock that only waiting moves."""

    def __init__(self):
        super().__init__()
        self._random = random.Random(1)
        self.now = 0.0

    def monotonic(self):
        return self.now

    def event(self):
        runtime, event = self, threading.Event()

        class Moving:
            is_set, set, clear = event.is_set, event.set, event.clear

            def wait(self, timeout=None, /):
                runtime.now += timeout or 0.0
                return event.is_set()

        return Moving()


FleetOnOneRow.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestFleetOnOneRow = FleetOnOneRow.TestCase
