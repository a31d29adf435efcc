"""C-15: pykcl leads real Java KCL 3.x workers, and hands the lead back. C-5: a fleet of pykcl alone loses its leader."""

import itertools
import time

import pytest
from native_fleet import (
    VERSION,
    dynamodb_requests,
    errors_of,
    everybody_works,
    follower,
    leader,
    leader_of_all,
    native,
)
from native_verdict import assigned_by_the_leader, never_two_leaders, terms

JAVA_LEADS = 60.0
"""Seconds until a Java worker takes a lock that was released: it reads the lock every half a minute."""
PYKCL_READS = 40.0
"""Seconds until the leases of a dead leader are read, if all that are left are pykcl."""
SLACK = 10.0
LONG = 30 * 60.0


@pytest.mark.timeout(3000)
def test_c15_pykcl_leads_java_workers_and_gives_the_lead_back(java, fleet, led, long):
    java(VERSION)
    with fleet(shards=6, rate=60, aggregated=0.0) as run:
        founder = leader_of_all(run, grace=20.0)
        run.producer.start()
        j2, p1 = native(run, "j2"), follower(run, "p1", leader="equal")
        run.wait_until_started(j2, p1)
        everybody_works(run, founder, j2, p1)
        run.kill(founder) if long else run.terminate(founder)
        run.wait_for("p1 to lead", lambda: leader(run) == "p1", 200)
        everybody_works(run, j2, p1)
        j3 = native(run, "j3")
        run.wait_until_started(j3)
        everybody_works(run, j2, p1, j3)
        if long:
            j2, j3 = through_kills(run, p1, [j2, j3])
        run.kill(j2)
        everybody_works(run, p1, j3)
        run.terminate(p1)
        seconds = run.wait_for(f"{j3.worker} to lead", lambda: leader(run) == j3.worker, 200)
        run.wait_for(f"all leases with {j3.worker}", run.all_begun)
        run.producer.stop()
        run.wait_until_delivered()
        requests = dynamodb_requests(run)
        led(run, "pykcl leads 2 Java 3.5.1", leaders=["j1", "p1"])
        assert errors_of(*run.java_workers) == []
    assert seconds <= JAVA_LEADS + SLACK
    assert_one_leader(requests)


def through_kills(run, p1, javas):
    """Kill one Java worker after the other, each followed by another. The two that are left."""
    begun = time.monotonic()
    numbers = itertools.count(4)
    while time.monotonic() - begun <= LONG:
        run.kill(javas.pop(0))
        everybody_works(run, p1, *javas)
        javas.append(native(run, f"j{next(numbers)}"))
        run.wait_until_started(*javas)
        everybody_works(run, p1, *javas)
        assert leader(run) == "p1"
    return javas


@pytest.mark.timeout(600)
def test_c5_pykcl_alone_reads_the_leases_of_its_dead_leader_soon(java, fleet, led):
    """On a table that Java founded. The lock of a leader among pykcl workers lasts half a minute."""
    java(VERSION)
    with fleet(shards=6, rate=60, aggregated=0.0) as run:
        founder = leader_of_all(run, grace=20.0)
        run.producer.start()
        workers = {name: follower(run, name, leader="equal") for name in ("p1", "p2", "p3")}
        run.wait_until_started(*workers.values())
        everybody_works(run, founder, *workers.values())
        run.terminate(founder)
        run.wait_for("pykcl to lead", lambda: leader(run) in workers, 200)
        everybody_works(run, *workers.values())
        run.wait_for("the lock to be brief", lambda: terms(dynamodb_requests(run))[-1].seconds <= 30, 90)
        first = leader(run)
        run.kill(workers[first])
        run.wait_for("another to lead", lambda: leader(run) not in (first, None), 90)
        run.wait_for("all leases with the others", run.all_begun)
        run.producer.stop()
        run.wait_until_delivered()
        requests = dynamodb_requests(run)
        _, figures = led(run, "3 pykcl on a table of Java 3.5.1, the leader dies", leaders=[first])
    unread = [
        seconds
        for cause, pair, seconds, _ in figures.changes
        if (cause, pair) == ("killed", "pykcl leader → pykcl")
    ]
    assert max(unread) <= PYKCL_READS + SLACK
    assert_one_leader(requests)


def assert_one_leader(requests):
    found = terms(requests)
    assert len({term.owner for term in found}) > 1
    assert never_two_leaders(found).problems == ()
    assert assigned_by_the_leader(requests, found).problems == ()
