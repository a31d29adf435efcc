"""A Lambda handler under the unmodified worker: attempts, dead letters, filtered pages, and one call at a time."""

import contextvars
import sys
import threading
import time

import pytest
from powertools_functions import seen, with_batch_processor

from pykcl import RecordProcessor, Worker, lambda_processor
from pykcl.errors import LeaseLostError, StopTimedOut
from pykcl.events import LeaseLost, ProcessorRaised, ProcessorSlow
from pykcl.runtime import SystemRuntime
from pykcl.testing import records, run_processor
from pykcl.worker.turns import StopAsked, Turns

SYSTEM = SystemRuntime()


def orders(count, bad=()):
    return records(*({"id": number, "bad": number in bad} for number in range(count)))


def given_up(result):
    return [[record.json()["id"] for record in letter.records] for letter in result.dead_letters]


def raised(result):
    return [event for event in result.events if isinstance(event, ProcessorRaised)]


# -- attempts --------------------------------------------------------------------------------------------------


def test_a5_2_two_of_ten_fail_and_become_two_letters_and_eight_are_settled():
    seen.clear()
    result = run_processor(
        lambda_processor(with_batch_processor, report_batch_item_failures=True),
        orders(10, bad={3, 6}),
        max_attempts=3,
        bisect=True,
        dead_letters=[].extend,
    )
    assert given_up(result) == [[3], [6]]
    assert {letter.processor for letter in result.dead_letters} == {
        "powertools_functions:with_batch_processor"
    }
    assert set(seen) == {0, 1, 2, 4, 5, 7, 8, 9}
    # What comes behind the lower failure comes again, as in Lambda.
    assert seen.count(0) == 1
    assert seen.count(4) > 1
    assert result.checkpoints[-1] == "SHARD_END"
    assert result.lost == 0


def test_a_response_that_names_no_record_costs_attempts_and_the_batch_is_given_up():
    def handler(event, context):
        return {"batchItemFailures": [{"itemIdentifier": ""}]}

    result = run_processor(
        lambda_processor(handler, report_batch_item_failures=True),
        orders(3),
        max_attempts=2,
        dead_letters=[].extend,
    )
    assert given_up(result) == [[0, 1, 2]]
    assert [(event.error, event.code, event.attempt) for event in raised(result)] == [
        ("ResponseRefused", "E24", 1),
        ("ResponseRefused", "E24", 2),
    ]


def test_a_coroutine_costs_no_attempt_and_no_record_is_given_up():
    calls = []

    async def coroutine():
        pass

    def handler(event, context):
        calls.append(event)
        return coroutine() if len(calls) < 5 else None

    result = run_processor(lambda_processor(handler), orders(3), max_attempts=2, dead_letters=[].extend)
    assert result.dead_letters == []
    assert {(event.error, event.code) for event in raised(result)} == {("HandlerRanNothing", "E23")}
    assert len(calls) == 5
    assert result.lost == 0


def test_a5_4_sys_exit_is_tried_again_and_ends_neither_the_worker_nor_the_record():
    calls = []

    def handler(event, context):
        calls.append(event)
        if len(calls) < 4:
            sys.exit(1)

    result = run_processor(lambda_processor(handler), orders(2), max_attempts=2, dead_letters=[].extend)
    assert [event.error for event in raised(result)] == ["SystemExit"] * 3
    assert result.dead_letters == []
    assert result.lost == 0
    assert [len(event["Records"]) for event in calls] == [2] * 4


def test_the_context_names_application_and_shard_and_each_attempt_has_an_id_of_its_own():
    contexts = []

    def handler(event, context):
        contexts.append(context)
        if len(contexts) == 1:
            raise ValueError

    result = run_processor(lambda_processor(handler), orders(1))
    shard = result.records[0].shard_id
    assert {(one.function_name, one.log_stream_name) for one in contexts} == {
        (contexts[0].function_name, shard)
    }
    assert contexts[0].function_name
    assert contexts[0].invoked_function_arn.startswith("arn:aws:lambda:us-east-1:")
    assert len({one.aws_request_id for one in contexts}) == 2


# -- filters ---------------------------------------------------------------------------------------------------


def test_a6_a_page_of_nothing_but_filtered_records_moves_the_checkpoint_without_a_call():
    def handler(event, context):
        raise AssertionError("called")

    criteria = {"Filters": [{"Pattern": '{"data": {"id": [{"numeric": [">", 100]}]}}'}]}
    result = run_processor(
        lambda_processor(handler, filter_criteria=criteria), [*orders(5), *records(b"no json")], end="stop"
    )
    assert len(result.checkpointed) == 6
    assert result.lost == 0


def test_a6_filtered_poison_reaches_neither_the_handler_nor_the_dead_letters():
    done = []
    result = run_processor(
        lambda_processor(
            lambda event, context: done.extend(event["Records"]),
            filter=lambda record: not record.json()["bad"],
        ),
        orders(6, bad={1, 2, 5}),
        max_attempts=1,
        dead_letters=[].extend,
    )
    assert len(done) == 3
    assert result.dead_letters == []
    assert result.lost == 0


def test_a6_a_filter_that_raises_is_a_handler_that_raised_and_its_record_is_given_up():
    done = []
    result = run_processor(
        lambda_processor(
            lambda event, context: done.extend(event["Records"]),
            filter=lambda record: record.json() is not None,
        ),
        [*orders(3), *records(b"no json"), *orders(2)],
        max_attempts=2,
        bisect=True,
        dead_letters=[].extend,
    )
    assert [[record.data for record in letter.records] for letter in result.dead_letters] == [[b"no json"]]
    assert len(done) == 5
    assert result.lost == 0


# -- one call at a time ----------------------------------------------------------------------------------------


class Overlaps:
    """A handler that counts its calls, and those that began before another one had ended."""

    def __init__(self, meet=None):
        self.calls, self.overlaps, self.running, self.meet = 0, 0, 0, meet

    def __call__(self, event, context):
        self.running += 1
        self.calls += 1
        self.overlaps += self.running > 1
        if self.meet is not None:
            self.meet.wait(10)
        else:
            time.sleep(0)  # another thread may run
        self.running -= 1


@pytest.mark.parametrize("policies", [{}, {"max_attempts": 2, "bisect": True, "dead_letters": "discard"}])
def test_a5_3_two_shards_and_a_thousand_batches_are_never_two_calls_at_once(kinesis, worker, policies):
    handler = Overlaps()
    kinesis.create_stream("orders", 2)
    kinesis.put("orders", *({"id": number} for number in range(1000)))
    options = {"batch_size": 1, "checkpoint_mode": "interval", **policies}
    result = worker(lambda_processor(handler), "orders", **options).wait_delivered()
    assert (handler.calls, handler.overlaps) == (1000, 0)
    assert {call.shard for call in result.calls} == set(kinesis.shards("orders"))


def test_a5_3_a_handler_that_is_thread_safe_is_called_twice_at_once(kinesis, worker):
    handler = Overlaps(threading.Barrier(2))
    kinesis.create_stream("orders", 2)
    kinesis.put("orders", *({"id": number} for number in range(20)))
    running = worker(lambda_processor(handler, handler_is_thread_safe=True), "orders", max_records=1000)
    running.wait_delivered()
    assert handler.overlaps >= 1


def test_a_processor_that_another_class_wraps_still_waits_for_its_turn(kinesis, worker):
    handler = Overlaps()

    class Wrapped(RecordProcessor):
        def __init__(self):
            self.inner = lambda_processor(handler)()

        def initialize(self, init):
            self.inner.initialize(init)

        def process_records(self, batch):
            self.inner.process_records(batch)

    kinesis.create_stream("orders", 2)
    kinesis.put("orders", *({"id": number} for number in range(300)))
    worker(Wrapped, "orders", batch_size=1, checkpoint_mode="interval").wait_delivered()
    assert (handler.calls, handler.overlaps) == (300, 0)


def test_a5_4_shards_that_wait_for_a_slow_handler_keep_their_leases_and_are_not_reported(new_fleet):
    fleet, calls = new_fleet(shards=4), []

    def handler(event, context):
        calls.append(event)
        # Longer than a lease lasts without heartbeats, and than processor_timeout with those of three others.
        fleet.simulation.sleep(30)
        assert context.get_remaining_time_in_millis() > 0

    fleet.start("w1", processor=lambda_processor(handler), processor_warn_after=20.0, processor_timeout=40.0)
    fleet.put(40)
    fleet.wait(lambda: len(calls) == 4, 300, "a call for each shard")
    fleet.simulation.sleep(35)
    assert [event.worker_id for event in fleet.happened(LeaseLost)] == []
    assert len(fleet.happened(ProcessorSlow)) == 4
    assert list(fleet.owners().values()) == ["w1"] * 4


def test_a5_4_a_worker_that_stops_begins_no_call_that_waits_for_its_turn(new_fleet):
    fleet, calls = new_fleet(shards=4), []

    def handler(event, context):
        calls.append(event)
        fleet.simulation.sleep(20)

    fleet.start("w1", processor=lambda_processor(handler))
    fleet.put(40)
    fleet.wait(lambda: calls, what="a call")
    fleet.workers["w1"].stop()
    assert len(calls) == 1
    assert list(fleet.owners().values()) == [None] * 4


# -- one thread ------------------------------------------------------------------------------------------------

TENANT = contextvars.ContextVar("tenant", default="nobody")


class InTheThread:
    """A handler that notes its threads, and what it finds there; it stops the worker once it has had 20 records."""

    def __init__(self):
        self.records, self.threads, self.found, self.worker = 0, set(), set(), None

    def __call__(self, event, context):
        self.records += len(event["Records"])
        self.threads.add(threading.current_thread())
        self.found.add(TENANT.get())
        if self.records >= 20 and self.worker is not None:
            self.worker.stop()


def worker_of(kinesis, handler, **options):
    kinesis.create_stream("orders", 3)
    kinesis.put("orders", *({"id": number} for number in range(20)))
    processor = lambda_processor(handler)
    return Worker(
        "orders-app", stream="orders", processor=processor, initial_position="TRIM_HORIZON", **options
    )


def test_run_calls_the_handler_in_its_own_thread_where_it_may_stop_the_worker(kinesis):
    handler = InTheThread()
    handler.worker = worker_of(kinesis, handler, max_records=2)
    handler.worker.run(tune_gc=False)
    assert handler.threads == {threading.current_thread()}


def test_start_calls_it_in_one_thread_for_all_its_life_with_the_context_of_its_making(kinesis, worker):
    handler = InTheThread()
    token = TENANT.set("alice")
    processor = lambda_processor(handler)
    TENANT.reset(token)
    kinesis.create_stream("orders", 3)
    for _ in range(2):
        kinesis.put("orders", *({"id": number} for number in range(20)))
        running = worker(processor, "orders", max_records=2)
        running.wait_delivered()
        running.stop()
    assert len(handler.threads) == 1
    assert threading.current_thread() not in handler.threads
    assert handler.found == {"alice"}


def test_a_stop_that_waits_no_longer_breaks_off_the_call_in_the_main_thread(kinesis):
    left = []

    def handler(event, context):
        worker.stop()
        try:
            threading.Event().wait()
        finally:
            left.append(threading.current_thread())

    worker = worker_of(kinesis, handler, shutdown_grace=0.2)
    with pytest.raises(StopTimedOut):
        worker.run(tune_gc=False)
    assert left == [threading.main_thread()]


def test_two_workers_of_a_simulation_call_one_handler_at_the_same_time(new_fleet):
    fleet, calls = new_fleet(shards=2), []

    def handler(event, context):
        calls.append(event)
        fleet.simulation.sleep(30)
        assert len(calls) >= 2

    processor = lambda_processor(handler)
    for name in ("w1", "w2"):
        fleet.start(name, processor=processor)
    fleet.wait(lambda: {"w1", "w2"} == set(fleet.owners().values()), 300, "a lease for each")
    fleet.put(20)
    fleet.wait(lambda: len(calls) >= 2, 300, "two calls")
    fleet.simulation.sleep(60)
    assert fleet.happened(ProcessorRaised) == []


def test_a_call_of_ten_failover_times_costs_no_lease_and_its_report_names_the_thread(new_fleet):
    fleet, calls = new_fleet(shards=3), []

    def handler(event, context):
        calls.append(event)
        fleet.simulation.sleep(10 * fleet.workers["w1"].config.failover_time)

    fleet.start("w1", processor=lambda_processor(handler), processor_warn_after=20.0)
    fleet.put(30)
    fleet.wait(lambda: len(calls) == 3, 600, "a call for each shard")
    assert fleet.happened(LeaseLost) == []
    assert {event.thread for event in fleet.happened(ProcessorSlow)} == {"pykcl-calls"}
    assert any(line.endswith(" in handler") for line in fleet.happened(ProcessorSlow)[0].stack)


# -- turns -----------------------------------------------------------------------------------------------------


def test_turns_go_in_the_order_of_asking():
    turns, order, waiting = Turns(), [], []

    def take(number):
        with turns.taken(SYSTEM, lambda _: False):
            order.append(number)

    with turns.taken(SYSTEM, lambda _: False):
        for number in range(5):
            thread = threading.Thread(target=take, args=(number,))
            thread.start()
            waiting.append(thread)
            while turns.count(SYSTEM) < number + 2:
                time.sleep(0)
    for thread in waiting:
        thread.join(300)
    assert order == list(range(5))


@pytest.mark.parametrize("ends", [StopAsked, LeaseLostError])
def test_who_stops_or_loses_its_lease_leaves_the_queue(ends):
    turns = Turns()

    def pause(seconds):
        if ends is StopAsked:
            return True
        raise LeaseLostError("taken")

    with turns.taken(SYSTEM, lambda _: False), pytest.raises(ends), turns.taken(SYSTEM, pause):
        raise AssertionError
    with turns.taken(SYSTEM, lambda _: False):
        assert turns.count(SYSTEM) == 1
    assert turns.count(SYSTEM) == 0
