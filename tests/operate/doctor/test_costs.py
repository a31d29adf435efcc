"""The estimate of the monthly cost, against sums done by hand at the list prices."""

import pytest

from pykcl.config import Config
from pykcl.operate.doctor.costs import costs_of, metrics_of

MONTH = 730 * 3600


def config(**more):
    return Config(application="orders-app", stream="orders", **more)


def test_heartbeats_and_scans_are_what_a_quiet_table_costs():
    found = costs_of(config(failover_time=10.0), shards=4, workers=1)
    # Two writes per fail-over time and lease; alone a worker scans, for half a read unit, once in a heartbeat.
    assert found.table_quiet == pytest.approx(MONTH * (4 * 0.2 * 0.625e-6 + 0.5 / 5 * 0.125e-6))
    two = costs_of(config(failover_time=10.0), shards=4, workers=2)
    assert two.table_quiet == pytest.approx(MONTH * (4 * 0.2 * 0.625e-6 + 2 * 0.5 * 0.125e-6))
    assert found.table_busy == pytest.approx(found.table_quiet + MONTH * 4 * 4 * 0.625e-6)
    assert (found.cloudwatch, found.fan_out) == (0.0, 0.0)


def test_a_checkpoint_interval_is_cheaper_than_one_checkpoint_for_each_page():
    rare = costs_of(config(checkpoint="interval", checkpoint_interval=10.0), shards=4, workers=1)
    assert rare.table_busy - rare.table_quiet == pytest.approx(MONTH * 4 / 10 * 0.625e-6)


def test_provisioned_units_cost_what_they_cost_used_or_not():
    found = costs_of(config(), shards=400, workers=9, provisioned=(10, 20))
    assert found.table_quiet == found.table_busy == pytest.approx(730 * (10 * 0.00013 + 20 * 0.00065))


def test_fan_out_costs_by_shard_and_consumer():
    assert costs_of(config(), shards=4, workers=1, consumers=2).fan_out == pytest.approx(2 * 4 * 730 * 0.015)


def test_metrics_are_counted_by_level_and_dimensions():
    one = metrics_of(config(metrics="cloudwatch"), 1, 1)
    ten = metrics_of(config(metrics="cloudwatch"), 10, 1)
    assert one > 0
    assert (ten - one) % 9 == 0, "what is told per shard grows with the shards, the rest does not"
    assert ten > one
    assert metrics_of(config(metrics="cloudwatch", metrics_level="DETAILED"), 10, 1) > ten
    without = config(metrics="cloudwatch", metrics_dimensions="Operation,WorkerIdentifier")
    assert metrics_of(without, 10, 1) == metrics_of(without, 1, 1)
    assert metrics_of(config(metrics="prometheus"), 10, 1) == 0
    assert costs_of(config(metrics="cloudwatch"), shards=10, workers=1).cloudwatch >= ten * 0.30
