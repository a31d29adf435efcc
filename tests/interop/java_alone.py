"""`Control`: a fleet of Java workers of one kind and nobody else. What they ask, and what they log as errors, is the
measure for fleets with pykcl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import java_requests
from fleet_evidence import REQUESTS, Evidence
from interop_figures import error_lines
from interop_fleet import Fleet


@dataclass(frozen=True, slots=True)
class Control:
    """errors: ERROR lines, see `error_lines`. forms: of the requests to DynamoDB."""

    evidence: Evidence
    errors: tuple[str, ...]
    forms: frozenset[str]


def control_run(new_fleet: Callable[..., Fleet], version: str, mode: str | None) -> Control:
    """Two workers: the first makes table and leases, the second steals, a split, a merge, one is killed."""
    with new_fleet(shards=4) as run:
        run.put(40)
        first = run.java("j1", version, mode=mode)
        run.wait_until_started(first)
        run.wait_until_delivered()
        run.producer.start()
        second = run.java("j2", version, mode=mode)
        run.wait_until_started(second)
        run.wait_until_balanced()
        for what in ("split", "merge"):
            run.reshard(what)
            run.put(40)
            run.wait_for("all shards with a lease", run.all_known)
        # No balance from here on: Java keeps leases of ended shards for five minutes, and counts them as shares.
        run.wait_for("all leases owned", run.all_owned)
        run.kill(first)
        run.wait_for("all leases owned", run.all_owned)
        run.producer.stop()
        run.wait_until_delivered()
        evidence = run.finish()
        return Control(evidence, tuple(errors_of(run)), frozenset(forms_of(run, version, mode)))


def errors_of(run: Fleet) -> list[str]:
    """ERROR lines of all Java workers of a fleet."""
    return [line for worker in run.java_workers for line in error_lines(worker.worker, worker.lines("ERROR"))]


def forms_of(run: Fleet, version: str, mode: str | None) -> set[str]:
    """What the Java workers of one kind asked of DynamoDB."""
    names = [one.worker for one in run.java_workers if (one.version, one.mode) == (version, mode)]
    return java_requests.sent(run.folder / REQUESTS, names)
