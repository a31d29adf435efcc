"""Lag that workers tell of themselves, and lag that CloudWatch was told."""

from datetime import datetime, timezone

import pytest
from botocore.exceptions import ClientError
from fleet_table import ended, lease, shard

from pykcl.aws.metric_reads import BehindTold, MetricReader
from pykcl.errors import SetupError, TemporaryError
from pykcl.operate.lag import ShardLag
from pykcl.operate.lag_sources import METRIC_PATIENCE, CloudWatchLag, StatusLag
from pykcl.operate.worker_pages import WorkerPage

NOW = 1_790_000_000_000


def page(worker, **behind):
    told = {shard(int(key[1:])): value for key, value in behind.items()}
    return WorkerPage(f"http://{worker}", worker=worker, behind=told)


def silent(host, problem="does not answer (TimeoutError)"):
    return WorkerPage(f"http://{host}", problem=problem)


# -- status ----------------------------------------------------------------------------------------------------


def by_status(leases, *pages):
    return StatusLag(lambda: pages).lags(leases)


def test_the_owner_tells_and_what_it_told_is_counted_on():
    found = by_status(
        [lease(0, "a"), lease(1, "b"), ended(2, 3)], page("a", s0=(4.0, 0.5)), page("b", s1=(0.0, 90.0))
    )
    assert found[shard(0)] == ShardLag(4.5, "told")
    assert found[shard(1)] == ShardLag(90.0, "told"), "it read last 90 s ago"
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
    assert "nobody owns it" in found[shard(2)].why
    assert "http://b: does not answer" in source.cost


def test_where_no_worker_answers_nothing_is_told_and_why_is():
    with pytest.raises(SetupError, match=r"No worker told.*http://a: refuses.*http://b: does not answer"):
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
                "Timestamps": [datetime.fromtimestamp(NOW / 1000 - age, timezone.utc) for age, _ in points],
            })  # fmt: skip
        first = int(request.get("NextToken", 0))
        more = {"NextToken": str(first + self.page)} if first + self.page < len(results) else {}
        return {"MetricDataResults": results[first : first + self.page], **more}


class Clock:
    def utcnow_millis(self):
        return NOW


def by_cloudwatch(leases, metrics):
    return CloudWatchLag(MetricReader(metrics, "orders-app"), Clock()).lags(leases)


@pytest.mark.parametrize("points", [[(130, 9000.0), (70, 4200.0)], [(70, 4200.0), (130, 9000.0)]])
def test_the_newest_minute_counts_and_ended_shards_are_not_asked_for(points):
    metrics = Metrics(s0=points)
    source = CloudWatchLag(MetricReader(metrics, "orders-app"), Clock())
    found = source.lags([lease(0, "a"), ended(1, 2)])
    assert found == {shard(0): ShardLag(4.2, "told"), shard(1): ShardLag(0.0, "ended")}
    (request,) = metrics.asked
    assert len(request["MetricDataQueries"]) == 1
    assert "asked for 1 metrics" in source.cost
    assert "$0.00001" in source.cost


def test_an_old_value_and_none_at_all_are_unknown():
    found = by_cloudwatch(
        [lease(number, "a") for number in range(3)],
        Metrics(s0=[(METRIC_PATIENCE, 0.0)], s1=[(METRIC_PATIENCE + 1, 0.0)]),
    )
    assert found[shard(0)].behind == 0.0
    assert (found[shard(1)].behind, found[shard(2)].behind) == (None, None)
    assert "last told of it 3 min ago" in found[shard(1)].why
    assert "told nothing of it" in found[shard(2)].why


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
    with pytest.raises(TemporaryError, match="none"):
        by_cloudwatch([lease(0, "a")], metrics)


def test_what_was_told_has_its_moment():
    assert MetricReader(Metrics(s0=[(60, 7.0)]), "orders-app").behind([shard(0)], NOW) == {
        shard(0): BehindTold(7.0, NOW - 60_000)
    }
