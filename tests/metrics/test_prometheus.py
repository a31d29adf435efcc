"""What Prometheus is told: read back by its own parser."""

import re
import sys

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pykcl.config import Config
from pykcl.errors import ConfigError
from pykcl.metrics import catalog
from pykcl.metrics.catalog import CATALOGUE, PRODUCER_CATALOGUE, PRODUCER_DIMENSIONS
from pykcl.metrics.prometheus import (
    BUCKETS,
    LEAVES_AFTER,
    MOST_LEFT_SHARDS,
    PrometheusSink,
    kind_of,
    prometheus_name,
    total_name,
)
from pykcl.metrics.setup import MetricsPipeline, dimensions_of
from pykcl.testing.fleet import STREAM

CONFIG = Config(application="orders-app", stream="orders", metrics="prometheus")
SHARD = "shardId-000000000000"


@pytest.fixture
def sink(simulation):
    return PrometheusSink(simulation.runtime("w1"), 'w"1\n', dimensions=dimensions_of(CONFIG))


def families(sink):
    page, kind = sink.exposition()
    assert kind.startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def samples(sink):
    return {
        (
            sample.name,
            tuple(sorted((key, value) for key, value in sample.labels.items() if value)),
        ): sample.value
        for family in families(sink).values()
        for sample in family.samples
    }


def of_shard(name, shard=SHARD, **more):
    return name, tuple(sorted({"operation": "ProcessTask", "shard": shard, **more}.items()))


def test_counts_are_added_up_states_are_the_last_and_times_are_in_seconds(sink):
    for count, lag, took in ((5.0, 90_000.0, 30.0), (7.0, 250.0, 4_000.0)):
        sink.take(
            SHARD,
            (
                (catalog.RECORDS_PROCESSED, count),
                (catalog.MILLIS_BEHIND_LATEST, lag),
                (catalog.PROCESS_RECORDS_TIME, took),
            ),
        )
    found = samples(sink)
    assert found[of_shard("pykcl_records_processed_total")] == 12.0
    assert found[of_shard("pykcl_behind_latest_seconds")] == 0.25
    name = "pykcl_record_processor_process_records_seconds"
    assert found[of_shard(f"{name}_count")] == 2.0
    assert found[of_shard(f"{name}_sum")] == pytest.approx(4.03)
    assert found[of_shard(f"{name}_bucket", le="0.025")] == 0.0
    assert found[of_shard(f"{name}_bucket", le="0.05")] == 1.0
    assert found[of_shard(f"{name}_bucket", le="5.0")] == 2.0
    assert found[of_shard(f"{name}_bucket", le="+Inf")] == 2.0


def test_a_value_on_the_edge_of_a_bucket_is_in_it(sink):
    for edge in BUCKETS:
        sink.take(SHARD, ((catalog.PROCESS_RECORDS_TIME, edge * 1000),))
    found = samples(sink)
    buckets = [
        found[of_shard("pykcl_record_processor_process_records_seconds_bucket", le=f"{edge}")]
        for edge in BUCKETS
    ]
    assert buckets == [float(number) for number in range(1, len(BUCKETS) + 1)]


def test_the_whole_catalogue_is_accepted_by_prometheus_own_parser(sink):
    for measure in CATALOGUE:
        sink.take(SHARD if measure.dimension == "ShardId" else "Taken", ((measure, 1.0),))
    found = families(sink)
    for measure in CATALOGUE:
        name = prometheus_name(measure)
        if name is not None:
            family = found[name.removesuffix("_total")]
            assert family.type == kind_of(measure)
            assert measure.operation in {sample.labels["operation"] for sample in family.samples}
    totals = {total_name(one) for one in CATALOGUE} - {None}
    assert len({prometheus_name(one) for one in CATALOGUE}) - 1 + len(totals) == len(found)
    causes = [sample.labels for sample in found["pykcl_leases_lost_by_cause"].samples]
    assert causes == [{"operation": "RenewAllLeases", "worker": 'w"1\n', "cause": "Taken"}]


def test_what_a_producer_measures_is_accepted_too_with_stream_shard_and_error(simulation):
    sink = PrometheusSink(
        simulation.runtime("p"), "orders", dimensions=PRODUCER_DIMENSIONS, catalogue=PRODUCER_CATALOGUE
    )
    for measure in PRODUCER_CATALOGUE:
        sink.take("Throttled" if measure.dimension == "ErrorCode" else SHARD, ((measure, 1.0),))
    found = families(sink)
    for measure in PRODUCER_CATALOGUE:
        family = found[prometheus_name(measure).removesuffix("_total")]
        assert family.type == kind_of(measure)
        expected = {"stream": "orders"}
        if measure.dimension is not None:
            expected |= {"ShardId": {"shard": SHARD}, "ErrorCode": {"error": "Throttled"}}[measure.dimension]
        labels = [
            {name: value for name, value in one.labels.items() if name != "le"} for one in family.samples
        ]
        assert labels == [expected] * len(labels) != []
    totals = {total_name(one) for one in PRODUCER_CATALOGUE} - {None}
    assert len(found) == len(PRODUCER_CATALOGUE) + len(totals)


def test_of_a_shard_that_has_gone_the_state_goes_and_the_counts_stay(sink):
    sink.take(SHARD, ((catalog.RECORDS_PROCESSED, 5.0), (catalog.MILLIS_BEHIND_LATEST, 9.0)))
    sink.take("", ((catalog.CURRENT_LEASES, 1.0),))
    sink.forget(SHARD)
    found = samples(sink)
    assert of_shard("pykcl_behind_latest_seconds") not in found
    assert found[of_shard("pykcl_records_processed_total")] == 5.0
    assert any(name == "pykcl_current_leases" for name, _ in found)


def test_shards_that_have_gone_do_not_pile_up_for_ever(sink):
    for number in range(MOST_LEFT_SHARDS + 5):
        shard = f"shard-{number}"
        sink.take(shard, ((catalog.RECORDS_PROCESSED, 1.0), (catalog.PROCESS_RECORDS_TIME, 1.0)))
        sink.forget(shard)
    sink.take("held", ((catalog.RECORDS_PROCESSED, 1.0),))
    left = {dict(labels).get("shard") for _, labels in samples(sink)}
    left.discard(None)
    assert len(left) == MOST_LEFT_SHARDS + 1
    assert "shard-4" not in left
    assert {"shard-5", "held"} <= left


ALL = ("pykcl_records_processed_all_shards_total", (("operation", "ProcessTask"),))


def series_of(sink, shard):
    return {name for name, labels in samples(sink) if ("shard", shard) in labels}


def test_the_series_of_a_shard_leave_five_minutes_after_it_and_no_count_is_lost(sink, simulation):
    for shard in (SHARD, "held"):
        sink.take(shard, ((catalog.RECORDS_PROCESSED, 5.0), (catalog.PROCESS_RECORDS_TIME, 20.0)))
    sink.forget(SHARD)
    simulation.sleep(LEAVES_AFTER - 1)
    assert "pykcl_records_processed_total" in series_of(sink, SHARD), "each scrape has seen the last counts"
    before = samples(sink)
    simulation.sleep(2)
    assert series_of(sink, SHARD) == set()
    assert series_of(sink, "held")
    totals = {key: value for key, value in samples(sink).items() if "_all_shards" in key[0]}
    assert totals == {key: before[key] for key in totals}, (
        "the total has no step that rate() takes for records"
    )
    assert totals[ALL] == 10.0
    times = "pykcl_record_processor_process_records_all_shards_seconds"
    assert totals[f"{times}_count", ALL[1]] == 2.0
    assert totals[f"{times}_sum", ALL[1]] == pytest.approx(0.04)
    assert not sink._left
    assert not any(SHARD in key for key in (*sink._numbers, *sink._histograms))


def test_what_is_measured_behind_the_end_of_a_lease_leaves_too(sink, simulation):
    sink.forget(SHARD)
    sink.take(SHARD, ((catalog.UPDATE_LEASE_AT_END.success, 1.0), (catalog.MILLIS_BEHIND_LATEST, 9.0)))
    simulation.sleep(LEAVES_AFTER + 1)
    assert series_of(sink, SHARD) == set()


def test_a_shard_that_is_back_stays_while_it_is_read(sink, simulation):
    sink.forget(SHARD)
    for _ in range(100):
        sink.take(SHARD, ((catalog.RECORDS_PROCESSED, 1.0),))
        simulation.sleep(LEAVES_AFTER / 10)
    assert samples(sink)[of_shard("pykcl_records_processed_total")] == 100.0


def test_each_counter_of_all_shards_is_there_before_the_first_record(sink):
    found = samples(sink)
    assert found[ALL] == 0.0
    assert found["pykcl_data_lost_all_shards_total", ALL[1]] == 0.0


def test_without_the_label_of_shards_there_is_no_second_total(simulation):
    dimensions = dimensions_of(Config(application="orders-app", stream="o", metrics_dimensions="Operation"))
    sink = PrometheusSink(simulation.runtime("w1"), "w1", dimensions=dimensions)
    sink.take("", ((catalog.RECORDS_PROCESSED, 1.0),))
    assert not [name for name, _ in samples(sink) if "_all_shards" in name]


def test_reshards_leave_no_series_behind(fleet):
    worker = fleet.start("w1", metrics="prometheus", shard_sync_interval=5.0)
    delivered = len(fleet.put(6))
    counts = []
    for _ in range(6):
        shards = fleet.open_shards()
        fleet.kinesis.split(STREAM, shards[0])
        fleet.wait(lambda before=shards: set(fleet.open_shards()) != set(before), what="the split")
        payloads = fleet.put(6)
        delivered += len(payloads)
        fleet.wait_delivered(payloads)
        if len(fleet.open_shards()) > 3:
            first, second = sorted(fleet.open_shards())[-2:]
            fleet.kinesis.merge(STREAM, first, second)
        fleet.simulation.sleep(LEAVES_AFTER + 30)
        page, _ = worker.prometheus_page()
        found = [one for each in text_string_to_metric_families(page.decode()) for one in each.samples]
        with_shards = {one.labels["shard"] for one in found if one.labels.get("shard")}
        counts.append(len(with_shards))
        assert with_shards == set(worker.leases)
        (total,) = [one.value for one in found if one.name == ALL[0]]
        assert total == delivered
    assert max(counts) <= 5


def test_a_shard_that_comes_back_goes_on_and_is_the_last_to_be_dropped(sink):
    sink.take("back", ((catalog.RECORDS_PROCESSED, 1.0),))
    sink.forget("back")
    sink.take("back", ((catalog.RECORDS_PROCESSED, 1.0),))
    for number in range(MOST_LEFT_SHARDS + 1):
        sink.forget(f"shard-{number}")
    assert samples(sink)[of_shard("pykcl_records_processed_total", "back")] == 2.0


def test_it_can_be_registered_where_the_application_has_its_own_metrics(sink):
    sink.take(SHARD, ((catalog.RECORDS_PROCESSED, 5.0),))
    registry = CollectorRegistry(auto_describe=True)
    registry.register(sink)
    assert b"pykcl_records_processed_total{" in generate_latest(registry)


def test_a_worker_with_prometheus_has_the_page(fleet):
    worker = fleet.start("w1", metrics="prometheus")
    fleet.wait_delivered(fleet.put(10))
    fleet.simulation.sleep(5)
    sink = worker.prometheus_collector()
    assert worker.prometheus_page() == sink.exposition()
    found = samples(sink)
    assert sum(value for (name, _), value in found.items() if name == "pykcl_records_processed_total") == 10.0
    assert {
        value for (name, _), value in found.items() if name == "pykcl_current_leases"
    } == {2.0}  # fmt: skip
    worker.stop()
    assert not any(name == "pykcl_behind_latest_seconds" for name, _ in samples(sink))


@pytest.mark.parametrize(
    ("metrics", "module", "extra"),
    [
        ("prometheus", "prometheus_client", "pykcl[prometheus]"),
        ("otel", "opentelemetry.metrics", "pykcl[otel]"),
    ],
)
def test_a_package_that_is_missing_is_told_with_the_command_that_brings_it(
    simulation, monkeypatch, metrics, module, extra
):
    monkeypatch.setitem(sys.modules, module, None)
    config = Config(application="orders-app", stream="orders", metrics=metrics)
    with pytest.raises(ConfigError) as error:
        MetricsPipeline(config, simulation.runtime("w1"))
    assert f"pip install '{extra}'" in str(error.value)


def test_each_help_line_is_a_plain_sentence_that_stands_alone(sink):
    sink.take(SHARD, [(measure, 1.0) for measure in CATALOGUE])
    helps = {family.name: family.documentation for family in families(sink).values()}
    assert len(set(helps.values())) == len(helps), "no two say the same"
    for name, text in helps.items():
        assert re.fullmatch(r'(Number|Time|1 if|Bytes|Lag) .*[a-z0-9]"?\.', text), (name, text)
        assert "\n" not in text, name
        assert not re.search(r"\b(the same|their|theirs|it|its|whose)\b", text), (name, text)
        assert len(text.split()) >= 4, (name, text)


def test_the_help_of_a_family_of_several_operations_speaks_of_all(sink):
    sink.take(SHARD, [(measure, 1.0) for measure in CATALOGUE])
    found = families(sink)
    assert found["pykcl_task_success"].documentation == (
        "Number of tasks that succeeded. The label operation names the task."
    )
    assert found["pykcl_create_lease_seconds"].documentation == (
        "Time that the creation of a lease took. The label operation names the task."
    )
