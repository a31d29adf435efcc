"""Producer: what its futures say is true, whatever happens to the stream, and close reports the rest. In simulated time."""

import asyncio
import gzip
import json
from collections import Counter
from contextlib import suppress

import pytest

from pykcl.errors import (
    BufferFull,
    ConfigError,
    FlushTimedOut,
    InternalError,
    NotDelivered,
    PyKclError,
    RecordRefused,
    SetupError,
    StreamMissing,
    TemporaryError,
    Throttled,
)
from pykcl.events import KeysIgnored
from pykcl.model.kpl import MAGIC
from pykcl.model.new_record import hash_key_of
from pykcl.producer import producer as module
from pykcl.producer.accumulator import Accumulator
from pykcl.producer.delivery import Delivery, PutsDelayed, PutsResumed, RecordsNotDelivered
from pykcl.producer.producer import Producer, PutFailed
from pykcl.testing.memory.stream import MemoryStream
from pykcl.testing.runtime import Simulation
from tests.producer.stream_kit import SIZE, Chaos, Stage, no_answer, seen_by_consumers, seen_by_shard

# -- the start ---------------------------------------------------------------------------------------------------------


def test_of_two_threads_that_start_a_producer_at_once_one_is_refused(stage):
    describe, described, refused = stage.describe, [], []

    def slowly():
        described.append(1)
        stage.sleep(1)
        return describe()

    def start():
        try:
            producer.start()
        except PyKclError as error:
            refused.append(str(error))

    stage.describe = slowly
    producer = stage.producer()
    threads = [stage.simulation.spawn(name, "main", start) for name in ("one", "other")]
    for thread in threads:
        thread.join()
    assert described == [1]
    (message,) = refused
    assert "still starting this producer" in message
    future = producer.put(b"x")
    producer.close()
    assert future.result(0).attempts == 1


def test_a_start_that_failed_may_be_tried_again(stage):
    describe = stage.describe

    def fails():
        raise TemporaryError("no answer")

    stage.describe = fails
    producer = stage.producer()
    with pytest.raises(TemporaryError):
        producer.start()
    stage.describe = describe
    with producer:
        producer.put(b"x")
    assert stage.seen() == {b"x": 1}


# -- records get there -------------------------------------------------------------------------------------------------


def test_a_program_puts_records_and_gets_their_places(stage):
    with stage.producer() as producer:
        first = producer.put(b"a", "alice")
        second = producer.put("b", "alice")
        third = producer.put(bytearray(b"c"), explicit_hash_key=0)
        producer.flush()
        assert first.result(0).sub_sequence_number == 0
        assert second.result(0)[:2] == first.result(0)[:2]
        assert third.result(0).shard_id == "shardId-000000000000"
        assert producer.pending == 0
    assert stage.seen() == {b"a": 1, b"b": 1, b"c": 1}


def test_a_future_is_resolved_only_once_the_stream_has_the_record(stage):
    stage.answer = lambda _: stage.sleep(2)
    in_stream = []
    with stage.producer() as producer:
        for at in range(10):
            data = b"%d" % at
            producer.put(data, f"k{at}").add_done_callback(
                lambda _, data=data: in_stream.append(stage.seen()[data])
            )
        assert in_stream == []
    assert in_stream == [1] * 10


def test_a_record_waits_no_longer_than_linger_and_a_full_request_not_at_all(stage):
    with stage.producer(linger=0.5, aggregate=False, rate_limit=10) as producer:
        producer.put(b"a")
        stage.sleep(0.4)
        assert stage.requests == []
        stage.sleep(0.2)
        assert len(stage.requests) == 1
        for _ in range(500):
            producer.put(b"b")
        stage.sleep(0.01)
        assert [len(records) for records in stage.requests] == [1, 500]


def test_a_request_without_an_answer_yet_does_not_hold_up_the_next_one(stage):
    def slow_once(_):
        stage.answer = lambda _: ()
        stage.sleep(9)

    with stage.producer(linger=0.1) as producer:
        # The second time there are threads enough, and all of them sleep.
        for _ in range(2):
            stage.answer = slow_once
            slow = producer.put(b"slow")
            stage.sleep(1)
            quick = producer.put(b"quick")
            stage.sleep(1)
            assert (slow.done(), quick.done()) == (False, True)
            producer.flush()


def test_no_more_requests_are_under_way_than_there_are_connections(stage):
    under_way, most = [], []

    def slow(_):
        under_way.append(1)
        most.append(len(under_way))
        stage.sleep(3)
        under_way.pop()

    stage.answer = slow
    with stage.producer(linger=0.0, connections=3, aggregate=False) as producer:
        for _ in range(20):
            producer.put(b"x")
            stage.sleep(0.1)
    assert max(most) == 3


def test_a_throttled_shard_does_not_hold_up_the_others(simulation):
    stage = Stage(simulation, limits=True)
    hot, cold = stage.key_for("0"), stage.key_for("1")
    other = stage.producer(aggregate=False, rate_limit=5)
    with other, stage.producer() as producer:
        for _ in range(4000):
            other.put(b"hot", hot)
        for _ in range(20):
            stage.sleep(0.1)
            producer.put(b"hot", hot)
            future = producer.put(b"cold", cold)
            stage.sleep(0.2)
            assert future.done()
    assert stage.seen() == {b"hot": 4020, b"cold": 20}


def test_objects_are_put_as_json_or_by_the_serializer_of_the_program(stage):
    with stage.producer() as producer:
        producer.put({"id": 1}, "alice")
    with stage.producer(serializer=repr) as producer:
        producer.put({"id": 2}, "alice")
    assert stage.seen() == {b'{"id":1}': 1, b"{'id': 2}": 1}


def test_the_data_of_each_record_is_compressed_by_itself_before_it_is_packed(stage):
    with stage.producer(compression="gzip") as producer:
        for number in range(10):
            producer.put([number] * 1000, "alice")
    assert sorted(map(gzip.decompress, stage.seen())) == sorted(
        json.dumps([number] * 1000, separators=(",", ":")).encode() for number in range(10)
    )
    (request,) = stage.requests
    assert [record.data[:4] for record in request] == [MAGIC]
    assert request[0].size < 2000


# -- the stream is in trouble ------------------------------------------------------------------------------------------


def test_a_lost_answer_is_said_by_every_result_of_the_request_and_by_no_other(stage):
    def lose_once(_):
        stage.answer = lambda _: ()
        no_answer(_)

    with stage.producer() as producer:
        before = producer.put(b"before")
        producer.flush()
        stage.answer = lose_once
        lost = [producer.put(b"%d" % at) for at in range(5)]
    assert not before.result(0).perhaps_twice
    assert all(future.result(0).perhaps_twice and future.result(0).attempts == 2 for future in lost)
    assert stage.seen() == {b"before": 1, **dict.fromkeys((b"%d" % at for at in range(5)), 2)}


def test_trouble_is_an_event_when_it_begins_and_when_it_is_over(stage):
    def throttled(_):
        if len(stage.requests) < 4:
            raise Throttled("too much")

    stage.trouble = throttled
    with stage.producer() as producer:
        producer.put(b"a")
        producer.flush()
        stage.sleep(1)
    assert [type(event) for event in stage.events] == [PutsDelayed, PutsResumed]
    assert stage.events[0].error == "too much"


def test_two_requests_that_are_refused_at_the_same_moment_are_one_event(stage, monkeypatch):
    class Slow:
        """Whoever reads it lets the other thread go on before it acts."""

        def __get__(self, delivery, _):
            since = delivery.__dict__["_delayed_since"]
            stage.sleep(1)
            return since

        def __set__(self, delivery, value):
            delivery.__dict__["_delayed_since"] = value

    both = stage.runtime.event()

    def throttled(_):
        if len(stage.requests) == 2:
            stage.trouble = lambda _: ()
            both.set()
        both.wait()
        raise Throttled("too much")

    monkeypatch.setattr(Delivery, "_delayed_since", Slow(), raising=False)
    stage.trouble = throttled
    producer = stage.producer(linger=0.0, connections=2)
    producer.start()
    for shard in "01":
        producer.put(b"x", stage.key_for(shard))
        stage.sleep(0.1)
    producer.close()
    stage.sleep(1)
    assert [type(event) for event in stage.events][:2] == [PutsDelayed, PutsResumed]


def test_shards_that_cannot_be_listed_are_an_event_too(stage):
    def split(_):
        stage.trouble, stage.list_shards = (lambda _: ()), denied
        stage.kinesis.split("s", "shardId-000000000000")

    def denied():
        raise SetupError("kinesis:ListShards is missing")

    listed = stage.list_shards
    producer = stage.producer()
    producer.start()
    stage.trouble = split
    for at in range(40):
        producer.put(b"%d" % at, f"k{at}")
    stage.sleep(5)
    assert [event.error for event in stage.events] == ["kinesis:ListShards is missing"]
    stage.list_shards = listed
    producer.close()
    assert len(stage.seen()) == 40


def test_a_dead_endpoint_reports_every_record(stage):
    given_up = []
    stage.trouble = no_answer
    producer = stage.producer(on_failure=lambda record, error: given_up.append((record.data, type(error))))
    producer.start()
    futures = [producer.put(b"%d" % at) for at in range(1000)]
    with pytest.raises(FlushTimedOut) as late:
        producer.flush(timeout=3)
    assert late.value.pending == 1000
    with pytest.raises(PutFailed) as left:
        producer.close(timeout=5)
    assert left.value.count == 1000
    assert {record.data for record in left.value.records} == {b"%d" % at for at in range(1000)}
    assert isinstance(left.value.first, NotDelivered)
    assert all(isinstance(future.exception(0), NotDelivered) for future in futures)
    assert Counter(given_up) == {(b"%d" % at, NotDelivered): 1 for at in range(1000)}
    stage.sleep(1)  # a listener is called in a thread of its own
    assert [event.records for event in stage.events if isinstance(event, RecordsNotDelivered)] == [1000]


def test_close_with_a_timeout_reports_what_is_under_way_as_perhaps_put_and_the_rest_as_not(stage):
    hot, cold = stage.key_for("0"), stage.key_for("1")
    producer = stage.producer(linger=0.0, connections=1)
    producer.start()
    done = producer.put(b"done", cold)
    producer.flush()
    stage.answer = lambda _: stage.sleep(60)
    under_way = producer.put(b"under way", hot)
    stage.sleep(0.1)
    waiting = producer.put(b"waiting", cold)
    began = stage.runtime.monotonic()
    with pytest.raises(PutFailed, match="2 records were not delivered"):
        producer.close(timeout=1)
    assert stage.runtime.monotonic() - began <= 1.5
    assert done.result(0).attempts == 1
    assert under_way.exception(0).perhaps_put
    assert not waiting.exception(0).perhaps_put
    stage.sleep(100)
    assert stage.simulation.unfinished("producer") == []


def test_a_missing_permission_fails_the_future_with_what_to_do(stage):
    def refused(_):
        raise SetupError("kinesis:PutRecords is missing")

    stage.trouble = refused
    producer = stage.producer()
    producer.start()
    future = producer.put(b"a")
    with pytest.raises(PutFailed, match="PutRecords is missing"):
        producer.flush()
    assert isinstance(future.exception(0), SetupError)
    stage.trouble = lambda _: ()
    producer.put(b"b")
    producer.close()
    assert stage.seen() == {b"b": 1}


@pytest.mark.parametrize("trouble", [None, SetupError("kinesis:PutRecords is missing")])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_callback_that_raises_anything_keeps_nobody_waiting(stage, caplog, error, trouble):
    def refused(_):
        if trouble is not None:
            raise trouble

    def leave(*_):
        raise error

    stage.trouble = refused
    producer = stage.producer(on_failure=leave)
    producer.start()
    producer.put(b"a").add_done_callback(leave)
    with suppress(PutFailed):
        producer.flush(timeout=60)
    assert producer.pending == 0
    assert f"a callback of a future raised error={error.__name__}" in caplog.text
    stage.trouble = lambda _: ()
    producer.put(b"b")
    producer.close()
    assert stage.seen()[b"b"] == 1


def test_ctrl_c_ends_a_close_that_calls_on_failure_and_no_future_waits_for_ever(stage):
    calls = []

    def interrupted(*call):
        calls.append(call)
        raise KeyboardInterrupt

    stage.trouble = no_answer
    producer = stage.producer(on_failure=interrupted)
    producer.start()
    futures = [producer.put(b"a"), producer.put(b"b")]
    with pytest.raises(KeyboardInterrupt):
        producer.close(timeout=1)
    assert len(calls) == 1
    assert all(isinstance(future.exception(0), NotDelivered) for future in futures)
    assert producer.pending == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
def test_a_client_that_raises_anything_loses_nothing(stage, error):
    def broken(_):
        if len(stage.requests) < 3:
            raise error

    stage.trouble = broken
    with stage.producer() as producer:
        future = producer.put(b"a")
    assert future.result(0).attempts == 3


def test_a_bug_in_a_thread_of_the_producer_is_reported_for_every_record(stage, monkeypatch):
    producer = stage.producer()
    producer.start()
    producer.put(b"in")
    producer.flush()
    monkeypatch.setattr(Accumulator, "take", lambda *_: 1 / 0)
    lost = producer.put(b"lost")
    with pytest.raises(PutFailed, match="bug in pykcl"):
        producer.flush()
    assert isinstance(lost.exception(0), InternalError)
    assert isinstance(lost.exception(0).__cause__, ZeroDivisionError)
    with pytest.raises(PyKclError, match="is closed"):
        producer.put(b"more")
    producer.close()


def test_a_bug_that_ends_a_producer_leaves_records_that_may_be_in_and_that_is_said(stage, monkeypatch):
    stage.answer = no_answer
    producer = stage.producer(linger=0.0)
    producer.start()
    doubtful = producer.put(b"in")
    while not stage.requests:
        stage.sleep(0.01)
    monkeypatch.setattr(Accumulator, "take", lambda *_: 1 / 0)
    lost = producer.put(b"lost")
    with pytest.raises(PutFailed, match="bug in pykcl"):
        producer.close()
    assert stage.seen() == {b"in": 1}
    assert isinstance(lost.exception(0), InternalError)
    assert isinstance(doubtful.exception(0), NotDelivered)
    assert (doubtful.exception(0).perhaps_put, doubtful.exception(0).__cause__) == (True, lost.exception(0))


def test_a_failure_nobody_asked_for_is_raised_by_the_next_flush_and_only_there(stage):
    stage.trouble = no_answer
    with stage.producer(record_ttl=2.0) as producer:
        producer.put(b"a")
        stage.sleep(10)
        stage.trouble = lambda _: ()
        producer.put(b"b")
        with pytest.raises(PutFailed, match="1 records were not delivered") as failed:
            producer.flush()
        assert [record.data for record in failed.value.records] == [b"a"]
        producer.flush()


# -- reshards, with everything else ------------------------------------------------------------------------------------


def test_a_reshard_in_the_middle_loses_nothing_and_is_followed(stage):
    def split(_):
        if len(stage.requests) == 2:
            for shard in ("shardId-000000000000", "shardId-000000000001"):
                stage.kinesis.split("s", shard)

    stage.trouble = split
    with stage.producer() as producer:
        for at in range(3000):
            producer.put(b"%d" % at, f"k{at}")
            if not at % 100:
                stage.sleep(0.05)
    assert stage.seen() == {b"%d" % at: 1 for at in range(3000)}
    assert all(record.data.startswith(MAGIC) for record in stage.requests[-1])


@pytest.mark.parametrize("aggregate", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_in_all_trouble_each_future_is_true_and_ordered_keys_keep_their_order(seed, ordered, aggregate):
    with Simulation(seed=seed) as simulation:
        stage = Stage(simulation, limits=True)
        Chaos(stage)
        producer = stage.producer(ordered=ordered, aggregate=aggregate, connections=4, linger=0.05)
        producer.start()
        futures = {}

        def program(name):
            for at in range(150):
                data = f"{name}/{at:03}".encode() + b"." * simulation.rng.choice((1, 100, 20_000))
                futures[data] = producer.put(data, f"key-{name}-{at % 3}")
                if simulation.rng.random() < 0.3:
                    stage.sleep(0.05)

        tasks = [stage.runtime.spawn(f"program-{name}", lambda name=name: program(name)) for name in "abc"]
        for task in tasks:
            task.join()
        producer.close()
        seen, by_shard = stage.seen(), seen_by_shard(stage.kinesis)
    assert len(futures) == 450
    assert seen.keys() == futures.keys()
    for data, future in futures.items():
        result = future.result(0)
        assert result.perhaps_twice or seen[data] == 1
        assert seen[data] <= result.attempts
    if ordered:
        found = dict.fromkeys(data for shard in by_shard.values() for data in shard)
        for key in {(data[:1], int(data[2:5]) % 3) for data in found}:
            numbers = [data[2:5] for data in found if (data[:1], int(data[2:5]) % 3) == key]
            assert numbers == sorted(numbers)


def test_an_ordered_record_that_is_given_up_halts_its_shard_until_resume(stage):
    hot, cold = stage.key_for("0"), stage.key_for("1")
    stage.trouble = lambda records: [at for at, record in enumerate(records) if record.partition_key == hot]
    producer = stage.producer(ordered=True, record_ttl=1.0)
    producer.start()
    producer.put(b"1", hot)
    stage.sleep(5)
    stage.trouble = lambda _: ()
    with pytest.raises(NotDelivered, match="given up"):
        producer.put(b"2", hot).result(0)
    producer.put(b"other shard", cold)
    producer.resume()
    producer.put(b"3", hot)
    with pytest.raises(PutFailed, match="2 records"):
        producer.close()
    assert stage.seen() == {b"other shard": 1, b"3": 1}


# -- memory ------------------------------------------------------------------------------------------------------------


def test_put_waits_while_the_memory_is_full_and_the_bound_holds(stage):
    stage.trouble = no_answer
    producer = stage.producer(max_pending_bytes=10 * SIZE)
    producer.start()
    taken = []

    def program():
        for _ in range(5):
            taken.append(producer.put(b"x" * 1000, "k"))

    tasks = [stage.runtime.spawn(f"program-{at}", program) for at in range(8)]
    stage.sleep(5)
    assert len(taken) == producer.pending == 10
    stage.trouble = lambda _: ()
    for task in tasks:
        task.join()
    producer.close()
    assert len(taken) == 40
    assert stage.seen() == {b"x" * 1000: 40}


def test_a_put_that_waits_for_room_ends_with_close_and_takes_nothing(stage):
    stage.trouble = no_answer
    producer = stage.producer(max_pending_bytes=SIZE)
    producer.start()
    producer.put(b"x" * 1000, "k")
    ended = []

    def program():
        try:
            producer.put(b"y" * 1000, "k")
        except BufferFull as error:
            ended.append(str(error))

    task = stage.runtime.spawn("program", program)
    stage.sleep(1)
    with pytest.raises(PutFailed, match="1 records"):
        producer.close(timeout=1)
    task.join()
    assert "is closed, and this record was still waiting for room. It was not taken." in ended[0]


@pytest.mark.parametrize(("options", "timeout", "waited"), [({"on_full": "raise"}, None, 0), ({}, 3, 3)])
def test_a_full_buffer_can_be_an_error_that_takes_nothing(stage, options, timeout, waited):
    stage.trouble = no_answer
    producer = stage.producer(max_pending_bytes=2 * SIZE, **options)
    producer.start()
    for _ in range(2):
        producer.put(b"x" * 1000, "k")
    began = stage.runtime.monotonic()
    with pytest.raises(BufferFull, match="2 records of"):
        producer.put(b"y" * 1000, "k", timeout=timeout)
    assert stage.runtime.monotonic() - began == pytest.approx(waited)
    stage.trouble = lambda _: ()
    producer.close()
    assert b"y" * 1000 not in stage.seen()


def test_a_record_larger_than_the_whole_bound_goes_alone(stage):
    with stage.producer(max_pending_bytes=100) as producer:
        producer.put(b"x" * 5000)
    assert stage.seen() == {b"x" * 5000: 1}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "key", "hash_key", "words"),
    [
        (b"x" * 1024 * 1024, "k", None, "makes a record of 1048577 bytes .* accepts at most 1048576"),
        (b"x", "", None, "partition key of 0 characters"),
        (b"x", "k" * 257, None, "partition key of 257 characters"),
        (b"x", "\ud800", None, "not Unicode text"),
        (b"x", 7, None, "partition_key=int is no text"),
        (b"x", "k", 2**128, "not a whole number in"),
        (b"x", "k", -1, "not a whole number in"),
        (b"x", "k", "0x1", "not a whole number in"),
        ("\ud800", "k", None, "half of a character"),
        ({"a": {1}}, "k", None, "dict could not be serialized: TypeError"),
    ],
)
def test_a_record_that_kinesis_does_not_take_is_refused_at_put_and_harms_no_other(
    stage, data, key, hash_key, words
):
    with stage.producer() as producer:
        producer.put(b"good")
        with pytest.raises(RecordRefused, match=words):
            producer.put(data, key, hash_key)
    assert stage.seen() == {b"good": 1}


def test_the_largest_record_of_the_stream_and_the_longest_key_are_taken(stage):
    stage.kinesis.set_max_record_size("s", 2048)
    with stage.producer() as producer:
        future = producer.put(b"x" * (2 * 1024 * 1024 - 1024), "\U0001f600" * 256, 2**128 - 1)
    assert future.result(0).shard_id.endswith("1")


def test_a_record_of_ten_mebibytes_is_taken_and_one_byte_more_is_not(stage):
    stage.kinesis.set_max_record_size("s", 10240)
    with stage.producer() as producer:
        with pytest.raises(RecordRefused, match="accepts at most 10485760"):
            producer.put(b"x" * 10 * 1024 * 1024, "k")
        largest = producer.put(b"x" * (10 * 1024 * 1024 - 1), "k")
        other = producer.put(b"other", "k")
    assert largest.result(0).shard_id == other.result(0).shard_id
    with pytest.raises(PyKclError, match="is closed"):
        producer.put(b"late", "k")
    assert stage.seen()[b"other"] == 1


def test_the_shard_of_a_key_is_known_before_a_record_is_put(stage):
    with stage.producer() as producer:
        futures = {key: producer.put(b"x", key) for key in map(str, range(20))}
        end = producer.put(b"x", "k", 2**128 - 1)
        producer.flush()
        assert {key: future.result(0).shard_id for key, future in futures.items()} == {
            key: producer.shard_of(key) for key in futures
        }
        last = end.result(0).shard_id
        assert producer.shard_of("k", 2**128 - 1) == producer.shard_of("k", str(2**128 - 1)) == last
        assert {producer.shard_of("k", 0), last} == {"shardId-000000000000", "shardId-000000000001"}
        with pytest.raises(RecordRefused, match="partition key of 0 characters"):
            producer.shard_of("")
    with pytest.raises(PyKclError, match="not started"):
        stage.producer().shard_of("k")


def test_the_hash_key_of_a_partition_key_is_that_of_kinesis():
    assert hash_key_of("a") == 0x0CC175B9C0F1B6A831C399E269772661  # md5 of RFC 1321
    assert hash_key_of("a", 7) == hash_key_of("a", "7") == 7
    for keys in (("a" * 257,), ("\ud800",), (1,), ("a", 2**128), ("a", -1), ("a", "x")):
        with pytest.raises(RecordRefused):
            hash_key_of(*keys)


def test_a_producer_says_what_it_needs_before_it_begins(stage):
    with pytest.raises(PyKclError, match="not started"):
        stage.producer().put(b"x")
    stage.kinesis.create_stream("auto", 2, mode="ON_DEMAND", distribution="AUTO")
    stage.stream = MemoryStream(stage.kinesis, "auto", stage.runtime)
    with pytest.raises(SetupError, match="has no order"):
        stage.producer(ordered=True).start()
    stage.stream = MemoryStream(stage.kinesis, "none", stage.runtime)
    with pytest.raises(StreamMissing):
        stage.producer().start()


def test_records_go_plain_into_a_stream_that_ignores_keys(stage):
    stage.kinesis.create_stream("auto", 4, mode="ON_DEMAND", distribution="AUTO")
    stage.stream = MemoryStream(stage.kinesis, "auto", stage.runtime)
    with stage.producer() as producer:
        for at in range(50):
            producer.put(b"%d" % at)
        assert producer.shard_of("k") is None
    assert sorted(record.data for records in stage.requests for record in records) == sorted(
        b"%d" % at for at in range(50)
    )


@pytest.mark.parametrize(
    ("options", "uses"),
    [
        ({"ordered": True}, ["ordered=True"]),
        ({"ordered": True, "aggregate": False}, ["ordered=True"]),
        ({}, ["aggregate=True"]),
        ({"aggregate": False}, []),
    ],
)
def test_a_stream_that_begins_to_ignore_keys_is_an_event_once_where_the_producer_counts_on_them(
    stage, options, uses
):
    stage.kinesis.create_stream("auto", 4, mode="ON_DEMAND")
    stage.name, stage.stream = "auto", MemoryStream(stage.kinesis, "auto", stage.runtime)
    with stage.producer(**options) as producer:
        for at in range(300):
            producer.put(b"%d" % at, str(at % 40))
            if at % 50 == 49:
                producer.flush()
                stage.sleep(1)
            if at == 99:
                assert [event for event in stage.events if isinstance(event, KeysIgnored)] == []
                assert producer.shard_of("0") is not None
                stage.kinesis.set_distribution("auto", "AUTO")
        assert producer.shard_of("0") is None
    assert [event.uses for event in stage.events if isinstance(event, KeysIgnored)] == uses
    assert seen_by_consumers(stage.kinesis, "auto").keys() == {b"%d" % at for at in range(300)}


def test_a_reshard_is_no_stream_that_ignores_keys(stage):
    with stage.producer(ordered=True) as producer:
        for at in range(400):
            producer.put(b"%d" % at, str(at % 40))
            stage.sleep(0.01)
            if at == 100:
                stage.kinesis.split("s", "shardId-000000000000")
            if at == 250:
                stage.kinesis.split("s", "shardId-000000000002")
    assert not [event for event in stage.events if isinstance(event, KeysIgnored)]
    assert stage.seen().keys() == {b"%d" % at for at in range(400)}


def test_without_the_permission_to_list_shards_only_plain_records_go(stage):
    def denied():
        raise SetupError("kinesis:ListShards is missing")

    stage.list_shards = denied
    with pytest.raises(SetupError, match="ListShards"):
        stage.producer().start()
    with stage.producer(aggregate=False) as producer:
        producer.put(b"x")
    assert stage.seen() == {b"x": 1}


async def asynchronous(*_):
    pass


@pytest.mark.parametrize(
    "options",
    [
        {"linger": -1},
        {"linger": float("nan")},
        {"max_pending_bytes": 0},
        {"on_full": "wait"},
        {"record_ttl": 0},
        {"rate_limit": 0},
        {"serializer": "json"},
        {"compression": "lz4"},
        {"connections": 0},
        {"connections": True},
        {"serializer": asynchronous},
        {"on_failure": asynchronous},
        {"on_failure": "log"},
        {"on_event": asynchronous},
        {"region": 7},
    ],
)
def test_options_without_meaning_are_refused_with_their_name(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Producer("s", **options)


def test_a_closed_producer_and_one_that_is_started_twice_say_so(stage):
    producer = stage.producer()
    with producer, pytest.raises(PyKclError, match="started before"):
        producer.start()
    assert producer.closed
    producer.close()
    with pytest.raises(PyKclError, match="is closed"):
        producer.put(b"x")


def test_a_producer_that_was_closed_is_not_started_as_nobody_would_flush_it(stage):
    producer = stage.producer()
    producer.close()
    with pytest.raises(PyKclError, match="was closed before"):
        producer.start()


@pytest.mark.parametrize("wait", ["flush", "close"])
def test_a_callback_that_would_wait_for_its_own_thread_is_refused_and_the_producer_goes_on(stage, wait):
    raised = []

    def callback(_):
        try:
            getattr(producer, wait)()
        except PyKclError as error:
            raised.append(str(error))

    with stage.producer() as producer:
        producer.put(b"x").add_done_callback(callback)
        producer.flush()
        assert "callback" in raised[0]
        later = producer.put(b"y")
        producer.flush()
        assert later.result().attempts == 1


def test_a_forked_process_does_not_use_the_producer_of_the_other_one(stage, monkeypatch):
    producer = stage.producer()
    producer.start()
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORKS", [*module.FORKS, None])
        for use in (lambda: producer.put(b"x"), producer.flush, producer.close):
            with pytest.raises(PyKclError, match="forked"):
                use()
    producer.close()


def test_a_producer_that_was_made_before_a_fork_starts_behind_it(stage, monkeypatch):
    producer = stage.producer()
    monkeypatch.setattr(module, "FORKS", [*module.FORKS, None])
    with producer:
        producer.put(b"x")
    assert stage.seen() == {b"x": 1}
