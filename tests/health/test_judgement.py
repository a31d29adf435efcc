"""What a status means, told apart one trait at a time."""

from dataclasses import replace

import pytest
from health_kit import HUNG, WELL, Frozen, codes, lease, loop, trouble

from pykcl.health.probes import STOPPING_TOO_LONG_AFTER, liveness, readiness
from pykcl.status import Activity


def test_a_worker_that_works_is_live_and_ready():
    assert codes(Frozen(WELL)) == (200, 200)


def test_without_a_worker_there_is_nothing_to_restart_and_nothing_ready():
    assert codes(None) == (200, 503)


BAD = {
    "a thread died": (
        {"loops": (loop(), loop(name="pykcl-renewer", state="died", died_of="KeyError"))},
        "thread pykcl-renewer died of KeyError",
    ),
    "a thread ended though nobody asked it to": (
        {"loops": (loop(state="ended"),)},
        "thread pykcl-manager has ended though the worker runs",
    ),
    "a loop is overdue": (
        {"loops": (loop(overdue=40.1, patience=30.0),)},
        "thread pykcl-manager should have begun its work 40 s ago",
    ),
    "a loop without patience is overdue by the failover time": (
        {"loops": (loop(overdue=10.1, patience=0.0),)},
        "thread pykcl-manager should have begun its work 10 s ago",
    ),
    "it does not come to an end": (
        {"state": "draining", "state_age": 25.1 + STOPPING_TOO_LONG_AFTER},
        "the worker has been stopping for 55 s",
    ),
    "it has stopped": ({"state": "stopped"}, "the worker has stopped"),
}


@pytest.mark.parametrize("name", BAD)
def test_only_a_new_process_helps_when(name):
    changes, why = BAD[name]
    status = replace(WELL, **changes)
    assert liveness(status).why == (why,)
    assert why in readiness(status).why
    assert codes(Frozen(status)) == (503, 503)


IDLE = {
    "it starts": ({"state": "starting", "loops": (loop(name="start"),)}, "the worker is starting"),
    "it is being stopped": ({"state": "draining", "state_age": 5.0}, "the worker is draining"),
    "its first shards are not read yet": ({"initialized": False}, "the first leases are not being read yet"),
    "the lease table does not answer": (
        {"troubles": (trouble(Activity.MANAGING_LEASES, 11.0),)},
        "managing leases has been failing for 11 s",
    ),
    "heartbeats fail": (
        {"troubles": (trouble(Activity.RENEWING_LEASES, 11.0),)},
        "renewing leases has been failing for 11 s",
    ),
    "no shard can be read": (
        {
            "troubles": (
                trouble(Activity.READING, 11.0, "shardId-0"),
                trouble(Activity.READING, 10.0, "shardId-1"),
            )
        },
        "none of 2 shards can be read",
    ),
    "no shard gets on, one for its dead letters": (
        {
            "troubles": (
                trouble(Activity.READING, 11.0, "shardId-0"),
                trouble(Activity.SENDING_DEAD_LETTERS, 10.0, "shardId-1"),
            )
        },
        "none of 2 shards can be read, or their dead letters are not kept",
    ),
}


@pytest.mark.parametrize("name", IDLE)
def test_it_is_left_alone_but_not_ready_when(name):
    changes, why = IDLE[name]
    status = replace(WELL, **changes)
    assert readiness(status).why == (why,)
    assert codes(Frozen(status)) == (200, 503)


FINE = {
    "a processor hangs": {"leases": (lease(call=HUNG), lease("shardId-1"))},
    "trouble has only just begun": {"troubles": (trouble(Activity.MANAGING_LEASES, 9.9),)},
    "one of two shards cannot be read": {"troubles": (trouble(Activity.READING, 900.0, "shardId-0"),)},
    "metrics cannot be sent": {"troubles": (trouble(Activity.PUBLISHING_METRICS, 900.0),)},
    "leases of others are in trouble": {"all_shards_assigned": False},
    "it has no lease": {"leases": (), "troubles": (trouble(Activity.READING, 900.0, "shardId-9"),)},
    "a request takes its time": {"loops": (loop(overdue=39.9, patience=30.0),)},
}


@pytest.mark.parametrize("name", FINE)
def test_it_is_live_and_ready_though(name):
    assert codes(Frozen(replace(WELL, **FINE[name]))) == (200, 200)


def test_threads_that_ended_as_they_should_are_no_reason_while_it_is_being_stopped():
    status = replace(
        WELL, state="draining", state_age=3.0, loops=(loop(state="ended"), loop(name="pykcl-renewer"))
    )
    assert liveness(status).is_good
    overdue = replace(
        status, loops=(loop(state="ended", overdue=1e6), loop(name="pykcl-renewer", overdue=1e6))
    )
    assert liveness(overdue).why == ("thread pykcl-renewer should have begun its work 1000000 s ago",)
