"""pykcl workers in fleets that a real Java KCL 3.x leader runs. Numbers are those of the acceptance list (C)."""

import pytest
from fleet_checks import no_strangers, nothing_lost, order_without_gaps, parents_first
from fleet_rows import SHARD_END

pytestmark = pytest.mark.timeout(600)

VERSION = "3.5.1"
MODE = "CLIENT_VERSION_CONFIG_3X"
REPORTS = {"workerMetricsReporterFreqInMillis": 5000}
LEADER_ROUND = 10.0
"""Seconds between two rounds of assignments: twice the failover time."""


def native(run, worker, **more):
    return run.java(worker, VERSION, mode=MODE, properties=REPORTS, **more)


def leader_of_all(run):
    """A Java leader that has all leases, and records that come."""
    leader = native(run, "j1")
    run.wait_until_started(leader)
    run.wait_for("all leases with j1", run.all_begun)
    run.producer.start()
    return leader


def kept(evidence):
    """The promises that hold whoever assigns the leases."""
    checks = (nothing_lost, no_strangers, order_without_gaps, parents_first)
    return [problem for check in checks for problem in check(evidence).problems]


def follower(run, worker, **options):
    return run.pykcl(worker, worker_metrics_interval=5.0, **options)


def errors_of(worker):
    """Without those that it reports when it is stopped, alone or not."""
    return [
        f"{line.logger}: {line.text}"
        for line in worker.lines("ERROR")
        if not line.text.startswith("Encountered an error during shutdown")
    ]


def test_c2_c4_c8_pykcl_follows_a_java_leader(java, fleet):
    java(VERSION)
    with fleet(shards=6, rate=60, aggregated=0.0) as run:
        first = leader_of_all(run)
        second, p1, p2 = native(run, "j2"), follower(run, "p1"), follower(run, "p2")
        run.wait_until_started(second, p1, p2)
        everybody = (first, second, p1, p2)
        run.wait_for(
            "a lease with everybody",
            lambda: run.all_begun() and all(run.leases_of(worker) for worker in everybody),
        )
        for what in ("split", "merge"):
            run.reshard(what)
            run.put(40)
            run.wait_for("the end of a parent", lambda: ended(run) and run.all_begun())
        run.terminate(p1)
        seconds = run.wait_for("the leases of p1 with others", run.all_begun)
        assert seconds <= LEADER_ROUND + 10
        run.kill(p2)
        run.wait_for("the leases of p2 with Java", run.all_begun)
        p3 = follower(run, "p3")
        run.wait_until_started(p3)
        run.wait_for("a lease with p3", lambda: run.leases_of(p3) and run.all_begun())
        run.producer.stop()
        run.wait_until_delivered()
        evidence = run.finish()
    assert kept(evidence) == []
    assert errors_of(first) + errors_of(second) == []


def ended(run):
    return any(row.checkpoint == SHARD_END for row in run.rows.rows.values())


def test_c5_the_leases_of_a_dead_leader_are_read_again_within_a_minute(java, fleet):
    java(VERSION)
    with fleet(shards=4, rate=60, aggregated=0.0) as run:
        leader = leader_of_all(run)
        p1 = follower(run, "p1")
        run.wait_until_started(p1)
        run.wait_for("a lease with p1", lambda: run.leases_of(p1) and run.all_begun())
        run.kill(leader)
        seconds = run.wait_for("all leases with p1", run.all_begun, 200)
        run.producer.stop()
        run.wait_until_delivered()
        evidence = run.finish()
    print(f"unread for {seconds:.1f} s")
    assert seconds <= 60 + 35
    assert kept(evidence) == []
