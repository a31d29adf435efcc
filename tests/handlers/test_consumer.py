"""`Consumer` and `AsyncConsumer` over the unmodified worker in simulated time: who has which record, whatever leaves the loop."""

import asyncio
import contextlib
import random
import signal
from collections import Counter
from contextlib import aclosing

import pytest
from consuming import KINDS, SHARD, Consuming, take_the_lease

from pykcl import AsyncConsumer, ConfigError, Consumer, PyKclError, StreamMissing, TableGone
from pykcl.events import (
    LeaseLost,
    LeaseReleased,
    LossReason,
    RecordNotAcked,
    RecordsDeadLettered,
)
from pykcl.local.errors import AwsError
from pykcl.model.checkpoint import Checkpoint
from pykcl.testing.fleet import STREAM, TABLE
from pykcl.testing.memory.dynamodb import Fault, throttled, timed_out


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def consuming(request, new_fleet):
    """consuming(shards=1): a fleet of consumers of one kind."""
    return lambda shards=1: Consuming(request.param, new_fleet(shards=shards))


def checkpoint(fleet, shard=SHARD):
    return fleet.rows()[shard].checkpoint


# -- asking for the next record acks the one before ---------------------------------------------------------------


def test_asking_for_the_next_record_acks_the_one_before(consuming):
    all_of = consuming()
    fleet, put = all_of.fleet, all_of.fleet.put(5)
    got = []

    async def main():
        async with all_of.open(idle_timeout=10) as consumer:
            async for record in consumer:
                got.append(record)
                await all_of.sleep(3)
                if len(got) == 1:
                    assert checkpoint(fleet).is_start
                else:
                    assert checkpoint(fleet) == got[-2].position, "and no further"
            assert [record.data for record in got] == put
        assert checkpoint(fleet) == got[-1].position

    all_of.run(main())
    assert fleet.owners() == {SHARD: None}
    assert len(fleet.happened(LeaseReleased)) == 1
    assert fleet.simulation.unfinished("c1") == [], "no thread is left"
    assert all_of.rest() == []


class Left(Exception):
    """Raised by the body of a loop."""


async def leave_by_break(consumer, at):
    async for record in consumer:
        if record.data == at:
            break


async def leave_by_exception(consumer, at):
    async for record in consumer:
        if record.data == at:
            raise Left


async def leave_by_return(consumer, at):
    async for record in consumer:
        if record.data == at:
            return record
    return None


async def leave_by_aclose(consumer, at):
    async for record in consumer:
        if record.data == at:
            await consumer.aclose()
            break


async def leave_by_aclose_of_a_generator(consumer, at):
    async def values():
        async for record in consumer:
            yield record.data

    async with aclosing(values()) as found:
        async for data in found:
            if data == at:
                break


async def leave_by_cancellation(consumer, at):
    async for record in consumer:
        if record.data == at:
            if not isinstance(consumer, AsyncConsumer):
                pytest.skip("a for loop cannot be cancelled")
            asyncio.current_task().cancel()
            await asyncio.sleep(1000)


WAYS = [
    leave_by_break,
    leave_by_exception,
    leave_by_return,
    leave_by_aclose,
    leave_by_aclose_of_a_generator,
    leave_by_cancellation,
]


@pytest.mark.parametrize("point", [0, 1, 4, 6])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_b_5_what_leaves_the_loop_leaves_the_record_at_hand_open_and_those_before_it_settled(
    consuming, way, point
):
    all_of = consuming()
    put = all_of.fleet.put(7)

    async def main():
        async with all_of.open() as consumer:
            await way(consumer, put[point])

    try:
        all_of.run(main())
    except (Left, asyncio.CancelledError):
        assert way in (leave_by_exception, leave_by_cancellation)
    else:
        assert way not in (leave_by_exception, leave_by_cancellation)
    assert all_of.fleet.owners() == {SHARD: None}, "its lease is released"
    assert all_of.simulation.unfinished("c1") == []
    assert all_of.rest() == put[point:]


@pytest.mark.parametrize("begins", [False, True])
def test_b_5_aclose_and_an_exception_before_the_first_record_settle_nothing(consuming, begins):
    all_of = consuming()
    put = all_of.fleet.put(3)

    async def main(leaves):
        async with all_of.open(f"c{leaves}") as consumer:
            await consumer.wait_ready()
            if begins:
                aiter(consumer)
            if leaves:
                raise Left
            await consumer.aclose()
            await consumer.aclose()

    all_of.run(main(0))
    with pytest.raises(Left):
        all_of.run(main(1))
    assert all_of.rest() == put


def test_b_5_a_cancellation_while_the_next_record_is_waited_for_leaves_none_open(new_fleet):
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    put = all_of.fleet.put(3)
    got = []

    async def main():
        async with all_of.open() as consumer:
            async for record in consumer:
                got.append(record.data)

    async def cancelled():
        task = asyncio.create_task(main())
        await asyncio.sleep(30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    all_of.run(cancelled())
    assert got == put
    all_of.fleet.put(2)
    assert len(all_of.rest()) == 2


def test_b_5_a_cancellation_at_any_moment_loses_no_record(new_fleet):
    """Cancelled after a time that falls anywhere: at the start, in the body, in the wait, while the block is left."""
    all_of = Consuming(AsyncConsumer, new_fleet(shards=2))
    put = set(all_of.fleet.put(60))
    done, moments = [], []

    async def main(name):
        async with all_of.open(name, max_unacked=8) as consumer:
            async for record in consumer:
                await asyncio.sleep(0.05)
                done.append(record.data)

    async def cancelled(number):
        task = asyncio.create_task(main(f"c{number}"))
        await asyncio.sleep(number * 0.17)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        moments.append(len(done))

    number = 0
    while not put <= set(done):
        all_of.run(cancelled(number))
        number += 1
        assert number < 60
    assert len(done) <= len(put) + number, "a cancellation repeats the record at hand, and no other"


def test_b_5_a_loop_that_a_time_out_ends_leaves_its_record_to_the_next_loop(new_fleet):
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    put, done = all_of.fleet.put(5), []

    async def work(consumer):
        async for record in consumer:
            await asyncio.sleep(7)
            done.append(record.data)

    async def main():
        async with all_of.open() as consumer:
            while len(done) < len(put):
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(work(consumer), 10)

    all_of.run(main())
    assert done == put, "one in each loop, and the one that was cut off comes first in the next"
    assert all_of.rest() == []


def test_the_next_loop_begins_with_the_record_that_the_last_one_left_open(consuming):
    all_of = consuming(3)
    put = all_of.fleet.put(12)
    got = []

    async def main():
        async with all_of.open(idle_timeout=10) as consumer:
            for _ in range(3):
                async for record in consumer:
                    got.append(record.data)
                    if len(got) in (4, 5):
                        break
            async for record in consumer:
                got.append(record.data)

    all_of.run(main())
    assert got[3] == got[4] == got[5]
    assert sorted(got[5:] + got[:3]) == sorted(put)
    assert all_of.rest() == []


def test_a_record_that_is_acked_before_the_loop_is_left_does_not_come_again(consuming):
    all_of = consuming()
    put = all_of.fleet.put(4)

    async def main():
        async with all_of.open() as consumer:
            async for record in consumer:
                if record.data == put[1]:
                    assert consumer.ack(record) is True
                    assert consumer.ack(record) is False
                    break

    all_of.run(main())
    assert all_of.rest() == put[2:]


# -- without auto_ack ------------------------------------------------------------------------------------------


def test_several_tasks_ack_each_record_when_it_is_done(new_fleet):
    all_of = Consuming(AsyncConsumer, new_fleet(shards=2))
    put = all_of.fleet.put(40)
    done, most = [], [0]

    async def work(consumer, durations):
        running = 0
        async for record in consumer:
            running += 1
            await asyncio.sleep(next(durations) % 7)
            done.append(record.data)
            assert consumer.ack(record)

    async def main():
        durations = iter(range(1000))
        async with all_of.open(auto_ack=False, idle_timeout=20) as consumer:
            await asyncio.gather(*(work(consumer, durations) for _ in range(8)))
        most.append(0)

    all_of.run(main())
    assert sorted(done) == sorted(put)
    assert all_of.rest() == []


def test_what_nobody_acks_comes_again_and_everything_behind_it(consuming):
    all_of = consuming()
    put = all_of.fleet.put(6)

    async def main():
        async with all_of.open(auto_ack=False, idle_timeout=5) as consumer:
            kept = [record async for record in consumer]
            assert [consumer.ack(kept[number]) for number in (0, 1, 3, 5)] == [True] * 4
        assert consumer.ack(kept[2]) is False, "its lease is released"

    all_of.run(main())
    assert all_of.rest() == put[2:]


async def does_its_work(consumer, record):
    await asyncio.sleep(2)


async def swallows_the_cancellation(consumer, record):
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(1000)


async def logs_whatever_comes(consumer, record):
    try:
        await asyncio.gather(asyncio.sleep(1000), return_exceptions=True)
    except BaseException as error:  # noqa: BLE001 - as many programs do
        print(type(error).__name__)


async def withdraws_the_cancellation(consumer, record):
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        asyncio.current_task().uncancel()


@pytest.mark.parametrize(
    ("body", "times"),
    [(swallows_the_cancellation, 2), (logs_whatever_comes, 2), (withdraws_the_cancellation, 1)],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_body_that_was_cancelled_and_goes_on_all_the_same_gets_its_record_again(new_fleet, body, times):
    """Ctrl-C cancels the task that asyncio.run has started, for example."""
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    put, got = all_of.fleet.put(5), []

    async def main():
        async with all_of.open(idle_timeout=5) as consumer:
            async for record in consumer:
                got.append(record.data)
                is_cancelled = record.data == put[2] and got.count(record.data) == 1
                if is_cancelled:
                    asyncio.get_running_loop().call_later(1, asyncio.current_task().cancel)
                await (body if is_cancelled else does_its_work)(consumer, record)

    all_of.run(main())
    assert got == [*put[:2], *put[2:3] * times, *put[3:]]
    assert all_of.rest() == []


def test_a_program_that_ends_each_body_by_a_cancellation_goes_on_after_the_second_time(new_fleet):
    """A time-out by hand: nothing would come after the first record that takes too long."""
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    put, got = all_of.fleet.put(3), []

    async def main():
        async with all_of.open(idle_timeout=5) as consumer:
            async for record in consumer:
                got.append(record.data)
                asyncio.get_running_loop().call_later(1, asyncio.current_task().cancel)
                await swallows_the_cancellation(consumer, record)

    all_of.run(main())
    assert got == [data for data in put for _ in range(2)]
    assert all_of.rest() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_body_that_swallows_what_a_second_signal_raises_settles_nothing(new_fleet, number):
    all_of = Consuming(Consumer, new_fleet(shards=1))
    put, got, raised = all_of.fleet.put(4), [], []

    async def main():
        consumer = all_of.open()
        async with consumer:
            async for record in consumer:
                got.append(record.data)
                if len(got) < 3:
                    continue
                try:
                    for _ in range(2):
                        signal.getsignal(number)(number, None)
                        all_of.simulation.sleep(2)
                except BaseException as error:  # noqa: BLE001 - as many programs do
                    raised.append(type(error))

    all_of.run(main())
    assert got == put[:3]
    assert raised == [SystemExit if number == signal.SIGTERM else KeyboardInterrupt]
    assert all_of.rest() == put[2:]


# -- dead letters ----------------------------------------------------------------------------------------------


def test_a_rejected_record_becomes_a_letter_and_is_not_acked_again(consuming):
    all_of = consuming()
    put, letters = all_of.fleet.put(4), []

    async def main():
        async with all_of.open(idle_timeout=5, dead_letters=letters.extend) as consumer:
            async for record in consumer:
                if record.data == put[1]:
                    assert await consumer.reject(record, "no such product") is True
                    assert await consumer.reject(record) is False
                    assert consumer.ack(record) is False

    all_of.run(main())
    assert [letter.condition.value for letter in letters] == ["Rejected"]
    assert len(all_of.fleet.happened(RecordsDeadLettered)) == 1
    assert all_of.rest() == []


def test_a_destination_that_is_down_is_raised_and_the_record_stays_open(consuming):
    all_of = consuming()
    put = all_of.fleet.put(3)
    results = iter([OSError("down"), None])

    def keep(letters):
        error = next(results)
        if error is not None:
            raise error

    async def main():
        async with all_of.open(dead_letters=keep) as consumer:
            async for record in consumer:
                with pytest.raises(OSError, match="down"):
                    await consumer.reject(record, "bad")
                assert await consumer.reject(record, "bad") is True
                break

    all_of.run(main())
    assert all_of.rest() == put[1:]


def keeps_from_the_second_time_on(letters, failed, work=lambda: None):
    """Return a destination that is down while `failed` is empty: what it got then is there afterwards."""

    def keep(kept):
        work()
        if not failed:
            failed.append(kept)
            raise OSError("down")
        letters.extend(kept)

    return keep


async def rejects_and_goes_on(consumer, record):
    """Reject a record as a body that must not end does: it logs whatever comes, and goes on."""
    try:
        await consumer.reject(record, "bad")
    except BaseException as error:  # noqa: BLE001 - as many programs do
        print(type(error).__name__)


def test_a_rejected_record_that_no_destination_keeps_comes_again_though_the_body_goes_on(consuming):
    """Asking for the next record acks the one before, but not against the program's own word."""
    all_of = consuming(shards=2)
    put, letters, got = all_of.fleet.put(12), [], []
    down_until = all_of.simulation.now + 100

    def keep(kept):
        if all_of.simulation.now < down_until:
            raise OSError("down")
        letters.extend(kept)

    async def main():
        async with all_of.open(idle_timeout=5, dead_letters=keep) as consumer:
            async for record in consumer:
                got.append(record.data)
                if record.data == put[3]:
                    await rejects_and_goes_on(consumer, record)
        return all_of.simulation.now

    ended = all_of.run(main())
    assert ended >= down_until, "a record that rests is no end of the records"
    assert [record.data for letter in letters for record in letter.records] == [put[3]]
    times = Counter(got)
    assert times.keys() == set(put)
    assert 5 <= times.pop(put[3]) <= 40, "with growing pauses"
    assert set(times.values()) == {1}
    assert all_of.rest() == []


def test_a_stop_while_a_rejected_record_is_kept_nowhere_leaves_it_to_the_next_owner(consuming):
    all_of = consuming()
    put, attempts = all_of.fleet.put(4), []

    def down(letters):
        attempts.append(all_of.simulation.now)
        raise OSError("down")

    async def main():
        async with all_of.open(dead_letters=down) as consumer:
            async for record in consumer:
                if record.data == put[2]:
                    await rejects_and_goes_on(consumer, record)
                    if len(attempts) == 3:
                        consumer.stop()

    all_of.run(main())
    assert all_of.rest() == put[2:]


@pytest.mark.parametrize("wrong", ["no dead_letters", "no record"])
def test_a_reject_that_is_refused_settles_nothing_though_the_body_goes_on(consuming, wrong):
    all_of = consuming()
    put, got = all_of.fleet.put(3), []

    async def main():
        options = {} if wrong == "no dead_letters" else {"dead_letters": "discard"}
        async with all_of.open(**options) as consumer:
            async for record in consumer:
                got.append(record.data)
                if record.data == put[1]:
                    await rejects_and_goes_on(consumer, record if options == {} else record.data)
                if len(got) == 4:
                    break

    all_of.run(main())
    assert got == [put[0], *[put[1]] * 3]
    assert all_of.rest() == put[1:]


def test_a_record_that_was_rejected_in_vain_may_still_be_rejected_or_acked_by_the_body(consuming):
    all_of = consuming()
    put, letters, got, failed = all_of.fleet.put(4), [], [], []

    keep = keeps_from_the_second_time_on(letters, failed)

    async def main():
        async with all_of.open(idle_timeout=5, dead_letters=keep) as consumer:
            async for record in consumer:
                got.append(record.data)
                if record.data in put[1:3]:
                    failed.clear()
                    await rejects_and_goes_on(consumer, record)
                    assert failed
                if record.data == put[1]:
                    assert consumer.ack(record) is True
                if record.data == put[2]:
                    assert await consumer.reject(record) is True

    all_of.run(main())
    assert got == put, "nothing comes again"
    assert len(letters) == 1
    assert all_of.rest() == []


def test_a_reject_whose_await_is_cancelled_settles_nothing_though_the_body_goes_on(new_fleet):
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    put, letters, got, failed = all_of.fleet.put(3), [], [], []

    keep = keeps_from_the_second_time_on(letters, failed, lambda: all_of.simulation.sleep(3))

    async def main():
        async with all_of.open(idle_timeout=20, dead_letters=keep) as consumer:
            async for record in consumer:
                got.append(record.data)
                if record.data == put[1]:
                    me = asyncio.current_task()
                    if not failed:
                        asyncio.get_running_loop().call_later(1, me.cancel)
                    await rejects_and_goes_on(consumer, record)

    all_of.run(main())
    assert got == [put[0], put[1], put[1], put[2]]
    assert len(letters) == 1
    assert all_of.rest() == []


def test_without_dead_letters_reject_says_what_to_set(consuming):
    all_of = consuming()
    put = all_of.fleet.put(1)

    async def main():
        async with all_of.open() as consumer:
            async for record in consumer:
                with pytest.raises(ConfigError, match="dead_letters=None names no place"):
                    await consumer.reject(record)
                break

    all_of.run(main())
    assert all_of.rest() == put


# -- shards that move ------------------------------------------------------------------------------------------


def test_of_a_shard_that_was_taken_no_queued_record_is_given_and_no_ack_counts(consuming):
    all_of = consuming(2)
    fleet = all_of.fleet
    fleet.put(40)
    got = []

    async def main():
        async with all_of.open(idle_timeout=40, failover_time=5) as consumer:
            await consumer.wait_ready()
            await all_of.sleep(2)
            async for record in consumer:
                got.append(record)
                if len(got) == 5:
                    lost = got[0].shard_id
                    take_the_lease(fleet, lost)
                    while not fleet.happened(LeaseLost):
                        await all_of.sleep(0.1)
                    assert consumer.ack(record) is (record.shard_id != lost)
                    assert consumer.ack(got[-2]) is False
                    last = max(each.position for each in got if each.shard_id == lost)
            return lost, last

    lost, last = all_of.run(main())
    others = sum(each.shard_id != lost for each in got)
    assert all(each.shard_id != lost for each in got[5 : others + 2]), "what was queued is gone"
    # One of the last two was at hand, the other one acked, and no checkpoint was written yet.
    again = [each.position for each in got[5:] if each.shard_id == lost]
    assert again == sorted(again)
    assert again[0] <= last
    assert {each.data for each in got} == {f"r{number}".encode() for number in range(40)}


def test_after_a_freeze_no_record_of_the_former_leases_is_given(consuming):
    all_of = consuming(2)
    fleet = all_of.fleet
    fleet.put(40)
    got = []

    async def main():
        async with all_of.open(idle_timeout=300, failover_time=5) as consumer:
            async for record in consumer:
                got.append(record.data)
                if len(got) == 5:
                    # The threads of the worker stand still, and the program does not: the worst order there is.
                    all_of.simulation.freeze("c1", 60)
                    all_of.simulation.sleep(30)
                    frozen_at = all_of.simulation.now
                if len(got) == 6:
                    assert all_of.simulation.now >= frozen_at + 25, "only once the leases are its own again"
                    break

    all_of.run(main())


def test_a_leader_that_asks_for_a_shard_gets_it_once_the_record_at_hand_is_acked(consuming):
    all_of = consuming()
    fleet = all_of.fleet
    put, got, asked = fleet.put(30), [], []

    async def main():
        async with all_of.open(idle_timeout=60, failover_time=5, graceful_handoff_timeout=100) as consumer:
            async for record in consumer:
                got.append(record)
                if len(got) == 5:
                    rows = fleet.dynamodb.tables[TABLE].rows
                    me = rows[SHARD]["leaseOwner"]
                    rows[SHARD] = {**rows[SHARD], "leaseOwner": {"S": "next"}, "checkpointOwner": me}
                    asked.append(all_of.simulation.now)
                    await all_of.sleep(20)
                    assert fleet.rows()[SHARD].checkpoint_owner == me["S"], "it waits for the record at hand"
                    fleet.simulation.spawn("look", "main", lambda: asked.append(handed_over_at()))

    def handed_over_at():
        fleet.wait(lambda: "checkpointOwner" not in fleet.items()[SHARD], 60, "the hand-over")
        assert checkpoint(fleet) == got[4].position
        return all_of.simulation.now

    all_of.run(main())
    assert [record.data for record in got[:5]] == put[:5]
    assert asked[1] - asked[0] < 23, "and for none that is only queued"
    again = [record.data for record in got[5:]]
    assert again[:1] in ([], put[5:6]), "nobody holds it, so that it came back"


def test_consumers_come_and_go_and_share_the_shards_in_order_per_shard(consuming):
    all_of = consuming(4)
    fleet = all_of.fleet
    put, done = set(fleet.put(120)), []

    async def main(name, most):
        async with all_of.open(name, failover_time=5, max_unacked=20, idle_timeout=60) as consumer:
            async for record in consumer:
                await all_of.sleep(0.3)
                done.append((name, record))
                most -= 1
                if most == 0:
                    break

    programs = [all_of.in_a_thread(main(f"c{n}", most), f"c{n}") for n, most in enumerate((20, 60, 10**9))]
    fleet.wait(lambda: put <= {record.data for _, record in done}, 600, "all records")
    for program in programs:
        program.join()
    assert len({name for name, _ in done}) > 1
    for n in range(3):
        for shard in fleet.rows():
            mine = [r.position for name, r in done if name == f"c{n}" and r.shard_id == shard]
            assert mine == sorted(mine) or len(mine) != len(set(mine)), "in order, but for what came again"


def test_a_shard_that_is_split_ends_once_its_records_are_acked(consuming):
    all_of = consuming()
    fleet = all_of.fleet
    first = fleet.put(10)
    fleet.kinesis.split(STREAM, SHARD)
    second = fleet.put(10)
    got = []

    async def main():
        async with all_of.open(idle_timeout=30) as consumer:
            async for record in consumer:
                got.append(record)
                await all_of.sleep(0.5)

    all_of.run(main())
    assert [record.data for record in got[:10]] == first
    assert sorted(record.data for record in got[10:]) == sorted(second)
    assert checkpoint(fleet).is_shard_end


def test_a_shard_does_not_end_while_its_last_record_is_open(consuming):
    all_of = consuming()
    fleet = all_of.fleet
    put = fleet.put(3)
    fleet.kinesis.split(STREAM, SHARD)

    async def main():
        async with all_of.open() as consumer:
            async for record in consumer:
                if record.data == put[2]:
                    await all_of.sleep(20)
                    break
            await all_of.sleep(20)
            assert not checkpoint(fleet).is_shard_end

    all_of.run(main())
    assert not checkpoint(fleet).is_shard_end
    assert all_of.rest() == put[2:]
    assert checkpoint(fleet).is_shard_end


@pytest.mark.parametrize("number", range(4))
def test_under_kills_and_lost_answers_no_checkpoint_passes_a_record_that_is_not_done(new_fleet, number):
    all_of = Consuming(Consumer, new_fleet(shards=3))
    fleet, simulation = all_of.fleet, all_of.simulation
    put = {
        data: fleet.kinesis.put_record(STREAM, data, data.decode()) for data in map(b"%d".__mod__, range(90))
    }
    done, rng = [], random.Random(f"{simulation.seed}/{number}")

    def fault(operation, params):
        if operation == "UpdateItem" and rng.random() < 0.2:
            return Fault(after=timed_out()) if rng.random() < 0.5 else Fault(before=throttled(operation))
        return None

    fleet.dynamodb.fault = fault

    def check():
        rows = fleet.rows()
        passed = {
            data
            for data, found in put.items()
            if found.shard_id in rows
            and not rows[found.shard_id].checkpoint < Checkpoint(found.sequence_number)
        }
        assert passed <= {record.data for record in done}

    async def main(name):
        async with all_of.open(name, failover_time=5, max_unacked=rng.choice([1, 7, 1000])) as consumer:
            async for record in consumer:
                await all_of.sleep(rng.random() * 0.4)
                done.append(record)

    for generation in range(40):
        name = f"c{generation}"
        all_of.in_a_thread(main(name), name)
        simulation.sleep(rng.uniform(2, 14))
        if rng.random() < 0.7:
            simulation.kill(name)
        check()
        if set(put) <= {record.data for record in done}:
            break
    fleet.dynamodb.fault = lambda operation, params: None
    all_of.in_a_thread(main("last"), "last")
    fleet.wait(lambda: set(put) <= {record.data for record in done}, 600, "all records")
    simulation.sleep(5)
    check()


# -- the queue -------------------------------------------------------------------------------------------------


def test_no_more_than_max_unacked_records_of_all_shards_are_fetched_and_shards_take_turns(consuming):
    all_of = consuming(3)
    all_of.fleet.put(300)
    got, most = [], []

    async def main():
        async with all_of.open(idle_timeout=5, max_unacked=12) as consumer:
            await consumer.wait_ready()
            await all_of.sleep(5)
            queue = getattr(consumer, "consumer", consumer)._queue
            async for record in consumer:
                got.append(record)
                most.append(queue._count)
                if len(got) % 7 == 0:
                    await all_of.sleep(0.1)

    all_of.run(main())
    assert len(got) == 300
    assert max(most) <= 12 + 2
    counts = {}
    for record in got[:60]:
        counts[record.shard_id] = counts.get(record.shard_id, 0) + 1
    assert min(counts.values()) >= 15, counts
    for shard in all_of.fleet.rows():
        mine = [record.position for record in got if record.shard_id == shard]
        assert mine == sorted(mine)


def test_with_room_for_one_record_every_shard_goes_on(consuming):
    all_of = consuming(3)
    put = all_of.fleet.put(30)

    async def main():
        async with all_of.open(idle_timeout=5, max_unacked=1) as consumer:
            return [record.data async for record in consumer]

    assert sorted(all_of.run(main())) == sorted(put)


def test_a_queue_that_nobody_takes_from_stays_bounded_and_keeps_its_leases(consuming):
    all_of = consuming(2)
    put = all_of.fleet.put(200)

    async def main():
        async with all_of.open(max_unacked=20, failover_time=5, idle_timeout=5) as consumer:
            await all_of.sleep(200)
            queue = getattr(consumer, "consumer", consumer)._queue
            assert 0 < queue._count <= 20 + 1, "a shard that comes to a full queue gets room for one"
            assert not all_of.fleet.happened(LeaseLost)
            return [record.data async for record in consumer]

    assert sorted(all_of.run(main())) == sorted(put)


# -- time ------------------------------------------------------------------------------------------------------


def throttled_until(simulation, end):
    def fault(operation, stream, shard):
        if operation == "GetRecords" and simulation.now < end:
            raise AwsError("ProvisionedThroughputExceededException", f"Rate exceeded for shard {shard}.")

    return fault


def test_idle_timeout_counts_from_the_last_record_once_the_worker_is_at_work(consuming):
    all_of = consuming()
    fleet, simulation = all_of.fleet, all_of.simulation
    (put,) = fleet.put(1)
    fleet.kinesis.fault = throttled_until(simulation, simulation.now + 20)

    async def main():
        async with all_of.open(idle_timeout=3) as consumer:
            got = [record.data async for record in consumer]
            ended = simulation.now
            fleet.put(1, "later")
            again = [record.data async for record in consumer]
            return got, ended, again

    began = simulation.now
    got, ended, again = all_of.run(main())
    assert got == [put]
    assert 22 < ended - began < 60
    assert len(again) == 1, "the next loop goes on"


def test_stop_ends_the_loop_behind_the_record_at_hand(consuming):
    all_of = consuming()
    put, got = all_of.fleet.put(5), []

    async def main():
        async with all_of.open() as consumer:
            async for record in consumer:
                got.append(record.data)
                if len(got) == 2:
                    consumer.stop()

    all_of.run(main())
    assert got == put[:2]
    assert all_of.rest() == put[2:]


def test_stop_wakes_up_who_waits_for_a_record(consuming):
    all_of = consuming()

    async def main():
        async with all_of.open() as consumer:
            all_of.simulation.spawn("stops", "main", lambda: (all_of.simulation.sleep(100), consumer.stop()))
            return [record async for record in consumer]

    assert all_of.run(main()) == []
    assert 1099 < all_of.simulation.now < 1110


def test_wait_ready_comes_when_nothing_that_is_put_is_missed(consuming):
    all_of = consuming(2)
    fleet = all_of.fleet
    fleet.put(3)

    async def main():
        async with all_of.open(initial_position="LATEST", idle_timeout=10) as consumer:
            assert await consumer.wait_ready() is True
            put = fleet.put(4)
            assert sorted([record.data async for record in consumer]) == sorted(put)
            consumer.stop()
            assert await consumer.wait_ready() is False

    all_of.run(main())


def test_wait_ready_gives_up_after_its_timeout(consuming):
    all_of = consuming()
    simulation = all_of.simulation
    all_of.fleet.kinesis.fault = throttled_until(simulation, simulation.now + 20)

    async def main():
        async with all_of.open() as consumer:
            began = all_of.simulation.now
            assert await consumer.wait_ready(4) is False
            assert all_of.simulation.now - began == pytest.approx(4, abs=0.5)
            assert await consumer.wait_ready() is True

    all_of.run(main())


def test_a_record_that_only_waits_in_the_queue_is_no_slow_one(consuming):
    all_of = consuming(2)
    fleet = all_of.fleet
    fleet.put(12)

    async def main():
        async with all_of.open(idle_timeout=5, processor_warn_after=30, processor_timeout=60) as consumer:
            async for _ in consumer:
                await all_of.sleep(25)

    all_of.run(main())
    assert all_of.simulation.now > 1300
    assert fleet.happened(RecordNotAcked) == []
    assert fleet.happened(LeaseLost) == []


def test_a_body_that_takes_longer_than_processor_timeout_costs_the_lease(consuming):
    all_of = consuming()
    fleet, put = all_of.fleet, all_of.fleet.put(3)
    got = []

    async def main():
        async with all_of.open(processor_warn_after=30, processor_timeout=60, failover_time=5) as consumer:
            async for record in consumer:
                got.append(record.data)
                if len(got) == 1:
                    await all_of.sleep(100)
                    assert consumer.ack(record) is False
                    break

    all_of.run(main())
    (slow,) = fleet.happened(RecordNotAcked)
    assert slow.seconds >= 30
    (loss,) = fleet.happened(LeaseLost)
    assert loss.reason is LossReason.NOT_ACKED
    assert all_of.rest() == put


# -- failures --------------------------------------------------------------------------------------------------


def test_a_failed_start_is_raised_as_it_is_and_leaves_no_thread(consuming):
    all_of = consuming()
    all_of.fleet.kinesis.delete_stream(STREAM)

    async def main():
        async with all_of.open():
            raise AssertionError("entered")

    with pytest.raises(StreamMissing):
        all_of.run(main())
    assert all_of.simulation.unfinished("c1") == []


def test_a_failure_of_the_worker_is_raised_by_the_loop_and_by_wait_ready_and_once_only(consuming):
    all_of = consuming()
    fleet = all_of.fleet
    fleet.put(3)

    async def main():
        async with all_of.open() as consumer:
            with pytest.raises(TableGone) as found:
                async for record in consumer:
                    if record.data == b"r1":
                        fleet.dynamodb.tables.pop(TABLE)
            with pytest.raises(TableGone) as again:
                await consumer.wait_ready()
            assert again.value is found.value

    all_of.run(main())
    assert all_of.simulation.unfinished("c1") == []


def test_a_failure_that_nobody_has_heard_of_is_raised_when_the_block_is_left(consuming):
    all_of = consuming()

    async def main(error):
        async with all_of.open(f"c{error is None}") as consumer:
            await consumer.wait_ready()
            all_of.fleet.dynamodb.tables.pop(TABLE)
            await all_of.sleep(60)
            if error:
                raise error

    with pytest.raises(TableGone):
        all_of.run(main(None))
    with pytest.raises(Left):
        all_of.run(main(Left()))


# -- mistakes --------------------------------------------------------------------------------------------------


def test_outside_of_its_block_a_consumer_says_so(consuming):
    all_of = consuming()

    async def main():
        consumer = all_of.open()
        for ask in (consumer.__anext__, consumer.wait_ready):
            with pytest.raises(PyKclError, match=r"does not read yet\. Do: (async )?with "):
                await ask()
        with pytest.raises(PyKclError, match="does not read yet"):
            aiter(consumer)
        async with consumer:
            with pytest.raises(PyKclError, match=r"was entered before\. Do: make a new one"):
                await consumer.__aenter__()
            with pytest.raises(PyKclError, match=r"it got dict\. Do: keep the Record"):
                consumer.ack({"id": 1})
        with pytest.raises(
            PyKclError, match=r"has been left, or closed\. Do: iterate inside of its.*consumer\.stop\(\)"
        ):
            await anext(consumer)
        with pytest.raises(PyKclError, match="was entered before"):
            await consumer.__aenter__()

    all_of.run(main())


def test_two_tasks_that_both_ask_are_refused_before_a_record_is_settled_for_the_other_one(new_fleet):
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    put, done = all_of.fleet.put(9), []

    async def work(consumer):
        async for record in consumer:
            await asyncio.sleep(1)
            done.append(record.data)

    async def main():
        async with all_of.open() as consumer:
            first = asyncio.create_task(work(consumer))
            await asyncio.sleep(30)
            # While the first one waits for a record.
            second = asyncio.create_task(work(consumer))
            all_of.fleet.put(1, "later")
            refused, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
            assert ["Two tasks ask this AsyncConsumer" in str(each.exception()) for each in refused] == [True]
            await asyncio.sleep(30)
            for each in {first, second} - refused:
                each.cancel()
            all_of.fleet.put(1, "last")
            # While another one has a record at hand.
            record = await anext(consumer)
            with pytest.raises(PyKclError, match=r"Do: AsyncConsumer.*auto_ack=False"):
                await asyncio.create_task(work(consumer))
            assert consumer.ack(record)

    all_of.run(main())
    assert all_of.rest() == []
    assert done[:9] == put


def test_two_threads_that_both_ask_are_refused(new_fleet):
    all_of = Consuming(Consumer, new_fleet(shards=1))
    put = all_of.fleet.put(3)
    errors = []
    with all_of.fleet.consumer(Consumer, "c1") as consumer:
        assert next(consumer).data == put[0]

        def other():
            try:
                next(consumer)
            except PyKclError as error:
                errors.append(str(error))

        all_of.simulation.spawn("other", "main", other).join()
        assert next(consumer).data == put[1]
    assert "Two threads ask this Consumer" in errors[0]
    assert "auto_ack=False" in errors[0]
    assert all_of.rest() == put[1:]


def test_a_task_for_each_record_is_one_asker(new_fleet):
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    put = all_of.fleet.put(3)

    async def main():
        async with all_of.open() as consumer:
            return [(await asyncio.create_task(consumer.__anext__())).data for _ in put]

    assert all_of.run(main()) == put
    assert all_of.rest() == put[-1:]


def test_another_event_loop_is_refused(new_fleet):
    all_of = Consuming(AsyncConsumer, new_fleet(shards=1))
    all_of.fleet.put(1)
    consumer = all_of.open()

    async def other():
        await anext(consumer)

    async def main():
        async with consumer:
            errors = []

            def in_another_loop():
                try:
                    all_of.run(other())
                except PyKclError as error:
                    errors.append(str(error))

            all_of.simulation.spawn("other", "main", in_another_loop).join()
            return errors

    (error,) = all_of.run(main())
    assert "was entered in another event loop" in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"processor": object}, "takes no processor"),
        ({"checkpoint_mode": "auto"}, "checkpoint_mode='auto' contradicts"),
        ({"on_error": "skip"}, "on_error='skip' has no meaning"),
        ({"on_error": "raise"}, "an exception leaves the loop"),
        ({"batch_size": 10}, "has no batches"),
        ({"batch_window": 1.0}, "has no batches"),
        ({"bisect": True}, "bisect=True"),
        ({"call_with_empty_batches": True}, "call_with_empty_batches"),
        ({"checkpoint_interval": 5.0}, "checkpoints follow the acks"),
        ({"max_attempts": 3}, "max_attempts=3"),
        ({"max_record_age": 3.0, "dead_letters": "discard"}, "consumer.reject"),
        ({"max_unacked": 0}, "max_unacked"),
        ({"max_unacked": "7"}, "max_unacked"),
        ({"idle_timeout": 0}, "idle_timeout=0 is no number of seconds above 0"),
        ({"idle_timeout": True}, "idle_timeout=True"),
        ({"auto_ack": 1}, "auto_ack=1 is neither"),
        ({"max_unaked": 7}, "max_unacked"),
        ({"failover_time": -1}, "failover_time"),
    ],
)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_options_that_have_no_meaning_are_refused_by_name(kind, options, words):
    with pytest.raises(ConfigError, match=words):
        kind("orders-app", stream="orders", **options)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_defaults_that_are_given_are_fine(kind):
    kind("orders-app", stream="orders", checkpoint_mode="ack", on_error="retry", batch_size=None)


def test_a_program_gets_no_record_of_a_paused_shard_until_that_is_resumed(consuming):
    all_of, got = consuming(), []
    put = all_of.fleet.put(20)

    async def resume(worker):
        await all_of.sleep(30)
        worker.resume()

    async def main():
        async with all_of.open(idle_timeout=60) as consumer:
            async for record in consumer:
                got.append((all_of.simulation.now, record.data))
                if len(got) == 5:
                    consumer.worker.pause([record.shard_id])
                    all_of.in_a_thread(resume(consumer.worker), "other")

    all_of.run(main())
    assert [data for _, data in got] == put
    resumed = [at - got[4][0] for at, _ in got[5:]]
    assert 30 <= resumed[0] <= resumed[-1] < 32
