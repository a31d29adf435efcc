"""Lag of leases: read from Kinesis, reported by workers, and from CloudWatch."""

import re
import threading
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError
from fleet_table import ended, lease, shard

from pykcl.errors import SetupError, TemporaryError, Throttled
from pykcl.local.stream import LocalKinesis
from pykcl.model.checkpoint import AT_LATEST, AT_TRIM_HORIZON, Checkpoint
from pykcl.model.kpl import UserRecord, aggregate
from pykcl.model.shard import HashRange
from pykcl.operate.lag import (
    MAX_METRIC_AGE,
    MAX_PARALLEL,
    CloudWatchLag,
    KinesisLag,
    ShardLag,
    StatusLag,
    total_of,
)
from pykcl.operate.worker_status import WorkerReport
from pykcl.runtime import SystemRuntime, parallel_map
from pykcl.testing.memory.stream import MemoryStream


class Stream(MemoryStream):
    """Counts what is asked, and fails when told to."""

    def __init__(self, *args):
        super().__init__(*args)
        self.calls = []
        self.failures = []

    def open(self, shard_id, start):
        self.calls.append("open")
        if self.failures:
            raise self.failures.pop()
        return super().open(shard_id, start)

    def fetch(self, shard_id, iterator, limit):
        self.calls.append("fetch")
        return super().fetch(shard_id, iterator, limit)


@pytest.fixture
def kinesis(clock):
    clock.utcnow_millis = lambda: 1_790_000_000_000 + int(clock.now * 1000)
    found = LocalKinesis(clock.utcnow_millis)
    found.create_stream("orders", 1)
    return found


@pytest.fixture
def stream(kinesis, clock):
    return Stream(kinesis, "orders", clock)


def put(kinesis, data=b"x"):
    return kinesis.put_record("orders", data, "key").sequence_number


def lag_of(stream, clock, checkpoint, **more):
    return asked(KinesisLag(stream, clock), checkpoint, **more)


def asked(source, checkpoint, **more):
    (found,) = source.lags([lease(0, "w1", checkpoint, **more)]).values()
    return found


def test_what_lies_behind_the_checkpoint_has_been_waiting_since_it_arrived(kinesis, stream, clock):
    first = put(kinesis)
    clock.now += 30
    put(kinesis)
    clock.now += 60
    assert lag_of(stream, clock, Checkpoint(first)).behind == pytest.approx(60, abs=1)
    assert lag_of(stream, clock, AT_TRIM_HORIZON).behind == pytest.approx(90, abs=1)
    assert stream.calls == ["open", "fetch"] * 2


def test_one_record_left_is_a_lag_although_kinesis_says_zero_behind_it(kinesis, stream, clock):
    first = put(kinesis)
    put(kinesis)
    clock.now += 3600
    assert lag_of(stream, clock, Checkpoint(first)).behind == pytest.approx(3600, abs=1)


def test_at_the_tip_nothing_is_behind(kinesis, stream, clock):
    last = put(kinesis)
    clock.now += 3600
    assert lag_of(stream, clock, Checkpoint(last)).behind == 0
    assert lag_of(stream, clock, AT_LATEST).behind == 0


def test_a_half_done_aggregate_is_unread_and_a_done_one_is_not(kinesis, stream, clock):
    (blob,) = aggregate([UserRecord(f"key-{number}", None, b"x") for number in range(3)])
    number = put(kinesis, blob.data)
    clock.now += 50
    assert lag_of(stream, clock, Checkpoint(number, 1)).behind == pytest.approx(50, abs=1)
    assert lag_of(stream, clock, Checkpoint(number, 2)).behind == 0


@pytest.mark.parametrize(("distribution", "waits"), [("AUTO", 50), ("USER_PARTITION_KEY", 0)])
def test_a_half_done_aggregate_of_other_hash_keys_is_unread_where_keys_are_ignored(
    clock, distribution, waits
):
    """The worker delivers it whole there; on any other stream it drops it, as Java does."""
    clock.utcnow_millis = lambda: 1_790_000_000_000 + int(clock.now * 1000)
    kinesis = LocalKinesis(clock.utcnow_millis)
    kinesis.create_stream("orders", 2, mode="ON_DEMAND", distribution=distribution)
    stream = Stream(kinesis, "orders", clock)
    (blob,) = aggregate([UserRecord("key", key, b"x") for key in ("0", str(2**128 - 1))])
    put_into = kinesis.put_record("orders", blob.data, "key")
    clock.now += 50
    keys = stream.list_shards().by_id[put_into.shard_id].hash_range
    (found,) = (
        KinesisLag(stream, clock)
        .lags(
            [
                lease(0, "w1", Checkpoint(put_into.sequence_number, 0)).with_(
                    key=put_into.shard_id, hash_range=keys
                )
            ]
        )
        .values()
    )
    assert found.behind == pytest.approx(waits, abs=1)


def test_the_range_that_kinesis_lists_decides_about_an_aggregate_not_that_of_the_row(kinesis, stream, clock):
    (blob,) = aggregate([UserRecord(f"key-{number}", None, b"x") for number in range(3)])
    number = put(kinesis, blob.data)
    clock.now += 50
    wrong = lag_of(stream, clock, Checkpoint(number, 1), hash_range=HashRange(0, 1))
    assert wrong.behind == pytest.approx(50, abs=1)


def test_a_checkpoint_older_than_the_oldest_record_is_told_to_be_trimmed(kinesis, stream, clock):
    first = put(kinesis)
    clock.now += 23 * 3600
    put(kinesis)
    put_at = clock.now
    clock.now += 2 * 3600
    found = lag_of(stream, clock, Checkpoint(first))
    assert found.verdict == "trimmed"
    assert found.behind == pytest.approx(clock.now - put_at, abs=1)
    # One that can only read a little for each answer comes to the same in the end, also about the record it began at.
    patient = KinesisLag(stream, clock, max_reads=3)
    found = [one for one in (asked(patient, Checkpoint(first)) for _ in range(150)) if one.behind is not None]
    assert found[0].verdict == "trimmed"
    assert found[-1].behind == pytest.approx(clock.now - put_at, abs=1)


def test_a_day_without_records_is_followed_to_the_record_behind_it(kinesis, stream, clock):
    first = put(kinesis)
    clock.now += 20 * 3600
    assert lag_of(stream, clock, Checkpoint(first)).behind == 0
    put(kinesis)
    clock.now += 60
    stream.calls.clear()
    found = lag_of(stream, clock, Checkpoint(first))
    assert (found.verdict, found.reads) == ("read", stream.calls.count("fetch"))
    assert 60 <= found.behind < 60 + found.reads
    assert 100 < found.reads < 300
    assert set(clock.waits) == {0.25}, "no more than four of a shard's five reads a second"


def test_what_was_not_read_to_an_end_is_unknown_and_the_next_answer_goes_on_there(kinesis, stream, clock):
    first = put(kinesis)
    clock.now += 5 * 3600
    source = KinesisLag(stream, clock, max_reads=3)
    found = asked(source, Checkpoint(first))
    assert (found.behind, found.verdict, found.reads) == (None, "unknown", 3)
    assert re.search(r"3 reads found no record .* at most [34]\.\d hours behind", found.why)
    answers = [asked(source, Checkpoint(first)) for _ in range(40)]
    assert [one.behind for one in answers[-10:]] == [0.0] * 10
    assert [one.reads for one in answers[-10:]] == [1] * 10
    unread = put(kinesis)
    clock.now += 30
    found = asked(source, Checkpoint(first))
    assert (found.verdict, found.reads) == ("read", 1)
    assert found.behind == pytest.approx(30, abs=1)
    assert asked(source, Checkpoint(unread)).behind == 0
    # Set back, it is another place, of which nothing is known.
    found = asked(KinesisLag(stream, clock), AT_TRIM_HORIZON)
    assert found.behind > 5 * 3600
    assert asked(source, AT_TRIM_HORIZON).behind == pytest.approx(found.behind, abs=1)


def test_an_ended_lease_is_not_asked_for_and_a_shard_that_is_gone_is_told(stream, clock):
    found = KinesisLag(stream, clock).lags([ended(0, 1), lease(7, "w1")])
    assert found[shard(0)] == ShardLag(0.0, "ended")
    assert (found[shard(7)].behind, found[shard(7)].verdict) == (None, "gone")
    assert stream.calls.count("fetch") == 0


def test_a_throttled_shard_is_asked_once_more_after_a_second_and_then_left_alone(kinesis, stream, clock):
    put(kinesis)
    stream.failures = [Throttled("slow down")]
    assert lag_of(stream, clock, AT_TRIM_HORIZON).behind is not None
    assert clock.waits == [1.0]
    stream.failures = [Throttled("slow down")] * 2
    found = lag_of(stream, clock, AT_TRIM_HORIZON)
    assert (found.behind, found.verdict, found.why) == (None, "unknown", "slow down")


def test_no_more_shards_are_asked_at_once_than_it_says(clock):
    now, most = [0], [0]

    class Slow:
        def open(self, shard_id, start):
            now[0] += 1
            most[0] = max(most[0], now[0])
            now[0] -= 1
            raise Throttled("no")

        def server_time_millis(self):
            return 0

    found = KinesisLag(Slow(), clock).lags([lease(number, "w1") for number in range(100)])
    assert len(found) == 100
    assert most[0] <= MAX_PARALLEL


def test_shards_come_in_the_order_in_which_they_were_asked_for_whoever_answers_first():
    """Of shards that wait for the same time, the doctor names the first."""
    is_second_done = threading.Event()

    def call(key):
        if key == 1:
            assert is_second_done.wait(60.0)
        else:
            is_second_done.set()
        return key

    assert [*parallel_map(call, [1, 2], SystemRuntime(), max_threads=2, name="lag")] == [1, 2]


def test_the_total_is_the_worst_and_counts_who_is_late_or_unknown():
    lags = {"a": ShardLag(3.0), "b": ShardLag(70.0), "c": ShardLag(None, "unknown"), "d": ShardLag(60.0)}
    total = total_of(lags, 60.0)
    assert (total.behind, total.shard, total.late, total.unknown) == (70.0, "b", 1, 1)
    assert total_of({}).behind is None
    assert total_of({"c": ShardLag(None, "unknown")}).behind is None


NOW = 1_790_000_000_000


def page(worker, **behind):
    told = {shard(int(key[1:])): value for key, value in behind.items()}
    return WorkerReport(f"http://{worker}", worker=worker, behind=told)


def silent(host, problem="does not answer (TimeoutError)"):
    return WorkerReport(f"http://{host}", problem=problem)


# -- status ----------------------------------------------------------------------------------------------------


def by_status(leases, *pages):
    return StatusLag(lambda: pages).lags(leases)


def test_the_owner_tells_and_what_it_told_is_counted_on():
    found = by_status(
        [lease(0, "a"), lease(1, "b"), ended(2, 3)], page("a", s0=(4.0, 0.5)), page("b", s1=(0.0, 90.0))
    )
    assert found[shard(0)] == ShardLag(4.5, "reported")
    assert found[shard(1)] == ShardLag(90.0, "reported"), "it read last 90 s ago"
    assert found[shard(2)] == ShardLag(0.0, "ended")


def test_who_has_lost_a_lease_is_not_believed():
    found = by_status([lease(0, "b")], page("a", s0=(0.0, 0.0)), page("b"))
    assert found[shard(0)].behind is None
    assert "has read nothing of it yet" in found[shard(0)].why


def test_a_shard_whose_owner_does_not_answer_or_that_has_none_is_unknown():
    source = StatusLag(lambda: [page("a", s0=(1.0, 0.0)), silent("b")])
    found = source.lags([lease(0, "a"), lease(1, "b"), lease(2, None)])
    assert found[shard(0)].behind == 1.0
    assert (found[shard(1)].behind, found[shard(2)].behind) == (None, None)
    assert "it has no owner" in found[shard(2)].why
    assert "http://b: does not answer" in source.cost


def test_where_no_worker_answers_nothing_is_told_and_why_is():
    with pytest.raises(SetupError, match=r"No worker reported.*http://a: refuses.*http://b: does not answer"):
        by_status([lease(0, "a")], silent("a", "refuses: its token is another one"), silent("b"))


# -- CloudWatch ------------------------------------------------------------------------------------------------


class Metrics:
    """Answers GetMetricData with what it holds: (namespace, shard) -> [(age in seconds, millis)]."""

    def __init__(self, **points):
        self.points = {shard(int(key[1:])): value for key, value in points.items()}
        self.asked, self.error, self.status, self.page = [], None, "Complete", 100

    def get_metric_data(self, **request):
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        results = []
        for query in request["MetricDataQueries"]:
            metric = query["MetricStat"]["Metric"]
            assert (metric["Namespace"], metric["MetricName"]) == ("orders-app", "MillisBehindLatest")
            names = {one["Name"]: one["Value"] for one in metric["Dimensions"]}
            assert names.pop("Operation") == "ProcessTask"
            points = self.points.get(names.pop("ShardId"), [])
            assert not names
            results.append({
                "Id": query["Id"], "StatusCode": self.status, "Values": [millis for _, millis in points],
                "Timestamps": [datetime.fromtimestamp(NOW / 1000 - age, UTC) for age, _ in points],
            })  # fmt: skip
        first = int(request.get("NextToken", 0))
        more = {"NextToken": str(first + self.page)} if first + self.page < len(results) else {}
        return {"MetricDataResults": results[first : first + self.page], **more}


class Clock:
    def utcnow_millis(self):
        return NOW


def by_cloudwatch(leases, metrics):
    return CloudWatchLag(metrics, "orders-app", Clock()).lags(leases)


@pytest.mark.parametrize("points", [[(130, 9000.0), (70, 4200.0)], [(70, 4200.0), (130, 9000.0)]])
def test_the_newest_minute_counts_and_ended_shards_are_not_asked_for(points):
    metrics = Metrics(s0=points)
    source = CloudWatchLag(metrics, "orders-app", Clock())
    found = source.lags([lease(0, "a"), ended(1, 2)])
    assert found == {shard(0): ShardLag(4.2, "reported"), shard(1): ShardLag(0.0, "ended")}
    (request,) = metrics.asked
    assert len(request["MetricDataQueries"]) == 1
    assert "asked for 1 metrics" in source.cost
    assert "$" not in source.cost


def test_an_old_value_and_none_at_all_are_unknown():
    found = by_cloudwatch(
        [lease(number, "a") for number in range(3)],
        Metrics(s0=[(MAX_METRIC_AGE, 0.0)], s1=[(MAX_METRIC_AGE + 1, 0.0)]),
    )
    assert found[shard(0)].behind == 0.0
    assert (found[shard(1)].behind, found[shard(2)].behind) == (None, None)
    assert "the last value in CloudWatch is 3 min old" in found[shard(1)].why
    assert "no value of the last ten minutes" in found[shard(2)].why


def test_many_shards_are_asked_for_by_the_five_hundred_and_pages_are_followed():
    metrics = Metrics(**{f"s{number}": [(60, float(number))] for number in range(1001)})
    found = by_cloudwatch([lease(number, "a") for number in range(1001)], metrics)
    assert [len(request["MetricDataQueries"]) for request in metrics.asked] == [500] * 10 + [1]
    assert all(found[shard(number)].behind == number / 1000 for number in range(1001))


def test_a_namespace_without_any_is_an_error_that_says_what_to_do():
    with pytest.raises(TemporaryError, match=r"namespace 'orders-app'.*--namespace"):
        by_cloudwatch([lease(0, "a")], Metrics())
    assert by_cloudwatch([ended(0, 1)], Metrics()) == {shard(0): ShardLag(0.0, "ended")}


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("AccessDenied", SetupError, r"cloudwatch:GetMetricData.*not permitted"),
        ("Throttling", TemporaryError, "throttled"),
        ("InternalServiceFault", TemporaryError, "It may work later"),
    ],
)
def test_what_cloudwatch_refuses_is_told(code, kind, words):
    metrics = Metrics(s0=[(60, 0.0)])
    metrics.error = ClientError({"Error": {"Code": code, "Message": ""}}, "GetMetricData")
    with pytest.raises(kind, match=words):
        by_cloudwatch([lease(0, "a")], metrics)


def test_a_metric_that_cloudwatch_does_not_answer_for_is_no_zero():
    metrics = Metrics(s0=[(60, 0.0)])
    metrics.status = "Forbidden"
    with pytest.raises(TemporaryError, match="Forbidden"):
        by_cloudwatch([lease(0, "a")], metrics)
    metrics.status, metrics.get_metric_data = "Complete", lambda **_: {"nonsense": 1}
    with pytest.raises(TemporaryError, match="cannot be read"):
        by_cloudwatch([lease(0, "a")], metrics)
