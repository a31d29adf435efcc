"""A worker in simulation, asked as a probe asks; and one status from which others are made."""

from __future__ import annotations

import json
from dataclasses import replace

from pykcl.errors import TemporaryError
from pykcl.health.http import Request
from pykcl.health.pages import Pages
from pykcl.health.probes import WorkerHealth
from pykcl.status import CallStatus, FailureStatus, LeaseStatus, LoopStatus, WorkerStatus
from pykcl.testing.fleet import Fleet
from pykcl.testing.memory.dynamodb import Fault, unreachable

CODES = {
    "is starting": (200, 503),
    "works": (200, 200),
    "cannot reach AWS for longer than the failover time": (200, 503),
    "has a processor that hangs": (200, 200),
    "has lost a thread of its own": (503, 503),
    "has a loop that does not come to its work": (503, 503),
    "is draining after SIGTERM": (200, 503),
    "has not come to an end long after its grace": (503, 503),
    "has stopped": (503, 503),
}
"""What docs/operate/monitoring.md says of /livez and /readyz, by what the worker is or has."""


class Frozen:
    """A worker of which only the status is known."""

    def __init__(self, status):
        self._status = status

    def status(self):
        return self._status

    def prometheus_page(self):
        return None


def ask(worker, path, token=None, **headers):
    """(code, body) that a new server would answer."""
    found = Pages(WorkerHealth(lambda: worker), token, lambda: 0.0).answer(Request("GET", path, headers))
    return found.status.value, found.body.decode()


def codes(worker):
    """Of /livez and /readyz."""
    return ask(worker, "/livez")[0], ask(worker, "/readyz")[0]


def is_as_documented(worker, situation):
    return codes(worker) == CODES[situation]


def status_of(worker):
    """What /status tells, parsed."""
    return json.loads(ask(worker, "/status")[1])


def loop(**changes):
    plain = LoopStatus(
        name="pykcl-manager", state="running", died_of=None, attempted_ago=0.1, overdue=0.0, patience=30.0
    )
    return replace(plain, **changes)


def lease(shard="shardId-0", **changes):
    plain = LeaseStatus(
        shard=shard,
        state="reading",
        thread=f"pykcl-{shard}",
        alive=True,
        checkpoint="5:0",
        counter=7,
        lease_valid_for=8.0,
        in_doubt=False,
        has_answered=True,
        millis_behind_latest=0,
        lag_age=0.2,
        call=None,
        last_error=None,
    )
    return replace(plain, **changes)


def trouble(what, seconds, shard=None):
    return FailureStatus(what=what, shard=shard, cause="no answer", seconds=seconds)


HUNG = CallStatus(method="process_records", seconds=4000.0, stalled=True)
WELL = WorkerStatus(
    worker_id="w1",
    application="orders-app",
    stream="orders",
    table="orders-app",
    version="0",
    state="running",
    state_age=100.0,
    failure=None,
    initialized=True,
    all_shards_assigned=True,
    failover_time=10.0,
    shutdown_grace=25.0,
    loops=(loop(), loop(name="pykcl-renewer", patience=0.0)),
    leases=(lease(), lease("shardId-1")),
)


class Outage:
    """AWS out of reach of one worker: every request waits for its time-out and fails, while `on`."""

    def __init__(self, fleet: Fleet, worker, *, dynamodb=True, kinesis=True):
        self.on = False
        self.requests = 0
        self._sleep = fleet.simulation.sleep
        if dynamodb:
            fleet.dynamodb.fault = self._fault
        stream = worker._adapters[1]
        for name in ("describe", "list_shards", "open", "fetch") if kinesis else ():
            setattr(stream, name, self._failing(getattr(stream, name)))

    def _fault(self, operation, params):
        if not self.on:
            return None
        self.requests += 1
        self._sleep(2.0)
        return Fault(before=unreachable())

    def _failing(self, call):
        def failing(*args):
            if self.on:
                self.requests += 1
                self._sleep(15.0)
                raise TemporaryError("Kinesis cannot be reached.")
            return call(*args)

        return failing
