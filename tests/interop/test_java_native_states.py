"""pykcl beside real Java KCL 3.x with the tables of 3.0-3.4, in the mode of 2.x, and beside kcl-rs. Numbers: (C)."""

import contextlib

import boto3
import pytest
from fleet_evidence import TABLE
from java_worker import COMPATIBLE
from native_fleet import VERSION, errors_of, everybody_works, follower, leader_of_all, rest

from benchmarks.peer_environment import KCL_RS, Unavailable, python_of

METRICS, STATE = f"{TABLE}-WorkerMetricStats", f"{TABLE}-CoordinatorState"


@contextlib.contextmanager
def tables(run):
    """rows(table): by key, whichever that table has."""
    keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
    with contextlib.closing(boto3.client("dynamodb", endpoint_url=run.server.url, **keys)) as dynamodb:

        def rows(table):
            items = dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]
            names = ("leaseKey", "wid", "key")
            return {item[name]["S"]: item for item in items for name in names if name in item}

        yield rows


@pytest.mark.timeout(600)
def test_c12_pykcl_follows_a_leader_of_3_1_with_its_own_tables(java, fleet, led, long):
    version = java("3.1.3")
    with fleet(shards=4, rate=40, aggregated=0.0) as run, tables(run) as rows:
        leader = leader_of_all(run, version)
        run.producer.start()
        p1, p2 = follower(run, "p1"), follower(run, "p2")
        run.wait_until_started(p1, p2)
        everybody_works(run, leader, p1, p2)
        assert {"j1", "p1", "p2"} <= rows(METRICS).keys()
        assert rows(STATE)["Leader"]["ownerName"]["S"] == "j1"
        assert not {"p1", "p2", "Leader"} & rows(TABLE).keys()
        run.terminate(p1)
        assert "p1" not in rows(METRICS)
        run.wait_for("the leases of p1 with others", run.all_begun)
        if long:
            run.kill(leader)
            run.wait_for("all leases with p2", run.all_begun, 200)
        run.producer.stop()
        run.wait_until_delivered()
        led(run, "Java 3.1.3 with tables of its own + 2 pykcl", leaders=["j1"])
        assert errors_of(leader) == []


@pytest.mark.timeout(3000)
def test_c13_java_in_the_mode_of_2x_never_flips_beside_pykcl(java, fleet, led, long):
    """It would after ten minutes in which each owner of a lease has reported metrics, and pykcl reports none there."""
    java(VERSION)
    with fleet(shards=4, rate=40, aggregated=0.0) as run, tables(run) as rows:
        p1 = follower(run, "p1")  # Java would wait up to 30 s, drawn by lot, before it makes leases
        run.wait_until_started(p1)
        run.wait_for("leases", run.all_known)
        j1 = run.java("j1", VERSION, mode=COMPATIBLE, properties={"workerMetricsReporterFreqInMillis": 5000})
        run.wait_until_started(j1)
        run.producer.start()
        run.wait_until_balanced()
        rest(run, 13 * 60 if long else 60)
        assert rows(TABLE)["Migration3.0"]["cv"]["S"] == "CLIENT_VERSION_UPGRADE_FROM_2X"
        assert "j1" in rows(TABLE)
        assert "p1" not in rows(TABLE)
        assert run.balanced()
        if long:
            run.terminate(p1)
            run.wait_for(
                "Java to flip, alone",
                lambda: rows(TABLE)["Migration3.0"]["cv"]["S"] == "CLIENT_VERSION_3X_WITH_ROLLBACK", 14 * 60,
            )  # fmt: skip
            p2 = follower(run, "p2")
            run.wait_until_started(p2)
            everybody_works(run, j1, p2)
        run.producer.stop()
        run.wait_until_delivered()
        led(run, "Java 3.5.1 COMPATIBLE_WITH_2X + pykcl", otherwise="stolen")
        assert errors_of(j1) == []


@pytest.mark.timeout(600)
def test_kcl_rs_is_one_more_peer_of_a_fleet_of_its_own_mode(java, fleet, led):
    java(VERSION)
    try:
        python = python_of("kcl-rs", KCL_RS)
    except Unavailable as reason:
        pytest.skip(f"Java with kcl-rs SKIPPED: {reason}")
    with fleet(shards=6, rate=40, aggregated=0.0) as run:
        leader = leader_of_all(run)
        run.producer.start()
        p1, rust = follower(run, "p1"), run.kcl_rs("r1", python)
        run.wait_until_started(p1)
        everybody_works(run, leader, p1, rust)
        run.terminate(rust)
        run.wait_for("the leases of kcl-rs with others", run.all_begun)
        run.producer.stop()
        run.wait_until_delivered()
        led(run, "Java 3.5.1 + pykcl + kcl-rs", kinds={"r1": "kcl-rs"})
        assert errors_of(leader) == []
