"""The verdict over a fleet of both kinds. Pure functions over `Evidence`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fleet_checks import (
    Check,
    check_of,
    no_strangers,
    nothing_lost,
    one_life,
    order_without_gaps,
    parents_first,
)
from fleet_duplicates import repeats, unexplained
from fleet_evidence import Evidence, Item
from fleet_ownership import Ownership, ownership_of, ownerships
from fleet_rows import shown


@dataclass(frozen=True, slots=True)
class Handover:
    """A lease that went from one worker to another. what: why, of CAUSES. seconds: from then until the other's
    processor began."""

    what: str
    worker: str
    successor: str
    shard: str
    seconds: float


CAUSES = ("killed", "frozen", "terminated", "stolen")
"""What was done to the worker that had the lease; "stolen": nothing, and the seconds begin with the take."""


def checks_of(evidence: Evidence) -> list[Check]:
    """What must hold whoever the workers are."""
    checks = (nothing_lost, no_strangers, order_without_gaps, one_life, parents_first, starts_at_checkpoint,
              duplicates_explained, leases_only)  # fmt: skip
    return [check(evidence) for check in checks]


def problems_of(evidence: Evidence) -> list[str]:
    return [f"{check.name}: {problem}" for check in checks_of(evidence) for problem in check.problems]


def starts_at_checkpoint(evidence: Evidence) -> Check:
    """A processor starts where its row stood when its worker took the lease, or further on.

    Further on: a Java worker may read the row again once it is its own, and by then hold the last word of the one before.
    """
    owned = ownerships(evidence)
    problems = []
    for life in evidence.lives:
        own = ownership_of(life, owned)
        if own is None:
            problems.append(f"{life} began without an ownership in the table")
        elif life.start < own.checkpoint:
            problems.append(f"{life} began at {shown(life.start)}, its row stood at {shown(own.checkpoint)}")
    return check_of(
        "start at the durable checkpoint", f"{len(evidence.lives)} starts", problems, len(evidence.lives)
    )


def duplicates_explained(evidence: Evidence) -> Check:
    """What was finished twice had not been checkpointed when its second worker took the lease."""
    problems = [f"{life} repeated {item}, which was checkpointed" for life, item in unexplained(evidence)]
    count = duplicates(evidence)
    return check_of("duplicates explained", f"{count} duplicates", problems, len(evidence.lives))


def leases_only(evidence: Evidence) -> Check:
    """Whatever else Java keeps in the lease table, and in tables beside it, pykcl writes leases."""
    written = [write for write in evidence.writes if not write.by_java]
    problems = [f"{write.kind} of {write.key}" for write in written if write.key not in evidence.parents]
    problems += [f"a write into {table}" for table in evidence.elsewhere]
    return check_of("pykcl writes leases only", f"{len(written)} writes by pykcl", problems, len(written))


def duplicates(evidence: Evidence) -> int:
    """Deliveries that were finished beyond the first of each record."""
    finished = Counter((life.shard, item) for life in evidence.lives for _, item in life.done)
    return sum(count - 1 for count in finished.values())


def duplicates_by_kind(evidence: Evidence) -> Counter[str]:
    """By how the earlier ownership ended, see `fleet_duplicates`."""
    counts: Counter[str] = Counter()
    seen: set[tuple[str, Item]] = set()
    for repeat in repeats(evidence):
        counts[repeat.kind] += sum((repeat.second.shard, item) not in seen for item in repeat.items)
        seen |= {(repeat.second.shard, item) for item in repeat.items}
    return counts


def handovers(evidence: Evidence) -> list[Handover]:
    """In the order of what was done to the workers, and then of the steals."""
    owned, found = ownerships(evidence), []
    for process in evidence.processes.values():
        events = [("killed", process.killed), ("terminated", process.terminated)]
        events += [("frozen", begin) for begin, _ in process.freezes]
        for what, at in events:
            if at is not None:
                held = [own for own in owned if own.worker == process.worker and own.since <= at < own.until]
                found += [one for own in held if (one := _handover(evidence, what, at, own))]
    for own in owned:
        if _was_stolen(own, evidence):
            begun = next(
                (one.t for one in evidence.lives if ownership_of(one, owned) == _next_of(own, owned)), None
            )
            if begun is not None:
                seconds = (begun - own.until) / 1000
                found.append(Handover("stolen", own.worker, str(own.successor), own.shard, seconds))
    return found


def _next_of(own: Ownership, owned: list[Ownership]) -> Ownership | None:
    return next((one for one in owned if one.shard == own.shard and one.since >= own.until), None)


def _was_stolen(own: Ownership, evidence: Evidence) -> bool:
    """By another, from a worker to which nothing was done."""
    stopped = evidence.processes[own.worker].terminated
    return own.how == "D2" and own.successor != own.worker and (stopped is None or own.until < stopped)


def _handover(evidence: Evidence, what: str, at: int, own: Ownership) -> Handover | None:
    later = [
        life for life in evidence.lives
        if life.shard == own.shard and life.t >= at and life.worker != own.worker
    ]  # fmt: skip
    if not later:
        return None
    first = min(later, key=lambda life: life.t)
    return Handover(what, own.worker, first.worker, own.shard, (first.t - at) / 1000)
