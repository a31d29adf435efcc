"""A processor that says of itself that it is of no use any more: a new one begins at the last checkpoint."""

from collections import Counter

import pytest

from pykcl.errors import LeaseLostError, ProcessorFailed, RestartShard
from pykcl.events import LeaseLost, LeaseReleased, LeaseTaken, ProcessorRaised, RetriesExhausted
from pykcl.stores.expressions import aws_error
from pykcl.testing.fleet import STREAM, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault

KEY = "shardId-000000000000"


class Hoarder(RecordingProcessor):
    """Keeps what it is given, and says that it is done only with every third record; a new one knows nothing of it."""

    made: list["Hoarder"]
    breaks_at: dict[bytes, int]
    finished: set[bytes]

    def initialize(self, init):
        super().initialize(init)
        self.kept, self.given = [], set()
        self.position = init.position
        self.checkpointer = init.checkpointer
        self.made.append(self)

    def process_records(self, batch):
        for record in batch:
            if self.breaks_at.get(record.data):
                self.breaks_at[record.data] -= 1
                raise RestartShard("the child of this shard ended")
        super().process_records(batch)
        self.given |= {record.data for record in batch}
        self.kept.extend(batch.records)
        if len(self.kept) >= 3:
            batch.checkpointer.checkpoint()
            self.finished |= {record.data for record in self.kept}
            self.kept = []


@pytest.fixture
def hoarder():
    class Own(Hoarder):
        made: list[Hoarder] = []  # noqa: RUF012 - the whole point is that all instances share it
        breaks_at: dict[bytes, int] = {}  # noqa: RUF012
        finished: set[bytes] = set()  # noqa: RUF012

    return Own


def start(fleet, cls, **options):
    options = {"checkpoint_mode": "manual", "max_records": 1, **options}
    return fleet.worker("w1", processor=lambda: cls("w1", fleet.ledger), **options)


def test_a_new_instance_begins_at_the_last_checkpoint_so_that_what_the_old_one_kept_comes_again(
    new_fleet, hoarder
):
    fleet = new_fleet(shards=1)
    put = fleet.put(9)
    hoarder.breaks_at[put[4]] = 2
    start(fleet, hoarder).start()
    fleet.wait(
        lambda: hoarder.finished == set(put), what="every record to be finished by the instance that kept it"
    )
    first, second, third = hoarder.made
    assert first.position.is_sentinel
    assert second.position == third.position == fleet.ledger.delivered[2][1].position
    assert [event.attempt for event in fleet.happened(ProcessorRaised)] == [1, 2]
    assert [event.error for event in fleet.happened(ProcessorRaised)] == ["RestartShard"] * 2
    assert len(fleet.happened(LeaseTaken)) == 1, "under the same lease"
    assert fleet.happened(RetriesExhausted) == []


def test_the_old_instances_checkpointer_is_of_no_use_any_more(new_fleet, hoarder):
    fleet = new_fleet(shards=1)
    put = fleet.put(5)
    hoarder.breaks_at[put[4]] = 1
    start(fleet, hoarder).start()
    fleet.wait(lambda: len(hoarder.made) == 2, what="the second instance")
    before = fleet.rows()[KEY].checkpoint
    with pytest.raises(LeaseLostError, match="replaced"):
        hoarder.made[0].checkpointer.checkpoint(fleet.ledger.delivered[3][1])
    assert fleet.rows()[KEY].checkpoint == before


def test_at_latest_nothing_that_was_put_since_the_start_is_skipped_by_a_restart(new_fleet, hoarder):
    fleet = new_fleet(shards=1)
    fleet.put(5)
    worker = start(fleet, hoarder, initial_position="LATEST")
    worker.start()
    fleet.wait(lambda: hoarder.made, what="the first instance")
    fleet.simulation.sleep(5)
    put = fleet.put(6)
    hoarder.breaks_at[put[1]] = 1
    fleet.wait(
        lambda: hoarder.made[-1].given >= set(put), what="every record put since the start to come again"
    )
    assert len(hoarder.made) == 2


def test_one_that_never_gets_anywhere_hands_its_lease_back_and_another_worker_goes_on(new_fleet, hoarder):
    fleet = new_fleet(shards=1)
    put = fleet.put(9)
    hoarder.breaks_at[put[4]] = 10**6
    start(fleet, hoarder, retry_timeout=20.0).start()
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the hand-back")
    assert 3 < len(hoarder.made) < 200, "with a back-off in between"
    fleet.start("w2")
    fleet.wait_delivered(put)


def test_a_restart_in_shard_ended_reads_the_rest_again(new_fleet, hoarder):
    class EndsBadly(hoarder):
        bad = [1]  # noqa: RUF012

        def shard_ended(self, end):
            if self.bad[0]:
                self.bad[0] = 0
                raise RestartShard("the child of this shard ended")
            self.finished.update(record.data for record in self.kept)
            end.checkpointer.checkpoint()

    fleet = new_fleet(shards=1)
    put = fleet.put(8)
    start(fleet, EndsBadly).start()
    fleet.wait_delivered(put)
    fleet.kinesis.split(STREAM, KEY)
    fleet.wait(lambda: KEY not in fleet.rows() or fleet.rows()[KEY].is_ended, 60, "the end of the shard")
    assert hoarder.finished >= set(put)


def test_with_automatic_checkpoints_what_returned_is_not_delivered_again(new_fleet, hoarder):
    fleet = new_fleet(shards=1)
    put = fleet.put(9)

    class Plain(RecordingProcessor):
        broken = [1]  # noqa: RUF012

        def process_records(self, batch):
            if self.broken[0] and batch.records[0].data == put[6]:
                self.broken[0] = 0
                raise RestartShard("once")
            super().process_records(batch)

    start(fleet, Plain, checkpoint_mode="interval", checkpoint_interval=3600.0).start()
    fleet.wait_delivered(put)
    assert fleet.ledger.duplicates == 0


def test_on_error_raise_stops_the_worker_for_it_and_skip_never_skips_for_it(new_fleet, hoarder):
    fleet = new_fleet(shards=1)
    put = fleet.put(5)
    hoarder.breaks_at[put[1]] = 1
    with pytest.raises(ProcessorFailed, match="RestartShard"):
        start(fleet, hoarder, on_error="raise").run()
    hoarder.breaks_at[put[1]] = 1
    fleet.start(
        "w2",
        checkpoint_mode="manual",
        max_records=1,
        on_error="skip",
        processor=lambda: hoarder("w2", fleet.ledger),
    )
    fleet.wait_delivered(put)


@pytest.mark.parametrize("puts", [3, 0], ids=["the next records", "the next empty batch"])
def test_one_that_broke_on_an_empty_batch_has_got_past_it_with(new_fleet, hoarder, puts):
    class Idle(hoarder):
        breaks = [0]  # noqa: RUF012

        def process_records(self, batch):
            if not batch.records and self.breaks[0]:
                self.breaks[0] -= 1
                raise RestartShard("the child of this shard ended")
            super().process_records(batch)

    fleet = new_fleet(shards=1)
    start(fleet, Idle, call_with_empty_batches=True, retry_timeout=20.0, max_records=10).start()
    for _ in range(3):
        Idle.breaks[0] = 1
        fleet.wait(lambda: not Idle.breaks[0], what="a break on an empty batch")
        fleet.wait_delivered(fleet.put(puts))
        fleet.simulation.sleep(30)
    assert fleet.happened(RetriesExhausted) == []
    assert [event.attempt for event in fleet.happened(ProcessorRaised)] == [1, 1, 1]


@pytest.mark.parametrize("on_error", ["retry", "skip"])
def test_one_that_knows_to_be_of_no_use_is_replaced_though_nothing_new_comes(new_fleet, hoarder, on_error):
    """What it was given and has not checkpointed comes again."""

    class Dies(hoarder):
        dead: set[object] = set()  # noqa: RUF012

        @property
        def is_of_no_use(self):
            return self in self.dead

        def process_records(self, batch):
            if self in self.dead:
                raise RestartShard("the child of this shard ended")
            super().process_records(batch)

    fleet = new_fleet(shards=1)
    start(fleet, Dies, retry_timeout=20.0, max_records=10, on_error=on_error).start()
    put = fleet.put(2)
    for deaths in range(1, 5):
        fleet.wait(lambda: fleet.ledger.payloads == Counter(put * deaths), what="both records once more")  # noqa: B023
        fleet.simulation.sleep(30)
        Dies.dead.add(hoarder.made[-1])
    fleet.wait(lambda: len(hoarder.made) == 5, what="the last one")
    assert [event.attempt for event in fleet.happened(ProcessorRaised)] == [1, 1, 1, 1]
    assert fleet.happened(RetriesExhausted) == []


def test_one_that_breaks_on_each_empty_batch_is_handed_back(new_fleet, hoarder):
    class Idle(hoarder):
        def process_records(self, batch):
            raise RestartShard("the child of this shard ended")

    fleet = new_fleet(shards=1)
    start(fleet, Idle, call_with_empty_batches=True, retry_timeout=20.0, max_records=10).start()
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the end of its patience")
    assert len(fleet.happened(ProcessorRaised)) > 3


def test_what_a_replaced_instance_still_owes_does_not_keep_its_lease_from_being_released(new_fleet, hoarder):
    """1) A batch returned, and its checkpoint cannot be written; 2) the instance is replaced, so that it may write
    nothing any more; 3) no other one gets through initialize; 4) what was owed must not keep the lease from its release."""

    class NeverAgain(hoarder):
        def initialize(self, init):
            super().initialize(init)
            if len(self.made) > 1:
                raise ValueError

    fleet = new_fleet(shards=1)
    put = fleet.put(5)
    hoarder.breaks_at[put[1]] = 1

    def no_checkpoints(operation, params):
        is_checkpoint = operation == "UpdateItem" and "checkpoint = " in params["UpdateExpression"]
        return Fault(before=aws_error("AccessDeniedException", "no", operation)) if is_checkpoint else None

    fleet.dynamodb.fault = no_checkpoints
    start(fleet, NeverAgain, checkpoint_mode="auto", retry_timeout=20.0).start()
    fleet.wait(lambda: fleet.happened(LeaseReleased), what="the release")
    assert len(hoarder.made) > 2
    assert len(fleet.happened(RetriesExhausted)) == 1
    assert fleet.happened(LeaseLost) == []
    fleet.dynamodb.fault = None
    fleet.start("w2")
    fleet.wait_delivered(put)


def test_on_error_raise_stops_the_worker_also_for_an_instance_that_fails_when_its_lease_is_lost(new_fleet):
    class Dead(RecordingProcessor):
        def lease_lost(self, loss):
            raise RestartShard("the child of this shard ended")

    def fails_at_a_loss(**options):
        fleet = new_fleet(shards=2)
        worker = fleet.start("w1", processor=lambda: Dead("w1", fleet.ledger), **options)
        fleet.wait(lambda: fleet.load() == {"w1": 2}, what="both leases")
        fleet.start("w2")
        fleet.wait(lambda: fleet.happened(LeaseLost), what="the loss")
        return worker

    assert isinstance(fails_at_a_loss(on_error="raise").failure, ProcessorFailed)
    assert fails_at_a_loss().failure is None
