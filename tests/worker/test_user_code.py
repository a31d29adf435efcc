"""What the worker makes of code that runs nothing, leaves by other ways than an exception, or checkpoints inside its batch."""

import asyncio
import functools
import gc
import json
import logging

import pytest

from pykcl import Worker
from pykcl.errors import ConfigError, NotAProcessor, ProcessorFailed
from pykcl.events import BatchSkipped, NeverCheckpointed, ProcessorRaised, RetriesExhausted
from pykcl.model.checkpoint import Checkpoint
from pykcl.processor import RecordProcessor
from pykcl.testing.fleet import STREAM

METHODS = ("initialize", "process_records", "lease_lost", "shard_ended", "shutdown_requested")


async def coroutine(self, argument):
    pass


def generator(self, argument):
    yield argument


async def async_generator(self, argument):
    yield argument


class AwaitedCall:
    async def __call__(self, argument):
        pass


LAZY = {
    "async def": coroutine,
    "yield": generator,
    "async yield": async_generator,
    "partial": functools.partial(coroutine, None),
    "async call": AwaitedCall(),
    "static": staticmethod(functools.partial(generator, None)),
}


def written(**methods):
    """A processor class with these methods."""
    return type("Written", (RecordProcessor,), {"process_records": lambda self, batch: None, **methods})


def worker_of(processor):
    return Worker("orders-app", stream="orders", processor=processor)


# -- calls that run nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", LAZY)
def test_a_method_whose_call_runs_nothing_is_refused_when_the_worker_is_made(method, kind):
    with pytest.raises(ConfigError, match=rf"{method}.*(async def|yield)") as raised:
        worker_of(written(**{method: LAZY[kind]}))
    assert type(raised.value) is NotAProcessor
    assert raised.value.code == "E15"


@pytest.mark.parametrize("arguments", [(), (1,)])
def test_so_is_a_partial_of_such_a_class(arguments):
    with pytest.raises(ConfigError, match="process_records"):
        worker_of(functools.partial(written(process_records=coroutine), *arguments))


@pytest.mark.parametrize("function", [coroutine, generator])
def test_and_a_factory_that_is_itself_one(function):
    with pytest.raises(ConfigError, match="factory"):
        worker_of(functools.partial(function, None, None))


def test_what_a_factory_makes_is_looked_at_before_its_first_call_and_stops_the_worker(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)

    def make():
        return written(process_records=coroutine)()

    worker = fleet.start("w1", processor=make)
    fleet.wait(lambda: worker.failure is not None, what="the refusal")
    assert isinstance(worker.failure, NotAProcessor)
    assert worker.failure.code == "E15"
    assert fleet.rows()["shardId-000000000000"].checkpoint.is_start


def awaited(function):
    @functools.wraps(function)
    def run(self, argument):
        return asyncio.run(function(self, argument))

    return run


def test_who_runs_the_coroutine_is_no_concern_of_the_worker(new_fleet):
    fleet, seen = new_fleet(shards=1), []

    async def process_records(self, batch):
        seen.extend(record.data for record in batch)

    put = fleet.put(3)
    fleet.start("w1", processor=written(process_records=awaited(process_records)))
    fleet.wait(lambda: set(put) <= set(seen), what="the records")
    assert not fleet.happened(ProcessorRaised)


def called_by_another(function):
    """Nobody can know what a call of it returns."""

    def call(*arguments):
        return function(*arguments)

    return call


class Awaitable:
    def __await__(self):
        yield


RETURNED = {
    "coroutine": lambda: coroutine(None, None),
    "generator": lambda: generator(None, None),
    "async_generator": lambda: async_generator(None, None),
    "Awaitable": Awaitable,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("on_error", ["retry", "skip", "raise"])
@pytest.mark.parametrize("kind", RETURNED)
def test_a_call_that_returns_what_nobody_runs_has_failed_and_checkpoints_nothing(new_fleet, kind, on_error):
    fleet = new_fleet(shards=1)
    fleet.put(3)
    made = written(process_records=lambda self, batch: RETURNED[kind]())
    worker = fleet.start("w1", processor=made, on_error=on_error, retry_timeout=20.0)
    if on_error == "raise":
        fleet.wait(lambda: worker.failure is not None, what="the failure")
        assert isinstance(worker.failure, ProcessorFailed)
        assert kind in str(worker.failure)
    else:
        fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the hand-back")
    event = fleet.happened(ProcessorRaised)[0]
    assert (event.method, event.error, event.records) == ("process_records", "NeverRan", 3)
    assert not fleet.happened(BatchSkipped)
    worker.stop()
    assert fleet.rows()["shardId-000000000000"].checkpoint.is_start
    gc.collect()


def test_where_it_says_is_where_the_function_is_written(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)
    fleet.start("w1", processor=written(process_records=called_by_another(coroutine)))
    fleet.wait(lambda: fleet.happened(ProcessorRaised), what="the failed call")
    where = fleet.happened(ProcessorRaised)[0].where
    assert where == f"test_user_code.py:{coroutine.__code__.co_firstlineno}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["initialize", "shutdown_requested"])
def test_so_has_any_other_call(new_fleet, method):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", processor=written(**{method: called_by_another(coroutine)}))
    fleet.simulation.sleep(10)
    worker.stop()
    assert {event.method for event in fleet.happened(ProcessorRaised)} == {method}
    assert fleet.owners() == {"shardId-000000000000": None}
    gc.collect()


def test_what_a_processor_returns_is_else_its_own_affair(new_fleet):
    fleet, seen = new_fleet(shards=1), []
    put = fleet.put(3)

    def process_records(self, batch):
        seen.extend(record.data for record in batch)
        return map(print, [1])

    fleet.start("w1", processor=written(process_records=process_records))
    fleet.wait(lambda: set(put) <= set(seen), what="the records")
    assert not fleet.happened(ProcessorRaised)


# -- a batch of which a part is checkpointed -------------------------------------------------------------------


class RecordByRecord(RecordProcessor):
    """Checkpoints each record it has handled; raises at the `fails_at`-th of all, so many times."""

    def __init__(self, handled, batches, fails_at=5, times=1, behind=0):
        self.handled, self.batches, self.fails_at, self.left, self.behind = (
            handled, batches, fails_at, times, behind,
        )  # fmt: skip

    def process_records(self, batch):
        self.batches.append(len(batch))
        for record in batch:
            if self.left and len(self.handled) == self.fails_at:
                self.left -= 1
                raise ConnectionError("once")
            self.handled.append(record.data)
            batch.checkpointer.checkpoint(record)


def record_by_record(fleet, **options):
    handled, batches, put = [], [], fleet.put(10)
    behaviour = {name: options.pop(name) for name in ("fails_at", "times") if name in options}
    worker = fleet.start("w1", processor=lambda: RecordByRecord(handled, batches, **behaviour), **options)
    return worker, handled, batches, put


@pytest.mark.parametrize("checkpoint", ["manual", "auto", "interval"])
@pytest.mark.parametrize("times", [1, 3])
def test_what_is_checkpointed_does_not_come_again_behind_a_batch_that_raised(new_fleet, checkpoint, times):
    fleet = new_fleet(shards=1)
    _, handled, batches, put = record_by_record(fleet, checkpoint_mode=checkpoint, times=times)
    fleet.wait(lambda: len(handled) >= len(put), what="the records")
    assert handled == put
    assert batches == [10] + [5] * times
    raised = fleet.happened(ProcessorRaised)
    assert [event.error for event in raised] == ["ConnectionError"] * times
    assert [event.records for event in raised] == [5] * times
    assert [event.attempt for event in raised] == list(range(1, times + 1))
    assert raised[0].first == str(Checkpoint(_stored(fleet)[5].sequence_number))


def _stored(fleet):
    iterator = fleet.kinesis.get_shard_iterator(STREAM, "shardId-000000000000", "TRIM_HORIZON")
    return fleet.kinesis.get_records(iterator).records


def test_a_batch_that_raises_behind_its_last_checkpoint_has_returned(new_fleet):
    fleet, batches = new_fleet(shards=1), []

    class CheckpointsAndRaises(RecordProcessor):
        def process_records(self, batch):
            batches.append([record.data for record in batch])
            batch.checkpointer.checkpoint()
            raise ConnectionError

    first = fleet.put(3)
    fleet.start("w1", checkpoint_mode="manual", processor=CheckpointsAndRaises)
    fleet.wait(lambda: batches, what="the first batch")
    second = fleet.put(3)
    fleet.wait(lambda: len(batches) > 1, what="the second batch")
    fleet.simulation.sleep(20)
    assert batches == [first, second]
    assert [(event.attempt, event.records) for event in fleet.happened(ProcessorRaised)] == [(1, 0)] * 2
    assert "step over" in fleet.happened(ProcessorRaised)[0].hint


def test_only_what_is_not_checkpointed_is_skipped(new_fleet):
    fleet = new_fleet(shards=1)
    record_by_record(fleet, on_error="skip")
    fleet.wait(lambda: fleet.happened(BatchSkipped), what="the skipped rest")
    (skipped,) = fleet.happened(BatchSkipped)
    assert (skipped.records, skipped.first) == (5, str(Checkpoint(_stored(fleet)[5].sequence_number)))


def test_a_batch_that_gets_further_at_each_attempt_is_not_given_up(new_fleet):
    fleet, handled = new_fleet(shards=1), []

    class OneEachTime(RecordProcessor):
        def process_records(self, batch):
            handled.append(batch.records[0].data)
            batch.checkpointer.checkpoint(batch.records[0])
            raise ConnectionError

    put = fleet.put(20)
    fleet.start("w1", checkpoint_mode="manual", retry_timeout=3.0, processor=OneEachTime)
    fleet.wait(lambda: len(handled) == len(put), what="the records")
    assert handled == put
    assert not fleet.happened(RetriesExhausted)


def test_a_checkpoint_that_an_earlier_owner_prepared_may_be_committed_within_a_batch(new_fleet):
    """It may lie beyond what this owner was delivered: the records up to it are done."""
    fleet, delivered = new_fleet(shards=1), []

    class Prepares(RecordProcessor):
        def process_records(self, batch):
            batch.checkpointer.prepare_checkpoint(batch.records[5])

    class Commits(RecordProcessor):
        def initialize(self, init):
            self.pending = init.pending

        def process_records(self, batch):
            delivered.append([record.data for record in batch])
            if self.pending is not None:
                batch.checkpointer.checkpoint(self.pending.checkpoint)
                self.pending = None

    put = fleet.put(10)
    first = fleet.start("w1", checkpoint_mode="manual", processor=Prepares)
    fleet.wait(lambda: any(row.pending for row in fleet.rows().values()), what="the first phase")
    first.stop()
    fleet.start("w2", checkpoint_mode="manual", processor=Commits, max_records=4)
    fleet.wait(lambda: any(put[-1] in batch for batch in delivered), what="the last record")
    assert delivered == [put[:4], put[6:8], put[8:]]


# -- what is no Exception --------------------------------------------------------------------------------------


class Timeout(BaseException):
    """As that of gevent."""


LEAVING = [asyncio.CancelledError, KeyboardInterrupt, Timeout, GeneratorExit]


@pytest.mark.parametrize("kind", LEAVING)
def test_whatever_leaves_a_batch_is_a_failed_call(new_fleet, kind):
    fleet, left, seen = new_fleet(shards=1), [3], []

    def process_records(self, batch):
        if left[0]:
            left[0] -= 1
            raise kind
        seen.extend(record.data for record in batch)

    put = fleet.put(3)
    fleet.start("w1", processor=written(process_records=process_records))
    fleet.wait(lambda: seen, what="the records")
    assert seen == put
    assert [(e.error, e.attempt) for e in fleet.happened(ProcessorRaised)] == [
        (kind.__name__, attempt) for attempt in (1, 2, 3)
    ]


@pytest.mark.parametrize("kind", LEAVING)
def test_and_costs_what_on_error_and_retry_for_say(new_fleet, kind):
    def process_records(self, batch):
        raise kind

    fleet = new_fleet(shards=1)
    fleet.put(3)
    fleet.start("w1", processor=written(process_records=process_records), retry_timeout=10.0)
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the hand-back")
    assert fleet.rows()["shardId-000000000000"].checkpoint.is_start
    fleet.workers["w1"].stop()
    stopped = fleet.start("w2", processor=written(process_records=process_records), on_error="raise")
    fleet.wait(lambda: stopped.failure is not None, what="the failure")
    assert isinstance(stopped.failure, ProcessorFailed)
    assert isinstance(stopped.failure.__cause__, kind)


@pytest.mark.parametrize("kind", [*LEAVING, RuntimeError])
def test_a_clean_stop_stays_clean_whatever_leaves_shutdown_requested(new_fleet, kind):
    fleet, seen = new_fleet(shards=1), []

    def shutdown_requested(self, request):
        raise kind

    put = fleet.put(3)
    methods = {
        "process_records": lambda self, batch: seen.extend(batch),
        "shutdown_requested": shutdown_requested,
    }
    worker = fleet.start(
        "w1", processor=written(**methods), checkpoint_mode="interval", checkpoint_interval=600.0
    )
    fleet.wait(lambda: len(seen) == len(put), what="the records")
    worker.stop()
    (row,) = fleet.rows().values()
    assert (row.owner, row.checkpoint) == (None, seen[-1].position)
    assert [event.error for event in fleet.happened(ProcessorRaised)] == [kind.__name__]


def test_a_thread_that_the_simulation_ends_has_not_raised_anything(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)

    def process_records(self, batch):
        fleet.simulation.sleep(1000)

    fleet.start("w1", processor=written(process_records=process_records))
    fleet.wait(lambda: "process_records" in fleet.workers["w1"].activities.values(), what="the call")
    (task,) = [task for task in fleet.simulation.unfinished("w1") if "shardId" in task.name]
    fleet.simulation.strike(task)
    fleet.wait(lambda: task.finished, what="the end of the thread")
    assert not fleet.happened(ProcessorRaised)


# -- what the log says of it -----------------------------------------------------------------------------------


def canary(record):
    return json.loads(b"{CANARY " + record.data)


def raises_times(count):
    left = [count]

    def process_records(self, batch):
        for record in batch:
            if left[0]:
                left[0] -= 1
                canary(record)

    return process_records


def log_of(fleet, caplog, times, **options):
    """Of a batch that raises so many times."""
    fleet.put(2)
    with caplog.at_level(logging.INFO):
        fleet.start("w1", processor=written(process_records=raises_times(times)), **options)
        fleet.wait(lambda: not all(row.checkpoint.is_start for row in fleet.rows().values()), what="its end")
    return [record for record in caplog.records if record.levelno == logging.ERROR]


def test_the_text_of_an_exception_and_its_frames_are_logged_on_request_once_for_the_same(new_fleet, caplog):
    told = log_of(new_fleet(shards=1), caplog, 3, show_errors=True)
    (shown,) = [record for record in told if record.exc_info]
    text = logging.Formatter().format(shown)
    assert "in canary" in text
    assert "JSONDecodeError" in text
    assert "Expecting property name" in text
    assert text.index("in process_records") < text.index("in canary") < text.index("in loads")
    assert "processor_calls.py" not in text
    assert "shard=shardId-000000000000 method=process_records" in text
    assert len(told) == 4


def test_without_that_they_are_not(new_fleet, caplog):
    fleet = new_fleet(shards=1)
    told = log_of(fleet, caplog, 3)
    assert [record.exc_info for record in told] == [None] * 3
    assert "CANARY" not in caplog.text
    assert "Expecting" not in caplog.text


def test_another_error_at_a_later_attempt_is_shown_too(new_fleet, caplog):
    fleet, errors = new_fleet(shards=1), [KeyError("one"), KeyError("one"), OSError("two")]

    def process_records(self, batch):
        if errors:
            raise errors.pop(0)

    fleet.put(1)
    fleet.start("w1", processor=written(process_records=process_records), show_errors=True)
    fleet.wait(lambda: not all(row.checkpoint.is_start for row in fleet.rows().values()), what="the end")
    shown = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert shown == [KeyError, OSError]


def test_only_the_first_attempt_tells_what_to_do(new_fleet, caplog):
    told = [record.getMessage() for record in log_of(new_fleet(shards=1), caplog, 3)]
    assert [" hint=" in line for line in told] == [True, False, False]
    assert [" docs=" in line for line in told] == [True, False, False]
    assert all(" code=E12" in line and " error=JSONDecodeError " in line for line in told)
    assert all(len(line) < 200 for line in told[1:]), told


# -- checkpoint_mode="manual" and no checkpoint ---------------------------------------------------------------------


def once(act):
    """A process_records that does so with its first batch."""

    def process_records(self, batch):
        if not hasattr(self, "did"):
            self.did = act(batch)

    return process_records


def told_of_no_checkpoint(fleet, batches, every, process_records, **options):
    worker = fleet.start("w1", processor=written(process_records=process_records), **options)
    for _ in range(batches):
        fleet.put(1)
        fleet.simulation.sleep(every)
    worker.stop()
    return fleet.happened(NeverCheckpointed)


def test_after_many_batches_and_minutes_without_a_checkpoint_that_is_told_once(new_fleet):
    fleet = new_fleet(shards=1)
    (event,) = told_of_no_checkpoint(fleet, 130, 6.0, once(lambda batch: None), checkpoint_mode="manual")
    assert (event.shard, event.LEVEL) == ("shardId-000000000000", logging.WARNING)
    assert 100 <= event.batches <= 105
    assert 600 <= event.seconds < 630


@pytest.mark.parametrize(
    ("batches", "every", "act", "options"),
    [
        (130, 6.0, lambda batch: batch.checkpointer.checkpoint(), {"checkpoint_mode": "manual"}),
        (130, 6.0, lambda batch: batch.checkpointer.prepare_checkpoint(), {"checkpoint_mode": "manual"}),
        (130, 6.0, lambda batch: None, {}),
        (130, 3.0, lambda batch: None, {"checkpoint_mode": "manual"}),
        (80, 12.0, lambda batch: None, {"checkpoint_mode": "manual"}),
    ],
    ids=["one checkpoint", "a prepared one", "automatic", "minutes too few", "batches too few"],
)
def test_of_all_else_that_is_not_told(new_fleet, batches, every, act, options):
    assert told_of_no_checkpoint(new_fleet(shards=1), batches, every, once(act), **options) == []
