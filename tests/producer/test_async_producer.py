"""AsyncProducer: what `Producer` promises, for tasks that wait, are cancelled, or do not ask. In simulated time."""

import asyncio
import gc
from itertools import pairwise

import pytest

from pykcl.awaiting import LoopEvent
from pykcl.errors import BufferFull, FlushTimedOut, NotDelivered, PyKclError, RecordRefused, TemporaryError
from pykcl.producer import producer as module
from pykcl.producer.async_producer import AsyncProducer
from pykcl.producer.producer import PutFailed
from pykcl.testing.runtime import Simulation
from pykcl.testing.runtime.event_loop import run_coroutine
from tests.producer.stream_kit import SIZE, Chaos, Stage, no_answer


@pytest.fixture(autouse=True)
def no_complaint_of_asyncio(caplog):
    """Neither of an exception that nobody retrieved, nor of a task or a callback that failed."""
    yield
    gc.collect()
    records = [*caplog.get_records("call"), *caplog.records]
    assert [record.getMessage() for record in records if record.name == "asyncio"] == []


def run(stage, main):
    return run_coroutine(stage.runtime, main)


def refused_in_another_loop(stage, *calls):
    """The errors of calls in the event loop of another thread."""
    errors = []

    async def main():
        for call in calls:
            try:
                await call()
            except PyKclError as error:
                errors.append(str(error))

    stage.simulation.spawn("other", "main", lambda: run(stage, main())).join()
    return errors


def no_trouble(_):
    return ()


async def started(stage, **options):
    producer = stage.producer(AsyncProducer, **options)
    await producer.start()
    return producer


# -- the start ---------------------------------------------------------------------------------------------------------


def test_of_two_tasks_that_start_a_producer_at_once_one_is_refused(stage):
    async def main():
        producer = stage.producer(AsyncProducer)
        outcomes = await asyncio.gather(producer.start(), producer.start(), return_exceptions=True)
        assert outcomes[0] is None
        assert "still starting this producer" in str(outcomes[1])
        # Those who wait for the first start are not disturbed: their futures are resolved in its loop.
        future = await producer.put(b"x")
        assert (await future).attempts == 1
        await producer.close()

    run(stage, main())
    assert stage.seen() == {b"x": 1}


# -- records get there -------------------------------------------------------------------------------------------------


def test_a_program_puts_records_and_awaits_their_places(stage):
    async def main():
        async with stage.producer(AsyncProducer) as producer:
            first = await producer.put({"id": 1}, "alice")
            second = await producer.put(b"b", explicit_hash_key=0)
            assert producer.pending == 2
            assert (await first).attempts == 1
            await producer.flush()
            assert second.result().shard_id == "shardId-000000000000"
            assert producer.pending == 0
            await producer.put(b"c")
        assert producer.closed

    run(stage, main())
    assert stage.seen() == {b'{"id":1}': 1, b"b": 1, b"c": 1}


def test_a_flush_finds_the_futures_of_all_records_before_it_resolved(stage):
    async def main():
        async with stage.producer(AsyncProducer) as producer:
            waited = await producer.put(b"a")
            await producer.flush()
            assert waited.done()
            known = await producer.put(b"b")
            # The loop stands still, and the threads do not.
            stage.sleep(5)
            assert producer.pending == 0
            await producer.flush()
            assert known.done()

    run(stage, main())


def test_the_loop_goes_on_while_aws_is_slow(stage):
    def slow(*_):
        stage.sleep(30)

    async def seconds_between_turns(wait):
        """Seconds between those of a task that wants one each second meanwhile."""
        loop, turns = asyncio.get_running_loop(), []

        async def tick():
            while True:
                turns.append(loop.time())
                await asyncio.sleep(1)

        ticking = asyncio.create_task(tick())
        await wait
        ticking.cancel()
        assert len(turns) > 25
        return {round(after - before, 3) for before, after in pairwise(turns)}

    async def main():
        describe, stage.describe = stage.describe, lambda: slow() or describe()
        producer = stage.producer(AsyncProducer)
        assert await seconds_between_turns(producer.start()) == {1}
        stage.answer = slow
        await producer.put(b"a")
        assert await seconds_between_turns(producer.flush()) == {1}
        await producer.put(b"b")
        assert await seconds_between_turns(producer.close()) == {1}

    run(stage, main())


def test_a_task_that_only_puts_lets_others_go_on(stage):
    async def main():
        passed = []

        async def other():
            while True:
                passed.append(producer.pending)
                await asyncio.sleep(0)

        async with stage.producer(AsyncProducer, linger=60) as producer:
            other_one = asyncio.create_task(other())
            for _ in range(1000):
                await producer.put(b"x")
            other_one.cancel()
        assert len(passed) > 10

    run(stage, main())


# -- order and room ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [2**20, 3 * SIZE])
def test_records_go_in_the_order_in_which_tasks_have_put_them(stage, bound):
    """Small ones, too, behind a large one for which there is no room yet."""
    words = [b"%03d" % at + b"." * (2500 if at % 3 else 1) for at in range(300)]

    async def main():
        options = {"aggregate": False, "connections": 1, "max_pending_bytes": bound, "linger": 0.0}
        async with stage.producer(AsyncProducer, **options) as producer:
            await asyncio.gather(*(producer.put(word, "k", timeout=600) for word in words[:200]))
            for word in words[200:]:
                await producer.put(word, "k")

    run(stage, main())
    assert [record.data for records in stage.requests for record in records] == words


def test_put_waits_while_the_memory_is_full_and_the_bound_holds(stage):
    stage.trouble = no_answer

    async def main():
        producer = await started(stage, max_pending_bytes=10 * SIZE)
        taken = []

        async def program():
            for _ in range(5):
                taken.append(await producer.put(b"x" * 1000, "k"))

        tasks = [asyncio.create_task(program()) for _ in range(8)]
        await asyncio.sleep(5)
        assert len(taken) == producer.pending == 10
        stage.trouble = no_trouble
        await asyncio.gather(*tasks)
        await producer.close()
        assert len(taken) == 40

    run(stage, main())
    assert stage.seen() == {b"x" * 1000: 40}


@pytest.mark.parametrize(
    ("options", "timeout", "waited"),
    [({"on_full": "raise"}, None, 0), ({}, 3, 3), ({}, 0, 0)],
)
def test_a_full_buffer_can_be_an_error_that_takes_nothing(stage, options, timeout, waited):
    stage.trouble = no_answer

    async def main():
        producer = await started(stage, max_pending_bytes=2 * SIZE, **options)
        for _ in range(2):
            await producer.put(b"x" * 1000, "k", timeout=timeout)
        began = stage.runtime.monotonic()
        # The second one waits for the first one, which waits for room.
        late = await asyncio.gather(
            *(producer.put(b"y" * 1000, "k", timeout=timeout) for _ in range(2)), return_exceptions=True
        )
        assert [type(error) for error in late] == [BufferFull, BufferFull]
        assert stage.runtime.monotonic() - began == pytest.approx(waited)
        stage.trouble = no_trouble
        await producer.close()

    run(stage, main())
    assert stage.seen() == {b"x" * 1000: 2}


def test_puts_that_wait_for_room_end_with_close_and_take_nothing(stage):
    stage.trouble = no_answer

    async def main():
        producer = await started(stage, max_pending_bytes=SIZE)
        await producer.put(b"x" * 1000, "k")
        waiting = [asyncio.create_task(producer.put(b"y" * 1000, "k")) for _ in range(3)]
        await asyncio.sleep(1)
        with pytest.raises(PutFailed, match="1 records"):
            await producer.close(timeout=1)
        assert [type(task.exception()) for task in waiting] == [BufferFull] * 3
        with pytest.raises(PyKclError, match="is closed"):
            await producer.put(b"z")

    run(stage, main())


# -- cancellation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cancelled", [0, 1, 2])
def test_a_put_that_is_cancelled_while_it_waits_takes_nothing_and_lets_the_others_pass(stage, cancelled):
    stage.trouble = no_answer

    async def main():
        async with stage.producer(AsyncProducer, max_pending_bytes=SIZE) as producer:
            await producer.put(b"x" * 1000, "k")
            waiting = [asyncio.create_task(producer.put(b"%d" % at * 1000, "k")) for at in range(3)]
            await asyncio.sleep(1)
            waiting[cancelled].cancel()
            await asyncio.sleep(1)
            stage.trouble = no_trouble
            await asyncio.wait(waiting)
            assert [task.cancelled() for task in waiting] == [at == cancelled for at in range(3)]

    run(stage, main())
    assert stage.seen() == {b"x" * 1000: 1} | {b"%d" % at * 1000: 1 for at in range(3) if at != cancelled}


def test_a_put_that_is_cancelled_just_as_there_is_room_is_either_taken_or_cancelled(stage):
    both = set()

    async def put_and_cancel(steps):
        stage.trouble = no_answer
        async with stage.producer(AsyncProducer, max_pending_bytes=SIZE) as producer:
            before = await producer.put(b"x" * 1000, "k")
            data = b"%d" % steps * 1000
            waiting = asyncio.create_task(producer.put(data, "k", timeout=60))
            await asyncio.sleep(1)
            stage.trouble = no_trouble
            await before
            for _ in range(steps):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        both.add(waiting.cancelled())
        assert stage.seen()[data] == (not waiting.cancelled())

    for steps in range(8):
        run(stage, put_and_cancel(steps))
    assert both == {True, False}


def test_a_cancelled_flush_changes_nothing(stage):
    stage.trouble = no_answer

    async def main():
        async with stage.producer(AsyncProducer) as producer:
            future = await producer.put(b"a")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    await producer.flush()
            with pytest.raises(FlushTimedOut, match="1 records"):
                await producer.flush(timeout=1)
            assert not future.done()
            stage.trouble = no_trouble
            await producer.flush()
            assert future.result().perhaps_twice

    run(stage, main())
    assert stage.seen() == {b"a": 1}


def test_a_cancelled_future_changes_nothing_for_its_record(stage):
    async def main():
        async with stage.producer(AsyncProducer, record_ttl=5) as producer:
            (await producer.put(b"a")).cancel()
            await producer.flush()
            stage.trouble = no_answer
            (await producer.put(b"b")).cancel()
            with pytest.raises(PutFailed) as failed:
                await producer.flush()
            assert [record.data for record in failed.value.records] == [b"b"]

    run(stage, main())
    assert stage.seen() == {b"a": 1}


def test_a_cancelled_start_leaves_no_thread(stage):
    describe, stage.describe = stage.describe, lambda: stage.sleep(5) or describe()

    async def main():
        producer = stage.producer(AsyncProducer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await producer.start()
        assert stage.simulation.unfinished("producer") == []
        with pytest.raises(PyKclError, match="was closed before"):
            await producer.start()

    run(stage, main())


def test_a_start_that_has_failed_can_be_tried_again_cancelled_or_not(stage):
    describe = stage.describe

    def away():
        stage.sleep(5)
        raise TemporaryError("no answer")

    async def main():
        stage.describe = away
        producer = stage.producer(AsyncProducer)
        with pytest.raises(TemporaryError):
            await producer.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await producer.start()
        stage.describe = describe
        async with producer:
            await producer.put(b"a")

    run(stage, main())
    assert stage.seen() == {b"a": 1}


def test_a_start_raises_whatever_a_client_raises(stage):
    def leave():
        raise SystemExit

    async def main():
        stage.describe = leave
        with pytest.raises(SystemExit):
            await stage.producer(AsyncProducer).start()

    run(stage, main())


def test_a_cancelled_close_gives_up_what_is_left_and_leaves_no_thread(stage):
    stage.trouble = no_answer

    async def main():
        producer = await started(stage)
        future = await producer.put(b"a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await producer.close()
        assert isinstance(future.exception(), NotDelivered)

    run(stage, main())
    stage.sleep(10)
    assert stage.simulation.unfinished("producer") == []


@pytest.mark.parametrize("seed", range(6))
def test_in_all_trouble_what_a_put_has_taken_is_in_the_stream_and_what_was_cancelled_is_not(seed):
    with Simulation(seed=seed) as simulation:
        stage, rng = Stage(simulation, limits=True), simulation.rng
        Chaos(stage)
        puts = {}

        async def program(producer, name):
            for at in range(100):
                data = f"{name}/{at:03}".encode() + b"." * rng.choice((1, 100, 20_000))
                puts[data] = asyncio.create_task(producer.put(data, f"key-{name}"))
                await asyncio.sleep(rng.choice((0, 0, 0.05)))
                if rng.random() < 0.3:
                    puts[data].cancel()

        async def main():
            async with stage.producer(
                AsyncProducer, ordered=True, connections=4, linger=0.05, max_pending_bytes=60_000
            ) as producer:
                await asyncio.gather(*(program(producer, name) for name in "abc"))
                await asyncio.wait(puts.values())

        run(stage, main())
        seen = stage.seen()
    taken = {data: put.result() for data, put in puts.items() if not put.cancelled()}
    assert 150 < len(taken) < len(puts) == 300
    assert seen.keys() == taken.keys()
    assert all(future.result().perhaps_twice or seen[data] == 1 for data, future in taken.items())


# -- what is not delivered ---------------------------------------------------------------------------------------------


def test_a_loss_is_raised_by_the_future_and_by_the_next_flush_and_only_there(stage):
    stage.trouble = no_answer

    async def main():
        async with stage.producer(AsyncProducer, record_ttl=2.0) as producer:
            future = await producer.put(b"a")
            with pytest.raises(NotDelivered):
                await future
            stage.trouble = no_trouble
            await producer.put(b"b")
            with pytest.raises(PutFailed, match="1 records were not delivered") as failed:
                await producer.flush()
            assert [record.data for record in failed.value.records] == [b"a"]
            await producer.flush()

    run(stage, main())


def test_close_with_a_timeout_reports_what_is_left_even_if_nobody_has_asked(stage):
    given_up = []

    async def main():
        producer = await started(stage, on_failure=lambda record, _: given_up.append(record.data))
        stage.answer = lambda _: stage.sleep(60)
        for at in range(3):
            await producer.put(b"%d" % at)
        began = stage.runtime.monotonic()
        with pytest.raises(PutFailed, match="3 records were not delivered"):
            await producer.close(timeout=1)
        assert stage.runtime.monotonic() - began <= 1.5
        await producer.close()

    run(stage, main())
    assert sorted(given_up) == [b"0", b"1", b"2"]


def test_close_gives_up_what_is_left_without_a_thread_for_it(stage, monkeypatch):
    stage.trouble = no_answer

    def exhausted(*_):
        raise TemporaryError("can't start new thread")

    async def main():
        producer = await started(stage)
        future = await producer.put(b"a")
        monkeypatch.setattr(stage.runtime, "spawn", exhausted)
        with pytest.raises(PutFailed, match="1 records"):
            await producer.close(timeout=1)
        assert isinstance(future.exception(), NotDelivered)

    run(stage, main())


def test_waits_that_are_over_leave_nothing_behind_while_aws_is_away(stage):
    stage.trouble = no_answer

    async def main():
        producer = await started(stage, max_pending_bytes=SIZE)
        await producer.put(b"x" * 1000, "k")
        for _ in range(10):
            with pytest.raises(BufferFull):
                await producer.put(b"y", timeout=0)
            with pytest.raises(FlushTimedOut):
                await producer.flush(timeout=0)
        gc.collect()
        assert [one for one in gc.get_objects() if isinstance(one, LoopEvent)] == []
        stage.trouble = no_trouble
        await producer.close()

    run(stage, main())


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_another_event_loop_is_refused_and_the_producer_goes_on(stage):
    async def main():
        async with stage.producer(AsyncProducer) as producer:
            future = await producer.put(b"a")
            *errors, started_twice = refused_in_another_loop(
                stage, lambda: producer.put(b"b"), producer.flush, producer.close, producer.start
            )
            assert ["started in another event loop" in error for error in errors] == [True] * 3
            assert "started before" in started_twice
            await producer.flush()
            assert future.done()

    run(stage, main())
    assert stage.seen() == {b"a": 1}


def test_a_record_that_kinesis_does_not_take_is_refused_and_harms_no_other(stage):
    async def main():
        async with stage.producer(AsyncProducer) as producer:
            await producer.put(b"good")
            with pytest.raises(RecordRefused, match="0 characters"):
                await producer.put(b"bad", "")

    run(stage, main())
    assert stage.seen() == {b"good": 1}


def test_a_producer_that_is_not_started_or_was_started_before_a_fork_says_so(stage, monkeypatch):
    async def main():
        producer = stage.producer(AsyncProducer)
        with pytest.raises(PyKclError, match=r"not started.*async with"):
            await producer.put(b"x")
        async with producer:
            with monkeypatch.context() as patch:
                patch.setattr(module, "FORKS", [*module.FORKS, None])
                errors = refused_in_another_loop(
                    stage, lambda: producer.put(b"x"), producer.flush, producer.close
                )
                assert ["forked" in error for error in errors] == [True] * 3

    run(stage, main())
