"""The life of a lease worker: its table of states, where it opens the shard, what it waits for."""

from types import SimpleNamespace

import pytest

from pykcl.config import Config
from pykcl.errors import LeaseLostError, TemporaryError
from pykcl.model.checkpoint import Checkpoint, ReadFrom, StartPosition
from pykcl.model.lease import Lease, PykclMetadata, first_read
from pykcl.planning.lease_assignment import Acquisition
from pykcl.planning.lease_creation import CreationReason, LeaseCreation
from pykcl.planning.lifecycle import FINAL, TABLE, Signal, State, next_state
from pykcl.planning.read_schedule import backoff
from pykcl.runtime import SystemRuntime
from pykcl.testing.fleet import STREAM
from pykcl.testing.runtime import Simulation
from pykcl.worker.lease_scope import LeaseScope
from pykcl.worker.lease_worker import LeaseWorker, unfinished_parents
from pykcl.worker.processor_calls import ProcessorCalls
from pykcl.worker.shard_sync import create_lease

NOW = StartPosition("LATEST")


def _never():
    return False


def test_every_working_state_can_be_left_and_every_state_can_be_reached():
    assert {state for state, _ in TABLE} == set(State) - FINAL
    assert set(TABLE.values()) == set(State) - {State.ACQUIRING}


def test_every_state_that_holds_the_lease_knows_what_to_do_when_it_is_lost():
    holding = set(State) - FINAL - {State.ACQUIRING, State.LOSING}
    assert all((state, Signal.LEASE_LOST) in TABLE for state in holding)


def test_a_transition_that_is_not_in_the_table_cannot_happen():
    with pytest.raises(ValueError, match="releasing cannot meet 'started'"):
        next_state(State.RELEASING, Signal.STARTED)


def test_back_off_grows_and_is_bounded():
    rng = Simulation().rng
    assert all(backoff(n, rng, first=0.1, longest=30.0) <= 30.0 for n in range(1, 2000))
    assert backoff(1, rng) <= 0.1
    assert backoff(8, rng) >= 0.1 * 2**7 / 2


@pytest.mark.parametrize(
    ("checkpoint", "note", "start", "expected"),
    [
        ("TRIM_HORIZON", None, NOW, ReadFrom("TRIM_HORIZON")),
        ("LATEST", None, NOW, ReadFrom("LATEST")),
        ("LATEST", PykclMetadata(latest_from=77), NOW, ReadFrom("AT_TIMESTAMP", at_millis=77)),
        ("LATEST", PykclMetadata(latest_from=77, latest_done="1"), NOW, ReadFrom("LATEST")),
        ("AT_TIMESTAMP", None, StartPosition("AT_TIMESTAMP", 5), ReadFrom("AT_TIMESTAMP", at_millis=5)),
        ("AT_TIMESTAMP", None, NOW, ReadFrom("TRIM_HORIZON")),
        ("123", None, NOW, ReadFrom("AT_SEQUENCE_NUMBER", sequence_number="123")),
    ],
)
def test_where_the_new_holder_of_a_lease_opens_the_shard(checkpoint, note, start, expected):
    lease = Lease("shardId-0", Checkpoint(checkpoint), metadata=note)
    assert first_read(lease, start) == expected


def test_a_row_that_says_latest_from_a_time_to_come_starts_now():
    """A worker with a wrong clock wrote it. Waiting for that time would skip what is put until then."""
    row = Lease("shardId-0", Checkpoint("LATEST"), metadata=PykclMetadata(latest_from=77))
    assert first_read(row, NOW, 70) == ReadFrom("AT_TIMESTAMP", at_millis=70)
    assert first_read(row, NOW, 78) == ReadFrom("AT_TIMESTAMP", at_millis=77)
    # What the configuration says is meant, and waited for.
    row = Lease("shardId-0", Checkpoint("AT_TIMESTAMP"))
    assert first_read(row, StartPosition("AT_TIMESTAMP", 77), 70) == ReadFrom("AT_TIMESTAMP", at_millis=77)


def test_a_lease_worker_waits_for_parents_whose_rows_have_not_ended_whatever_its_plan_said(new_fleet):
    fleet = new_fleet(shards=1)
    context = fleet.worker("w1")._connect()
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    child = fleet.open_shards()[0]
    for key, parents in ((parent, ()), (child, (parent,))):
        lease = Lease(key, Checkpoint("TRIM_HORIZON"), parents=parents)
        create_lease(context, LeaseCreation(lease, CreationReason.START))
    plan = Acquisition(fleet.rows()[child], "unowned")
    worker = LeaseWorker(LeaseScope(context, plan, iterator=None, on_change=lambda: None))
    runtime = fleet.simulation.runtime("w1")
    runtime.spawn("child", worker.run)
    fleet.simulation.sleep(5)
    assert worker.state is State.WAITING_FOR_PARENTS
    assert not fleet.ledger.calls
    plan = Acquisition(fleet.rows()[parent], "unowned")
    parents_scope = LeaseScope(context, plan, iterator=None, on_change=worker.nudge)
    runtime.spawn("parent", LeaseWorker(parents_scope).run)
    fleet.simulation.run_until(lambda: worker.state is State.READING, 8)
    assert fleet.rows()[parent].is_ended
    worker.request_stop()
    fleet.simulation.run_until(lambda: worker.is_final, 10)


def test_in_a_table_that_was_made_anew_a_parent_without_a_row_has_not_ended():
    rows = {}
    table = SimpleNamespace(read=rows.get)
    child = Lease("shardId-1", Checkpoint("TRIM_HORIZON"), owner="w1", parents=("shardId-0",))
    for own in (None, child.with_(owner=None), child.with_(owner="w2")):
        rows["shardId-1"] = own
        with pytest.raises(TemporaryError, match="may be another table of that name"):
            unfinished_parents(table, child)
    rows["shardId-1"] = child
    assert unfinished_parents(table, child) == ()


def test_the_lease_is_looked_at_behind_the_last_wait_before_a_call():
    # 1) The worker looks: the lease is held. 2) It waits for a lock. 3) A heartbeat is refused. 4) The batch is delivered.
    lost, called = [], []

    def check(*, waits=True):
        if lost:
            raise LeaseLostError("another worker took it")

    class LossWhileWaiting:
        def __enter__(self):
            lost.append(True)

        def __exit__(self, *_):
            pass

    class LosingRuntime(SystemRuntime):
        def lock(self):
            return LossWhileWaiting()

    context = SimpleNamespace(
        runtime=LosingRuntime(), config=Config(application="orders-app", stream="orders")
    )
    calls = ProcessorCalls(context, "s1", check, _never, lambda failure: None)
    with pytest.raises(LeaseLostError):
        calls.until_it_returns("process_records", called.append, "a batch")
    assert called == []
    assert calls.busy is None
