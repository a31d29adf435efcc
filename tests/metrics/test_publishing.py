"""Publishing in simulated time: in batches, lossy where CloudWatch does not keep up, and in nobody's way."""

from datetime import UTC

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError
from metric_sinks import CloudWatch

from pykcl.aws.cloudwatch import CloudWatchSender, cloudwatch_sender
from pykcl.config import Config
from pykcl.events import FailureResolved, FailureStarted
from pykcl.metrics.catalog import LEASES_LOST_BY_CAUSE, NUM_WORKERS, RECORDS_PROCESSED
from pykcl.metrics.cloudwatch import MAX_METRICS_PER_REQUEST, Publisher, Statistics, StatisticSet
from pykcl.worker.failure_tracker import FailureTracker

ALL = ("Operation", "ShardId", "WorkerIdentifier", "Cause")
DENIED = "User: arn:aws:iam::1:user/u is not authorized to perform: cloudwatch:PutMetricData"
REFUSALS = {
    "Throttling": ClientError({"Error": {"Code": "Throttling"}}, "PutMetricData"),
    "InternalFailure": ClientError({"Error": {"Code": "InternalFailure"}}, "PutMetricData"),
    "unreachable": EndpointConnectionError(endpoint_url="http://cloudwatch.invalid"),
    "no connection in time": ConnectTimeoutError(endpoint_url="http://cloudwatch.invalid"),
}
LOSSES = {
    "no answer": ReadTimeoutError(endpoint_url="http://cloudwatch.invalid"),
    "denied": ClientError({"Error": {"Code": "AccessDenied", "Message": DENIED}}, "PutMetricData"),
    "invalid": ClientError({"Error": {"Code": "InvalidParameterValue"}}, "PutMetricData"),
    "nonsense": ValueError("no JSON"),
}


class Refusing:
    """Raises `error` while there is one."""

    def __init__(self, error=None):
        self.error = error
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.error is not None:
            raise self.error


def one_set(measure=RECORDS_PROCESSED, label="shard-1", **changes):
    return StatisticSet(**{
        "measure": measure, "label": label, "at_millis": 1_700_000_040_000, "count": 3, "sum": 6.0, "minimum": 1.0,
        "maximum": 3.0, **changes,
    })  # fmt: skip


@pytest.fixture
def publishing(simulation):
    """A publisher over a client of CloudWatch, the statistics, and the events."""

    def made(client, limit=10_000):
        runtime, events = simulation.runtime("w1"), []

        class Events:
            emit = staticmethod(events.append)

        statistics = Statistics(runtime, limit)
        sender = CloudWatchSender(client, "orders-app", "w1", ALL)
        return (
            Publisher(statistics, sender, runtime, FailureTracker(Events(), runtime), interval=10.0),
            statistics,
            events,
        )

    return made


def filled(statistics, count, prefix="s"):
    for number in range(count):
        statistics.take(f"{prefix}{number}", ((RECORDS_PROCESSED, 2.0),))


# -- a request -----------------------------------------------------------------------------------------------------


def test_a_set_becomes_a_datum_under_the_names_and_dimensions_of_kcl():
    client = CloudWatch()
    CloudWatchSender(client, "orders-app", "w1", ALL).send([one_set()])
    (request,) = client.requests
    assert request["Namespace"] == "orders-app"
    (datum,) = request["MetricData"]
    assert datum.pop("Timestamp").astimezone(UTC).isoformat() == "2023-11-14T22:14:00+00:00"
    assert datum == {
        "MetricName": "RecordsProcessed",
        "Dimensions": [
            {"Name": "Operation", "Value": "ProcessTask"},
            {"Name": "ShardId", "Value": "shard-1"},
        ],
        "StatisticValues": {"SampleCount": 3.0, "Sum": 6.0, "Minimum": 1.0, "Maximum": 3.0},
        "Unit": "Count",
    }


@pytest.mark.parametrize(
    ("measure", "label", "on", "expected"),
    [
        (NUM_WORKERS, "", ALL, {"Operation": "TakeLeases", "WorkerIdentifier": "w?1"}),
        (NUM_WORKERS, "", ("Operation",), {"Operation": "TakeLeases"}),
        (RECORDS_PROCESSED, "", ("Operation", "WorkerIdentifier"), {"Operation": "ProcessTask"}),
        (
            LEASES_LOST_BY_CAUSE, "Taken", ALL,
            {"Operation": "RenewAllLeases", "WorkerIdentifier": "w?1", "Cause": "Taken"},
        ),
    ],
)  # fmt: skip
def test_dimensions_are_those_that_are_on_and_hold_only_what_cloudwatch_takes(measure, label, on, expected):
    client = CloudWatch()
    CloudWatchSender(client, "orders-app", "w\u00e91", on).send([one_set(measure, label)])
    (datum,) = client.requests[0]["MetricData"]
    assert {one["Name"]: one["Value"] for one in datum["Dimensions"]} == expected


def test_the_namespace_is_the_application_unless_another_is_given():
    for options, expected in (({}, "orders-app"), ({"metrics_namespace": "Orders/KCL"}, "Orders/KCL")):
        client = CloudWatch()
        config = Config(application="orders-app", stream="orders", metrics="cloudwatch", **options)
        cloudwatch_sender(config, "w1", clients={"cloudwatch": client}).send([one_set()])
        assert client.requests[0]["Namespace"] == expected


# -- batches and refusals ------------------------------------------------------------------------------------------


def test_no_request_holds_more_than_cloudwatch_allows(publishing):
    client = CloudWatch()
    publisher, statistics, _ = publishing(client)
    filled(statistics, 2 * MAX_METRICS_PER_REQUEST + 5)
    publisher.publish()
    assert [len(request["MetricData"]) for request in client.requests] == [1000, 1000, 5]
    assert client.sum("RecordsProcessed") == 2.0 * (2 * MAX_METRICS_PER_REQUEST + 5)


@pytest.mark.parametrize("error", REFUSALS.values(), ids=REFUSALS)
def test_what_was_certainly_not_taken_is_sent_again_and_nothing_counts_twice(publishing, error):
    refusing = Refusing(error)
    client = CloudWatch(refusing)
    publisher, statistics, events = publishing(client)
    filled(statistics, 1500)
    publisher.publish()
    # One refusal is enough: the rest waits as well.
    assert refusing.calls == 1
    assert len(statistics) == 1500
    publisher.publish()
    refusing.error = None
    publisher.publish()
    assert client.sum("RecordsProcessed") == 3000.0
    assert client.data("DroppedMetrics") == []
    assert [type(event) for event in events] == [FailureStarted, FailureResolved]
    assert {event.what for event in events} == {"publishing metrics"}


@pytest.mark.parametrize("error", LOSSES.values(), ids=LOSSES)
def test_what_may_have_been_taken_or_never_will_be_is_dropped_and_the_loss_is_published(publishing, error):
    refusing = Refusing(error)
    client = CloudWatch(refusing)
    publisher, statistics, events = publishing(client)
    filled(statistics, 3)
    publisher.publish()
    assert len(statistics) == 0
    refusing.error = None
    filled(statistics, 1, "later")
    publisher.publish()
    assert client.sum("RecordsProcessed") == 2.0
    assert client.sum("DroppedMetrics", Operation="PublishMetrics", WorkerIdentifier="w1") == 3.0
    assert [type(event) for event in events] == [FailureStarted, FailureResolved]


def test_a_refused_permission_is_named(publishing):
    publisher, statistics, events = publishing(CloudWatch(Refusing(LOSSES["denied"])))
    filled(statistics, 1)
    publisher.publish()
    assert "the permission cloudwatch:PutMetricData" in events[0].cause


def test_while_cloudwatch_is_away_no_more_waits_than_allowed_and_the_newest_stays(publishing):
    refusing = Refusing(REFUSALS["unreachable"])
    client = CloudWatch(refusing)
    publisher, statistics, _ = publishing(client, limit=10)
    for round_ in range(5):
        filled(statistics, 4, f"round{round_}-")
        publisher.publish()
        assert len(statistics) <= 10
    refusing.error = None
    publisher.publish()
    shards = [datum["Dimensions"][1]["Value"] for datum in client.data("RecordsProcessed")]
    assert shards[-4:] == [f"round4-{number}" for number in range(4)]
    assert client.sum("DroppedMetrics") + client.sum("RecordsProcessed") / 2 == 20


# -- the thread ----------------------------------------------------------------------------------------------------


def options(client, **more):
    return {"metrics": "cloudwatch", "clients": {"cloudwatch": client}, "metrics_buffer_time": 10.0, **more}


def test_a_worker_publishes_at_intervals_and_the_rest_when_it_stops(fleet):
    client = CloudWatch()
    worker = fleet.start("w1", **options(client))
    fleet.wait_delivered(fleet.put(10))
    assert client.requests == []
    fleet.simulation.sleep(11)
    assert client.sum("RecordsProcessed") == 10.0
    fleet.wait_delivered(fleet.put(5))
    worker.stop()
    assert client.sum("RecordsProcessed") == 15.0
    assert client.sum("CurrentLeases", Operation="RenewAllLeases", WorkerIdentifier="w1") >= 2.0
    assert {request["Namespace"] for request in client.requests} == {"orders-app"}


def test_from_a_minute_on_each_metric_of_each_minute_is_sent_once_and_when_it_is_over(fleet):
    client = CloudWatch()
    worker = fleet.start("w1", **options(client, metrics_buffer_time=60.0, idle_time_between_reads=1.0))
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(255)
    minutes = [datum["Timestamp"] for datum in client.data("CurrentLeases")]
    assert len(minutes) == len(set(minutes)) >= 4
    full = client.data("RecordsProcessed", ShardId="shardId-000000000000")[1:]
    assert len(full) >= 3
    assert all(datum["StatisticValues"]["SampleCount"] >= 45 for datum in full)
    sent = len(client.requests)
    worker.stop()
    # The minute that runs is sent at the end.
    assert len(client.requests) > sent
    assert client.sum("RecordsProcessed") == 10.0


def test_workers_send_at_other_times_of_the_minute(simulation):
    offsets = {
        Publisher(None, None, simulation.runtime(f"w{number}"), None, interval=60.0)._offset
        for number in range(20)
    }
    assert len(offsets) == 20
    assert all(1 <= offset <= 11 for offset in offsets)


def test_a_cloudwatch_that_never_answers_keeps_no_record_no_heartbeat_and_no_stop_waiting(fleet):
    client = CloudWatch(lambda: fleet.simulation.sleep(10_000))
    worker = fleet.start("w1", **options(client))
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(60)
    before = fleet.simulation.now
    fleet.wait_delivered(fleet.put(5))
    assert fleet.simulation.now - before < 3
    assert fleet.load()["w1"] == 2
    before = fleet.simulation.now
    worker.stop()
    assert fleet.simulation.now - before < 5
    assert fleet.load()["w1"] == 0
    assert worker.failure is None


@pytest.mark.parametrize("error", [*REFUSALS.values(), *LOSSES.values(), KeyError("a bug")], ids=repr)
def test_no_failure_of_cloudwatch_is_the_workers(fleet, error):
    worker = fleet.start("w1", **options(CloudWatch(Refusing(error))))
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(60)
    fleet.wait_delivered(fleet.put(5))
    assert worker.failure is None
    (began,) = [event for event in fleet.happened(FailureStarted) if event.what == "publishing metrics"]
    assert "a bug" not in began.cause
    worker.stop()


def test_after_a_bug_in_sending_the_thread_goes_on(fleet):
    refusing = Refusing(AssertionError())
    client = CloudWatch(refusing)
    fleet.start("w1", **options(client))
    fleet.wait_delivered(fleet.put(5))
    fleet.simulation.sleep(25)
    refusing.error = None
    fleet.wait(lambda: client.data("CurrentLeases"), what="metrics after the bug")
    assert client.sum("DroppedMetrics") > 0


def test_nothing_of_cloudwatch_is_made_where_metrics_go_elsewhere_or_nowhere(fleet):
    for name, metrics in (("w1", "none"), ("w2", "prometheus")):
        client = CloudWatch()
        worker = fleet.start(name, **options(client, metrics=metrics))
        fleet.simulation.sleep(30)
        assert client.requests == []
        worker.stop()
    fleet.start("w3", **options(client := CloudWatch(), metrics_level="NONE"))
    fleet.simulation.sleep(30)
    assert client.requests == []
    threads = {task.name for name in ("w1", "w2", "w3") for task in fleet.simulation.unfinished(name)}
    assert not any("metrics" in name for name in threads)
