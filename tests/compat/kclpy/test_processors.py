"""Processors of amazon_kclpy behind a pykcl Worker, in simulated fleets: what they are told, and what they cost."""

import logging
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from pykcl.compat.kclpy import kcl
from pykcl.compat.kclpy.adapter import processor_factory
from pykcl.compat.kclpy.v2 import processor as v2
from pykcl.compat.kclpy.v3 import processor as v3
from pykcl.errors import LeaseLostError, RestartShard
from pykcl.events import BatchSkipped, ProcessorRaised, RetriesExhausted, ShardEndNotCheckpointed
from pykcl.model.checkpoint import AT_TRIM_HORIZON
from pykcl.processor import (
    Batch,
    InitializationInput,
    LeaseLostInput,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pykcl.testing.fleet import STREAM, Fleet
from pykcl.testing.runtime import Simulation

FIRST = "shardId-000000000000"


@pytest.fixture(params=range(3), ids=lambda seed: f"seed{seed}")
def simulation(request):
    with Simulation(seed=request.param) as simulation:
        yield simulation


class Told:
    """What processors are told, in order, as (shard, what…). Shared by all copies of them, as a module's globals are."""

    def __init__(self):
        self.calls = []

    def __deepcopy__(self, memo):
        return self

    def __call__(self, *what):
        self.calls.append(what)

    def of(self, *begin):
        return [call for call in self.calls if call[1 : 1 + len(begin)] == begin]

    @property
    def payloads(self):
        return [data for _, _, batch in self.of("records") for data in batch]


def checkpoint(told, shard, checkpointer, *arguments):
    try:
        checkpointer.checkpoint(*arguments)
        told(shard, "checkpointed", *arguments)
    except kcl.CheckpointError as error:
        told(shard, "refused", error.value)


class Version1(kcl.RecordProcessorBase):
    def __init__(self, told, behave=lambda self, records, checkpointer: None):
        self.told, self.behave, self.shard, self.kept = told, behave, None, None

    def initialize(self, shard_id):
        assert self.shard is None, "an instance for each shard"
        self.shard = shard_id
        self.told(shard_id, "initialize")

    def process_records(self, records, checkpointer):
        self.kept = checkpointer
        self.behave(self, records, checkpointer)
        self.told(self.shard, "records", [record.binary_data for record in records])

    def shutdown(self, checkpointer, reason):
        self.told(self.shard, reason)
        checkpoint(self.told, self.shard, checkpointer)

    def shutdown_requested(self, checkpointer):
        self.told(self.shard, "shutdown_requested")
        checkpoint(self.told, self.shard, checkpointer)


class Version2(Version1, v2.RecordProcessorBase):
    version = 2

    def initialize(self, initialize_input):
        super().initialize(initialize_input.shard_id)

    def process_records(self, process_records_input):
        super().process_records(process_records_input.records, process_records_input.checkpointer)

    def shutdown(self, shutdown_input):
        super().shutdown(shutdown_input.checkpointer, shutdown_input.reason)

    def shutdown_requested(self, shutdown_requested_input):
        super().shutdown_requested(shutdown_requested_input.checkpointer)


class Version3(v3.RecordProcessorBase):
    def __init__(self, told, behave=lambda self, records, checkpointer: None):
        self.told, self.behave, self.shard, self.kept = told, behave, None, None

    def initialize(self, initialize_input):
        assert self.shard is None, "an instance for each shard"
        self.shard = initialize_input.shard_id
        self.told(self.shard, "initialize")

    def process_records(self, process_records_input):
        self.kept = process_records_input.checkpointer
        self.behave(self, process_records_input.records, process_records_input.checkpointer)
        self.told(self.shard, "records", [record.binary_data for record in process_records_input.records])

    def lease_lost(self, lease_lost_input):
        self.told(self.shard, lease_lost_input.action)

    def shard_ended(self, shard_ended_input):
        self.told(self.shard, shard_ended_input.action)
        checkpoint(self.told, self.shard, shard_ended_input.checkpointer)

    def shutdown_requested(self, shutdown_requested_input):
        self.told(self.shard, shutdown_requested_input.action)
        checkpoint(self.told, self.shard, shutdown_requested_input.checkpointer)


class Readme(Version3, kcl.RecordProcessorBase):
    """Version 1 by its base, version 3 by its methods."""

    version = 1
    shutdown = kcl.RecordProcessorBase.shutdown


ALL = (Version1, Version2, Version3, Readme)
TERMINATE = {Version1: "TERMINATE", Version2: "TERMINATE", Version3: "shardEnded", Readme: "shardEnded"}
ZOMBIE = {Version1: "ZOMBIE", Version2: "ZOMBIE", Version3: "leaseLost", Readme: "leaseLost"}


class Cancelled(BaseException):
    """As asyncio.CancelledError: no Exception, so that it ends a child of amazon_kclpy."""


class Asked:
    """A checkpointer that notes what it is asked."""

    def __init__(self):
        self.calls = []

    def checkpoint(self, at=None, sub_sequence_number=0):
        self.calls.append((at, sub_sequence_number))


def start(fleet, given, name="one", **options):
    exits = []

    def on_exit(shard, method, error):
        exits.append((shard, method, error.code))
        fleet.workers[name].stop()

    factory, _, _ = processor_factory(given, on_exit)
    worker = fleet.start(name, processor=factory, checkpoint_mode="manual", **options)
    return SimpleNamespace(worker=worker, exits=exits)


def wait(fleet, told, payloads):
    fleet.wait(lambda: set(payloads) <= set(told.payloads), what="delivery")


@pytest.mark.parametrize("kind", ALL)
def test_each_version_reads_through_a_split_with_an_instance_for_each_shard(kind, simulation):
    fleet, told = Fleet(simulation), Told()
    start(fleet, kind(told))
    before = fleet.put(20)
    wait(fleet, told, before)
    fleet.kinesis.split(STREAM, FIRST)
    after = fleet.put(20)
    wait(fleet, told, after)
    fleet.wait(lambda: fleet.rows()[FIRST].is_ended, what="the parent's end")
    assert told.of(TERMINATE[kind]) == [(FIRST, TERMINATE[kind])]
    assert (FIRST, "checkpointed") in told.calls
    assert sorted(told.payloads) == sorted(before + after)
    assert len(told.of("initialize")) == 4


@pytest.mark.parametrize("kind", ALL)
def test_each_version_hears_of_a_lost_lease_and_may_write_nothing_any_more(kind, simulation):
    fleet, told = Fleet(simulation), Told()
    mine = []

    def note_instance(self, records, checkpointer):
        mine.append(self)

    start(fleet, kind(told, note_instance))
    payloads = fleet.put(20)
    wait(fleet, told, payloads)
    fleet.start("thief")
    fleet.wait(lambda: told.of(ZOMBIE[kind]), what="the loss")
    (lost,) = told.of(ZOMBIE[kind])
    refusals = told.of("refused")
    # Versions 1 and 2 are handed a checkpointer with the news; version 3 is handed none.
    text = "Checkpointing is not allowed when the lease is lost"
    assert refusals == ([(lost[0], "refused", text)] if ZOMBIE[kind] == "ZOMBIE" else [])
    (instance,) = {one.shard: one for one in mine if one.shard == lost[0]}.values()
    with pytest.raises(kcl.CheckpointError) as refused:
        instance.kept.checkpoint()
    assert refused.value.value == "ShutdownException"


def test_a_batch_that_raised_comes_again_and_its_records_are_not_checkpointed(simulation):
    fleet, told, failures = Fleet(simulation, shards=1), Told(), []

    def fail_twice(self, records, checkpointer):
        if len(failures) < 2:
            failures.append(fleet.rows()[FIRST].checkpoint.sequence_number)
            raise KeyError("not yet")
        checkpointer.checkpoint()

    start(fleet, Version1(told, fail_twice))
    payloads = fleet.put(5)
    wait(fleet, told, payloads)
    assert failures == ["TRIM_HORIZON"] * 2
    assert told.payloads == payloads
    assert [event.error for event in fleet.happened(ProcessorRaised)] == ["KeyError"] * 2
    assert not fleet.rows()[FIRST].checkpoint.is_sentinel


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [Version1, Version2, Version3])
def test_a_call_that_returns_a_coroutine_has_failed(kind, simulation):
    async def never_awaited():
        pass

    class Returning(kind):
        def process_records(self, *arguments):
            return never_awaited()

    fleet, told = Fleet(simulation, shards=1), Told()
    fleet.put(3)
    start(fleet, Returning(told), retry_timeout=10.0)
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the hand-back")
    event = fleet.happened(ProcessorRaised)[0]
    assert (event.error, event.where.split(":")[0]) == ("NeverRan", "test_processors.py")


@pytest.mark.parametrize("kind", ALL)
def test_a_program_that_checkpoints_record_by_record_survives_one_that_fails_once(kind, simulation):
    fleet, told, handled = Fleet(simulation, shards=1), Told(), []

    def fail_once(self, records, checkpointer):
        for record in records:
            handled.append(record.binary_data)
            if handled == payloads[:5]:
                raise ConnectionError
            checkpointer.checkpoint(record.sequence_number, record.sub_sequence_number)

    payloads = fleet.put(10)
    start(fleet, kind(told, fail_once))
    fleet.wait(lambda: payloads[-1] in handled, what="delivery")
    assert handled == [*payloads[:5], *payloads[4:]]
    assert [event.error for event in fleet.happened(ProcessorRaised)] == ["ConnectionError"]


class Failing(Version3):
    def shard_ended(self, shard_ended_input):
        raise KeyError("shard_ended")

    def shutdown_requested(self, shutdown_requested_input):
        raise KeyError("shutdown_requested")


@pytest.mark.parametrize("way", [KeyError, SystemExit, Cancelled])
def test_a_thread_of_the_program_does_not_checkpoint_past_a_batch_that_raised(way):
    failing, kept, first, second = [], [], Asked(), Asked()

    def fail(self, records, checkpointer):
        kept.append(checkpointer)
        if failing:
            raise way

    processor = processor_factory(Failing(Told(), fail), lambda *what: None)[0]()
    processor.initialize(InitializationInput(FIRST, STREAM, AT_TRIM_HORIZON, None, 1, Asked()))
    processor.process_records(Batch((), first, 0, FIRST, STREAM))
    failing.append(True)
    for _ in range(2):
        with pytest.raises((way, RestartShard)):
            processor.process_records(Batch((), second, 0, FIRST, STREAM))
        kept[0].checkpoint()
        assert (first.calls.pop(), second.calls) == ((None, 0), [])
    kept[0].checkpoint("7", 3)
    assert (first.calls, second.calls) == ([], [("7", 3)]), "a record that was delivered may be named"
    if way is KeyError:
        failing.clear()
        processor.process_records(Batch((), second, 0, FIRST, STREAM))
        kept[0].checkpoint()
        assert (first.calls, second.calls) == ([], [("7", 3), (None, 0)])


def test_a_thread_of_the_program_does_not_end_a_shard_whose_end_raised():
    kept, batch, end = [], Asked(), Asked()
    given = Failing(Told(), lambda self, records, checkpointer: kept.append(checkpointer))
    processor = processor_factory(given, None)[0]()
    processor.initialize(InitializationInput(FIRST, STREAM, AT_TRIM_HORIZON, None, 1, Asked()))
    processor.process_records(Batch((), batch, 0, FIRST, STREAM))
    for message in (
        lambda: processor.shard_ended(ShardEndedInput(FIRST, STREAM, (), end)),
        lambda: processor.shutdown_requested(ShutdownRequestedInput(FIRST, STREAM, end)),
    ):
        with pytest.raises(KeyError):
            message()
        kept[0].checkpoint()
    assert (batch.calls, end.calls) == ([(None, 0)] * 2, [])


def test_behind_a_first_batch_that_raised_there_is_nothing_to_checkpoint_but_what_is_named(simulation):
    fleet, told, instances, numbers = Fleet(simulation, shards=1), Told(), [], []

    def fail(self, records, checkpointer):
        instances.append(self)
        numbers.append(records[0].sequence_number)
        raise ConnectionError("the database is down")

    start(fleet, Version1(told, fail))
    fleet.put(5)
    fleet.wait(lambda: len(fleet.happened(ProcessorRaised)) > 1, what="a second attempt")
    with pytest.raises(kcl.CheckpointError) as refused:
        instances[0].kept.checkpoint()
    assert refused.value.value == "InvalidStateException"
    assert fleet.rows()[FIRST].checkpoint.is_start
    instances[0].kept.checkpoint(numbers[0])
    assert fleet.rows()[FIRST].checkpoint.sequence_number == numbers[0]


def test_skip_does_by_name_what_java_does(simulation):
    fleet, told = Fleet(simulation, shards=1), Told()

    def refuse_poison(self, records, checkpointer):
        if any(record.binary_data == b"r2" for record in records):
            raise KeyError("poison")

    start(fleet, Version1(told, refuse_poison), on_error="skip", max_records=1)
    payloads = fleet.put(5)
    wait(fleet, told, [p for p in payloads if p != b"r2"])
    assert [event.records for event in fleet.happened(BatchSkipped)] == [1]
    assert b"r2" not in told.payloads


def test_a_lease_whose_initialize_raises_is_tried_again_with_a_new_instance(simulation):
    fleet, told, instances = Fleet(simulation, shards=1), Told(), []

    class Slow(Version1):
        def initialize(self, shard_id):
            instances.append(self)
            super().initialize(shard_id)
            if len(instances) < 3:
                raise OSError("the database is not there yet")

    start(fleet, Slow(told))
    payloads = fleet.put(3)
    wait(fleet, told, payloads)
    assert len(set(map(id, instances))) == 3
    assert told.payloads == payloads
    assert [event.method for event in fleet.happened(ProcessorRaised)] == ["initialize"] * 2


def test_a_lease_whose_initialize_never_works_is_handed_back(simulation):
    fleet = Fleet(simulation, shards=1)

    class Hopeless(Version1):
        def initialize(self, shard_id):
            raise OSError("no such host")

    start(fleet, Hopeless(Told()), retry_timeout=5.0)
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the hand-back")
    assert fleet.rows()[FIRST].checkpoint.is_start


@pytest.mark.parametrize("kind", [Version1, Version3])
def test_a_shard_end_that_is_not_checkpointed_is_told_and_asked_for_again(kind, simulation):
    fleet, told, ends = Fleet(simulation, shards=1), Told(), []

    class Forgetful(kind):
        def shutdown(self, checkpointer, reason):
            ends.append(reason)
            if len(ends) > 2:
                checkpointer.checkpoint()

        def shard_ended(self, shard_ended_input):
            self.shutdown(shard_ended_input.checkpointer, "TERMINATE")

    start(fleet, Forgetful(told))
    wait(fleet, told, fleet.put(5))
    fleet.kinesis.split(STREAM, FIRST)
    fleet.wait(lambda: fleet.rows()[FIRST].is_ended, what="the end")
    assert ends == ["TERMINATE"] * 3
    assert len(fleet.happened(ShardEndNotCheckpointed)) == 2


def test_sys_exit_stops_the_worker_and_leaves_its_batch_to_the_next(simulation):
    fleet, told = Fleet(simulation), Told()

    def leave(self, records, checkpointer):
        checkpoint(told, self.shard, checkpointer)
        if any(record.binary_data == b"exit" for record in records):
            raise SystemExit(3)

    started = start(fleet, Version3(told, leave), max_records=1)
    wait(fleet, told, fleet.put(10))
    before = {key: lease.checkpoint for key, lease in fleet.rows().items()}
    assert not any(position.is_start for position in before.values())
    told.calls.clear()
    fleet.kinesis.put_record(STREAM, b"exit", "r0")
    fleet.wait(lambda: started.exits, what="the exit")
    started.worker.stop()
    ((shard, method, code),) = started.exits
    assert (method, code) == ("process_records", 3)
    other = ({FIRST, "shardId-000000000001"} - {shard}).pop()
    # It is gone, as its process would be; the other one has its last chance to checkpoint.
    assert told.of("shutdownRequested") == [(other, "shutdownRequested")]
    assert fleet.rows()[other].checkpoint == before[other]
    assert not any(fleet.owners().values())


def test_sys_exit_before_its_checkpoint_leaves_the_position_where_it_was(simulation):
    fleet, told = Fleet(simulation, shards=1), Told()

    def leave(self, records, checkpointer):
        raise SystemExit

    started = start(fleet, Version1(told, leave))
    fleet.put(5)
    fleet.wait(lambda: started.exits, what="the exit")
    started.worker.stop()
    assert fleet.rows()[FIRST].checkpoint.is_start
    assert told.calls == [(FIRST, "initialize")]


@pytest.mark.parametrize("way", [SystemExit, SystemExit(3), KeyboardInterrupt])
def test_who_leaves_behind_the_checkpoint_of_a_shards_end_has_ended_it(way, simulation):
    fleet, told = Fleet(simulation, shards=1), Told()

    class Leaving(Version3):
        def shard_ended(self, shard_ended_input):
            super().shard_ended(shard_ended_input)
            raise way

    started = start(fleet, Leaving(told))
    wait(fleet, told, fleet.put(5))
    fleet.kinesis.split(STREAM, FIRST)
    fleet.wait(lambda: fleet.rows()[FIRST].is_ended, what="the end")
    assert told.of("shardEnded") == [(FIRST, "shardEnded")]
    if way is not KeyboardInterrupt:
        fleet.wait(lambda: started.exits, what="the exit")
        assert [method for _, method, _ in started.exits] == ["shard_ended"]
        fleet.workers.pop("one")
        started = start(fleet, Version3(told), "two")
    wait(fleet, told, fleet.put(20))
    assert len({shard for shard, *_ in told.of("records")}) == 3


def test_the_checkpointer_of_the_process_is_that_of_the_shard_whose_method_runs():
    with ExitStack() as stack:
        fleet, told = Fleet(stack.enter_context(Simulation(seed=1))), Told()
        process = kcl.CheckpointerOfCaller()

        def by_the_process(self, records, checkpointer):
            checkpoint(told, self.shard, process, records[-1].sequence_number)

        start(fleet, Version1(told, by_the_process))
        wait(fleet, told, fleet.put(20))
        assert {shard for shard, *_ in told.of("checkpointed")} == set(fleet.rows())
        for shard, _, number in told.of("checkpointed"):
            assert int(fleet.rows()[shard].checkpoint.sequence_number) >= int(number)
        with pytest.raises(kcl.CheckpointError) as refused:
            process.checkpoint()
        assert refused.value.value == "InvalidStateException"


def test_a_processor_that_left_is_called_no_more_and_nothing_counts_as_done():
    told, exits = Told(), []

    def leave(self, records, checkpointer):
        raise SystemExit(3)

    factory, _, _ = processor_factory(Version3(told, leave), lambda *what: exits.append(what[:2]))
    processor, batch = factory(), Batch((), Refusing(), 0, FIRST, STREAM)
    processor.initialize(InitializationInput(FIRST, STREAM, AT_TRIM_HORIZON, None, 1, Refusing()))
    for _ in range(2):
        with pytest.raises(SystemExit):
            processor.process_records(batch)
    with pytest.raises(SystemExit):
        processor.shard_ended(ShardEndedInput(FIRST, STREAM, (), Refusing()))
    processor.shutdown_requested(ShutdownRequestedInput(FIRST, STREAM, Refusing()))
    processor.lease_lost(LeaseLostInput(FIRST, STREAM))
    assert told.calls == [(FIRST, "initialize")]
    assert exits == [(FIRST, "process_records")]


class Refusing:
    """A checkpointer of a lease that is lost."""

    def checkpoint(self, at=None, sub_sequence_number=0):
        raise LeaseLostError("gone")


@pytest.mark.parametrize("kind", ALL)
def test_when_the_worker_stops_there_is_a_last_chance_to_checkpoint_and_then_the_lease_is_lost(
    kind, simulation
):
    fleet, told = Fleet(simulation, shards=1), Told()
    started = start(fleet, kind(told))
    payloads = fleet.put(5)
    wait(fleet, told, payloads)
    assert fleet.rows()[FIRST].checkpoint.is_start
    started.worker.stop()
    requested = "shutdown_requested" if ZOMBIE[kind] == "ZOMBIE" else "shutdownRequested"
    told_at_last = [(FIRST, requested), (FIRST, "checkpointed"), (FIRST, ZOMBIE[kind])]
    # As under Java, where it is what closes files and connections of versions 1 and 2.
    assert [
        call for call in told.calls if call[1] not in ("initialize", "records", "refused")
    ] == told_at_last
    assert not fleet.rows()[FIRST].checkpoint.is_start


def test_a_last_chance_that_raises_is_followed_by_the_loss_all_the_same_and_each_is_told_once():
    told = Told()

    class Raising(Version3):
        def shutdown_requested(self, shutdown_requested_input):
            raise KeyError("not now")

    processor = processor_factory(Raising(told), None)[0]()
    processor.initialize(InitializationInput(FIRST, STREAM, AT_TRIM_HORIZON, None, 1, Refusing()))
    with pytest.raises(KeyError):
        processor.shutdown_requested(ShutdownRequestedInput(FIRST, STREAM, Refusing()))
    processor.lease_lost(LeaseLostInput(FIRST, STREAM))
    processor.shutdown_requested(ShutdownRequestedInput(FIRST, STREAM, Refusing()))
    assert told.calls == [(FIRST, "initialize"), (FIRST, "leaseLost")]


@pytest.mark.parametrize("on_error", ["retry", "skip"])
def test_what_would_have_ended_a_child_costs_the_instance_and_never_skips_a_record(
    on_error, simulation, caplog
):
    fleet, told, instances = Fleet(simulation, shards=1), Told(), []

    def fail_once(self, records, checkpointer):
        instances.append(self)
        # The first batch returns unconfirmed; the second one ends the first instance.
        if len(instances) == 2:
            raise Cancelled

    with caplog.at_level(logging.ERROR, "pykcl.kclpy"):
        start(fleet, Version1(told, fail_once), max_records=1, on_error=on_error)
        payloads = fleet.put(3)
        wait(fleet, told, payloads)
    assert told.payloads == [payloads[0], *payloads], "the new one begins at the last checkpoint"
    assert instances[0] is instances[1] is not instances[2]
    assert told.of("initialize") == [(FIRST, "initialize")] * 2
    assert not told.of("ZOMBIE"), "it is gone, and is not called again"
    assert [event.error for event in fleet.happened(ProcessorRaised)] == ["RestartShard"]
    assert fleet.happened(ProcessorRaised)[0].where.startswith("test_processors.py:")
    assert "error=Cancelled" in caplog.text
    assert "shard=shardId-000000000000 method=process_records" in caplog.text


def test_policies_apply_and_the_poison_alone_is_given_up(simulation):
    fleet, told = Fleet(simulation, shards=1), Told()
    kept = []

    def refuse_poison(self, records, checkpointer):
        if any(record.binary_data == b"r2" for record in records):
            raise KeyError("poison")

    payloads = fleet.put(5)
    start(fleet, Version3(told, refuse_poison), max_attempts=2, bisect=True, dead_letters=kept.extend)
    wait(fleet, told, [p for p in payloads if p != b"r2"])
    fleet.wait(lambda: kept, what="the dead letter")
    assert [[record.data for record in letter.records] for letter in kept] == [[b"r2"]]
    assert sorted(told.payloads) == sorted(p for p in payloads if p != b"r2")
    assert {letter.processor.rpartition(":")[2] for letter in kept} == {"Version3"}
