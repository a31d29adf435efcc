import math

import pytest

from benchmarks.cost import measured_of
from benchmarks.cost_model import (
    Measured,
    Rates,
    java_rates,
    pykcl_rates,
    scan_units,
)
from benchmarks.fleet_requests import CountingClient, Job, Recorded, record
from pykcl.testing.memory.dynamodb import MemoryDynamoDB


def test_a_scan_costs_half_a_unit_for_every_4_kilobytes_begun():
    assert scan_units(1, 372) == 0.5
    assert scan_units(11, 372) == 0.5
    assert scan_units(12, 372) == 1.0
    assert scan_units(1_000, 372) == 45.5


def test_each_page_of_a_megabyte_is_rounded_up_by_itself():
    # Three pages of 1,240,000 bytes each would be too large: four of 930,000.
    assert scan_units(10_000, 372) == 4 * math.ceil(930_000 / 4096) * 0.5


def test_a_month_of_writes_and_reads_in_dollars():
    assert Rates(1.0, 0.0).dollars == pytest.approx(1.62)
    assert Rates(0.0, 1.0).dollars == pytest.approx(0.324)


def test_java_renews_every_third_of_its_failover_time_and_scans_every_second():
    rates = java_rates(10, 2, 372)

    assert rates.writes == pytest.approx(10 / 3.30833, rel=1e-4)
    assert rates.reads == pytest.approx(2 * 0.5 / 20.05)


def test_java_of_the_published_model_costs_what_it_says():
    # 10,000 shards and 1,000 workers with rows of 372 bytes: 4,897 for writes, 7,338 for reads.
    rates = java_rates(10_000, 1_000, 372)

    assert Rates(rates.writes, 0).dollars == pytest.approx(4_897, rel=0.01)
    assert Rates(0, rates.reads).dollars == pytest.approx(7_338, rel=0.01)


def test_pykcl_pays_heartbeats_by_lease_and_the_rest_by_worker():
    measured = Measured(row_bytes=400, heartbeat=0.2, other_writes=0.01, other_reads=0.05)

    rates = pykcl_rates(10, 4, measured)

    assert rates.writes == pytest.approx(10 * 0.2 + 4 * 0.01)
    # Each of the four scans the whole table once a second: so small a one is not divided.
    assert rates.reads == pytest.approx(4 * (scan_units(10, 400) + 0.05))


def test_a_large_fleet_of_pykcl_pays_for_looks_by_lease_and_not_by_worker_and_lease():
    measured = Measured(row_bytes=546, heartbeat=0.2)

    few, many = (pykcl_rates(shards, shards // 10, measured).reads / shards for shards in (1_000, 2_000))

    assert 0.7 * few <= many <= 1.1 * few


def test_the_client_in_front_counts_units_by_operation_and_refusals_too():
    counting = CountingClient(MemoryDynamoDB())
    counting.create_table(
        TableName="t",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    counting.put_item(TableName="t", Item={"leaseKey": {"S": "a"}, "filling": {"S": "x" * 1500}})
    with pytest.raises(Exception, match="ConditionalCheckFailed"):
        counting.put_item(
            TableName="t", Item={"leaseKey": {"S": "a"}}, ConditionExpression="attribute_not_exists(leaseKey)"
        )
    counting.get_item(TableName="t", Key={"leaseKey": {"S": "a"}}, ConsistentRead=True)
    counting.scan(TableName="t")

    counts = counting.counts
    assert counts.requests == {"PutItem": 1, "PutItem, refused": 1, "GetItem": 1, "Scan": 1}
    assert (counts.write_units, counts.read_units) == (3.0, 1.5)


def test_formulas_say_what_a_simulated_fleet_asked_for():
    recorded = record(Job("pykcl", 6, 2, 40.0, 10.0))

    model = pykcl_rates(6, 2, measured_of([recorded]))

    assert recorded.requests["UpdateItem"] > 6
    assert recorded.requests["Scan"] > 2
    assert model.dollars == pytest.approx(
        Rates(recorded.write_units / 40, recorded.read_units / 40).dollars, rel=0.1
    )


def test_the_actor_of_java_asks_what_is_documented():
    recorded = record(Job("java", 6, 1, 80.0, 10.0))

    assert recorded.write_units / 80 == pytest.approx(java_rates(6, 1, recorded.row_bytes).writes, rel=0.1)


def test_the_largest_fleet_tells_the_constants():
    def of(shards, workers, units):
        return Recorded(Job("pykcl", shards, workers, 10.0, 10.0), {}, units, 30.0, 50.0, 400.0 + shards)

    found = measured_of([of(10, 1, {"UpdateItem": 9.0}), of(20, 2, {"UpdateItem": 40.0, "Scan": 25.0})])

    assert found == Measured(row_bytes=420.0, heartbeat=0.2, other_writes=0.5, other_reads=0.25)
