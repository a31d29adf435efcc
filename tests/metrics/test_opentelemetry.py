"""What OpenTelemetry is told, through its in-memory reader: instruments and attributes of KCL 3.5."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pykcl.metrics import catalog
from pykcl.metrics.catalog import CATALOGUE, DIMENSIONS, PRODUCER_CATALOGUE, PRODUCER_DIMENSIONS
from pykcl.metrics.opentelemetry import METER, OpenTelemetrySink, otel_name

SHARD = "shardId-000000000000"
OF_SHARD = {"aws.kinesis.operation": "ProcessTask", "aws.kinesis.shard.id": SHARD}


@pytest.fixture
def reader():
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader):
    provider = MeterProvider([reader])
    yield provider
    provider.shutdown()


@pytest.fixture
def sink(provider):
    return OpenTelemetrySink("w1", dimensions=DIMENSIONS, meter_provider=provider)


def read(reader):
    """name -> (kind of data, unit, points)."""
    data = reader.get_metrics_data()
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    assert {scope.scope.name for scope in scopes} == {METER}
    return {
        metric.name: (type(metric.data).__name__, metric.unit, list(metric.data.data_points))
        for scope in scopes
        for metric in scope.metrics
    }


@pytest.mark.parametrize(
    ("kcl", "ours"),
    [
        ("MillisBehindLatest", "consumer.lag.duration"),
        ("DataBytesProcessed", "records.size"),
        ("NumWorkers", "workers"),
        ("NumStreamsToSync", "streams.pending_sync"),
        ("RecordsProcessed", "records_processed"),
        ("RecordProcessor.processRecords.Time", "record_processor.process_records.duration"),
        ("KinesisDataFetcher.getRecords.Success", "kinesis_data_fetcher.get_records.success"),
        ("Time", "time"),
        ("GSIReady.Count", "gsi_ready"),
    ],
)
def test_names_are_made_as_kcl_makes_them(kcl, ours):
    assert otel_name(kcl) == f"aws.kinesis.client.{ours}"


def test_times_are_histograms_counts_counters_and_kcls_gauges_gauges(sink, reader):
    for count, lag in ((5.0, 90.0), (7.0, 30.0)):
        sink.take(SHARD, ((catalog.RECORDS_PROCESSED, count), (catalog.MILLIS_BEHIND_LATEST, lag)))
        sink.take("", ((catalog.CURRENT_LEASES, count), (catalog.NEEDED_LEASES, count)))
    found = read(reader)
    kind, unit, (point,) = found["aws.kinesis.client.records_processed"]
    assert (kind, unit, point.value, dict(point.attributes)) == ("Sum", "1", 12.0, OF_SHARD)
    kind, unit, (point,) = found["aws.kinesis.client.consumer.lag.duration"]
    assert (kind, unit, point.sum, point.count, dict(point.attributes)) == (
        "Histogram",
        "ms",
        120.0,
        2,
        OF_SHARD,
    )
    kind, unit, (point,) = found["aws.kinesis.client.current_leases"]
    assert (kind, unit, point.value) == ("Gauge", "1", 7.0)
    assert dict(point.attributes) == {
        "aws.kinesis.operation": "RenewAllLeases", "aws.kinesis.consumer.name": "w1",
    }  # fmt: skip
    assert found["aws.kinesis.client.needed_leases"][0] == "Sum"


def test_the_whole_catalogue_is_taken(sink, reader):
    for measure in CATALOGUE:
        sink.take(SHARD if measure.dimension == "ShardId" else "Taken", ((measure, 1.0),))
    found = read(reader)
    assert found.keys() == {otel_name(measure.name) for measure in CATALOGUE}
    (point,) = found["aws.kinesis.client.leases_lost_by_cause"][2]
    assert point.attributes["aws.kinesis.cause"] == "Taken"
    assert {found[otel_name("DataBytesProcessed")][1], found[otel_name("Success")][1]} == {"By", "1"}


def test_what_a_producer_measures_is_taken_too_with_stream_shard_and_error(provider, reader):
    sink = OpenTelemetrySink("orders", dimensions=PRODUCER_DIMENSIONS, meter_provider=provider)
    for measure in PRODUCER_CATALOGUE:
        sink.take("Throttled" if measure.dimension == "ErrorCode" else SHARD, ((measure, 1.0),))
    found = read(reader)
    assert found.keys() == {otel_name(measure.name) for measure in PRODUCER_CATALOGUE}
    kind, _, (point,) = found["aws.kinesis.client.user_records_put"]
    assert (kind, dict(point.attributes)) == (
        "Sum", {"aws.kinesis.stream.name": "orders", "aws.kinesis.shard.id": SHARD},
    )  # fmt: skip
    (point,) = found["aws.kinesis.client.errors_by_code"][2]
    assert point.attributes["aws.kinesis.error.code"] == "Throttled"
    assert found["aws.kinesis.client.user_records_pending"][0] == "Gauge"


def test_attributes_that_are_off_are_left_out(provider, reader):
    sink = OpenTelemetrySink("w1", dimensions=("Operation",), meter_provider=provider)
    sink.take("", ((catalog.RECORDS_PROCESSED, 5.0), (catalog.CURRENT_LEASES, 1.0)))
    for name in ("records_processed", "current_leases"):
        (point,) = read(reader)[f"aws.kinesis.client.{name}"][2]
        assert point.attributes.keys() == {"aws.kinesis.operation"}


def test_nothing_is_remembered_of_shards_that_have_gone(sink):
    for number in range(10):
        sink.take(f"shard-{number}", ((catalog.RECORDS_PROCESSED, 1.0),))
        sink.forget(f"shard-{number}")
    assert not sink._attributes


def test_a_worker_records_through_the_provider_of_the_application(fleet, provider, reader, monkeypatch):
    from opentelemetry import metrics

    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    monkeypatch.setattr("opentelemetry.metrics._internal.get_meter_provider", lambda: provider)
    fleet.start("w1", metrics="otel,prometheus")
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(5)
    _, _, points = read(reader)["aws.kinesis.client.records_processed"]
    assert sum(point.value for point in points) == 10.0


def test_without_a_provider_nothing_happens_and_nothing_breaks(fleet):
    fleet.start("w1", metrics="otel")
    fleet.wait_delivered(fleet.put(10))
    assert fleet.load()["w1"] == 2


def test_what_is_remembered_of_shards_has_a_bound(sink, reader, monkeypatch):
    monkeypatch.setattr("pykcl.metrics.opentelemetry.MOST_REMEMBERED", 10)
    for number in range(100):
        sink.forget(f"shard-{number}")
        sink.take(f"shard-{number}", ((catalog.RECORDS_PROCESSED, 1.0),))
    assert len(sink._attributes) <= 10
    _, _, points = read(reader)["aws.kinesis.client.records_processed"]
    assert sum(point.value for point in points) == 100.0
