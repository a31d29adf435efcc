"""The verdict over a fleet of both kinds, and its figures as text. Pure functions over `Evidence`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
    """A lease of a worker that was killed, terminated or frozen. seconds: until another's processor began."""

    what: str
    worker: str
    successor: str
    shard: str
    seconds: float


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
    """In the order of what was done to the workers."""
    owned, found = ownerships(evidence), []
    for process in evidence.processes.values():
        events = [("killed", process.killed), ("terminated", process.terminated)]
        events += [("frozen", begin) for begin, _ in process.freezes]
        for what, at in events:
            if at is not None:
                held = [own for own in owned if own.worker == process.worker and own.since <= at < own.until]
                found += [one for own in held if (one := _handover(evidence, what, at, own))]
    return found


def _handover(evidence: Evidence, what: str, at: int, own: Ownership) -> Handover | None:
    later = [
        life for life in evidence.lives
        if life.shard == own.shard and life.t >= at and life.worker != own.worker
    ]  # fmt: skip
    if not later:
        return None
    first = min(later, key=lambda life: life.t)
    return Handover(what, own.worker, first.worker, own.shard, (first.t - at) / 1000)


def report(evidence: Evidence, kinds: Mapping[str, str], java_errors: Sequence[str] = ()) -> str:
    """kinds: of each worker, such as "pykcl" or "java 2.7.2". java_errors: lines, as text."""
    checks = {check.name: check for check in checks_of(evidence)}
    lines = [f"{check.name:<34}{check.verdict:<14}{check.examined}" for check in checks.values()]
    lines += [f"    {problem}" for check in checks.values() for problem in check.problems[:8]]
    by_kind = ", ".join(f"{kind} {count}" for kind, count in sorted(duplicates_by_kind(evidence).items()))
    lines += [
        f"records put {sum(map(len, evidence.records.values()))}, "
        f"lost {len(checks['nothing lost'].problems)}, "
        f"out of order {len(checks['order per shard, no gaps'].problems)}, "
        f"duplicates {duplicates(evidence)} ({by_kind or 'none'}), "
        f"of them unexplained {len(unexplained(evidence))}"
    ]
    for worker, kind in kinds.items():
        lives = [life for life in evidence.lives if life.worker == worker]
        done = sum(len(life.done) for life in lives)
        lines.append(f"{worker} ({kind}): {done} records of {len({life.shard for life in lives})} shards")
    for what, worker_kind, successor in sorted({_by_kind(one, kinds) for one in handovers(evidence)}):
        seconds = sorted(
            one.seconds
            for one in handovers(evidence)
            if _by_kind(one, kinds) == (what, worker_kind, successor)
        )
        shown_seconds = ", ".join(f"{second:.1f}" for second in seconds)
        lines.append(f"{worker_kind} {what}, {successor} goes on after {shown_seconds} s")
    lines.append(f"Java ERROR lines: {len(java_errors)}")
    lines += [f"    {line}" for line in java_errors[:8]]
    return "\n".join(lines)


def _by_kind(one: Handover, kinds: Mapping[str, str]) -> tuple[str, str, str]:
    return one.what, kinds[one.worker], kinds[one.successor]
