"""Writes whose answers are lost, late or refused; threads that die; outages of the lease table."""

from functools import partial

import pytest
from botocore.exceptions import ReadTimeoutError

from pykcl.events import FailureResolved, FailureStarted, LeaseDoubted, LeaseLost, ReleaseUnacknowledged
from pykcl.stores.expressions import aws_error
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.runtime import ThreadStruck


def _kind(operation, params):
    """Which of the lease protocol's writes this is."""
    if operation == "PutItem":
        return "create"
    update = params.get("UpdateExpression", "")
    if operation != "UpdateItem":
        return operation
    if "childShardIds" in update:
        return "end"
    if "REMOVE" in update and "leaseOwner" in update.split("REMOVE")[1]:
        return "release"
    if "leaseOwner = :" in update.split("REMOVE")[0]:
        return "take"
    return "checkpoint" if "checkpoint = " in update else "renew"


def _lost_answer():
    return ReadTimeoutError(endpoint_url="http://127.0.0.1")


@pytest.mark.parametrize("kind", ["create", "take", "renew", "checkpoint", "end", "release"])
def test_a_write_that_was_applied_though_its_answer_was_lost_is_recognised_as_ours(new_fleet, kind):
    fleet = new_fleet(shards=2)
    hit = []

    def fault(operation, params):
        if _kind(operation, params) == kind and len(hit) < 3:
            hit.append(params)
            return Fault(after=_lost_answer())
        return None

    fleet.dynamodb.fault = fault
    worker = fleet.start("w1", cleanup_interval=0.0)
    put = fleet.put(10)
    fleet.wait_delivered(put)
    parent = fleet.open_shards()[0]
    fleet.kinesis.split(STREAM, parent)
    more = fleet.put(10)
    fleet.wait_delivered(more)
    fleet.wait(lambda: fleet.rows()[parent].is_ended)
    fleet.simulation.sleep(30)
    worker.stop()
    assert hit, "the fault came to pass"
    assert not fleet.happened(LeaseLost)
    assert fleet.ledger.duplicates == 0
    assert set(fleet.owners().values()) == {None}


def test_a_stale_write_that_lands_after_its_sender_gave_up_changes_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(5)
    postponed = []

    def fault(operation, params):
        if (
            _kind(operation, params) == "renew"
            and params["ExpressionAttributeValues"][":seenOwner"]["S"] == "w1"
        ):
            postponed.append(params)
            return Fault(postponed=_lost_answer())
        return None

    fleet.dynamodb.fault = fault
    fleet.wait(lambda: fleet.happened(LeaseDoubted), 60, "the lease to be in doubt")
    fleet.start("w2")
    fleet.wait(lambda: set(fleet.owners().values()) == {"w2"}, 60)
    fleet.dynamodb.fault = None
    fleet.simulation.sleep(5)
    before = fleet.items()
    fleet.dynamodb.deliver_postponed()
    assert fleet.items() == before
    assert postponed


def test_an_outage_of_the_lease_table_shorter_than_the_lease_costs_nothing(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(4)
    fleet.dynamodb.fault = lambda operation, params: Fault(
        before=aws_error("InternalServerError", "down", operation)
    )
    fleet.simulation.sleep(3.5)
    fleet.dynamodb.fault = None
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(30)
    assert not fleet.happened(LeaseLost)
    assert fleet.ledger.duplicates == 0
    assert sorted(e.what for e in fleet.happened(FailureStarted)) == sorted(
        e.what for e in fleet.happened(FailureResolved)
    )


def test_an_outage_longer_than_the_lease_stops_delivery_by_the_deadline_and_everything_comes_back(new_fleet):
    fleet = new_fleet(shards=2)
    delivered_at = []

    def note_time(batch):
        delivered_at.append(fleet.simulation.now)

    # By hand: an automatic checkpoint would hold the first batch of the outage until the deadline.
    make = partial(RecordingProcessor, "w1", fleet.ledger, note_time)
    fleet.start("w1", checkpoint_mode="manual", failover_time=10.0, processor=make)
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(4)
    down_since = fleet.simulation.now
    fleet.dynamodb.fault = lambda operation, params: Fault(
        before=aws_error("ProvisionedThroughputExceededException", "slow down", operation)
    )
    put = []
    for _ in range(60):
        put += fleet.put(2)
        fleet.simulation.sleep(0.5)
    # Believed for 9 s from the last heartbeat, which was sent at most 10/3 s before; and read at least once a second.
    assert 9 - 10 / 3 - 1 <= delivered_at[-1] - down_since <= 9
    assert len(fleet.happened(LeaseDoubted)) == 2
    fleet.dynamodb.fault = None
    fleet.wait_delivered(put)
    assert not fleet.happened(LeaseLost)
    assert fleet.ledger.duplicates == 0


def test_a_stop_while_the_lease_table_is_down_ends_in_time_and_says_what_was_not_released(new_fleet):
    fleet = new_fleet(shards=2)
    worker = fleet.start("w1")
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(4)
    fleet.dynamodb.fault = lambda operation, params: Fault(before=_lost_answer(), delay=2.0)
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began < 25
    fleet.dynamodb.fault = None
    released = [key for key, owner in fleet.owners().items() if owner is None]
    assert not released
    assert fleet.happened(ReleaseUnacknowledged) or fleet.happened(LeaseLost)


@pytest.mark.parametrize("phase", ["acquiring", "initializing", "reading", "ending", "retrying"])
def test_stop_in_every_phase_returns_in_time_with_every_lease_released(new_fleet, phase):
    fleet = new_fleet(shards=2)
    sleeping = []

    class Slow(RecordingProcessor):
        def initialize(self, init):
            super().initialize(init)
            if phase == "initializing":
                sleeping.append(1)
                fleet.simulation.sleep(5)

        def process_records(self, batch):
            if phase == "reading":
                sleeping.append(1)
                fleet.simulation.sleep(5)
            if phase == "retrying":
                sleeping.append(1)
                raise ValueError
            super().process_records(batch)

        def shard_ended(self, end):
            super().shard_ended(end)
            if phase == "ending":
                sleeping.append(1)
                fleet.simulation.sleep(5)

    put = fleet.put(10)
    if phase == "ending":
        fleet.kinesis.split(STREAM, fleet.open_shards()[0])
        put += fleet.put(10)
    worker = fleet.start("w1", processor=lambda: Slow("w1", fleet.ledger))
    if phase != "acquiring":
        fleet.wait(lambda: sleeping, what=phase)
    began = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - began < 12
    assert set(fleet.owners().values()) <= {None}
    fleet.start("w2")
    fleet.wait_delivered(put)


def test_a_lease_worker_whose_thread_dies_is_not_kept_alive_by_heartbeats(new_fleet):
    fleet = new_fleet(shards=1)

    class Fatal(RecordingProcessor):
        def process_records(self, batch):
            raise ThreadStruck

    put = fleet.put(3)
    fleet.start("w1", processor=lambda: Fatal("w1", fleet.ledger))
    fleet.simulation.sleep(1)
    fleet.start("w2")
    fleet.wait_delivered(put)
    assert fleet.ledger.by("w2") == put


@pytest.mark.parametrize("part", ["LeaseManager._step", "LeaseRenewer._dispatch", "LeaseRenewer._beat"])
def test_a_worker_that_loses_a_vital_thread_stops_and_releases_instead_of_living_on_by_half(
    new_fleet, monkeypatch, part
):
    from pykcl.errors import InternalError
    from pykcl.worker import lease_manager, lease_renewer

    fleet = new_fleet(shards=2)
    worker = fleet.worker("w1")
    with pytest.raises(ZeroDivisionError), fleet.simulation:
        worker.start()
        fleet.wait_delivered(fleet.put(5))
        name, method = part.split(".")
        home = getattr(lease_manager, name, None) or getattr(lease_renewer, name)
        monkeypatch.setattr(home, method, lambda *_: 1 / 0)
        fleet.wait(lambda: worker.failure is not None, 30, "the failure")
        worker.stop()
        assert isinstance(worker.failure, InternalError)
        assert set(fleet.owners().values()) == {None}
