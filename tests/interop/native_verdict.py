"""The verdict over a fleet that a leader of KCL 3.x runs, and its figures for docs/guides/mixed-fleet.md. Pure functions.

There a lease changes hands by what processors see, not by the owner in its row: that is the next one's while the old one
still works. So everything here goes by the lives of processors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from fleet_checks import Check, check_of, no_strangers, nothing_lost, order_without_gaps, parents_first
from fleet_evidence import Evidence, Item, Life, Process
from fleet_rows import START, sender, shown

BEGIN, END = "<!-- native: begin -->", "<!-- native: end -->"
WORDS = {
    "killed": "kill -9",
    "terminated": "SIGTERM",
    "frozen": "SIGSTOP",
    "assigned": "handed over, as the leader asked",
    "expired": "ran out, or was taken by another",
    "stolen": "taken by another, in the mode of 2.x",
}
"""By cause, in the order of the tables."""
SIGNALS = ("killed", "terminated", "frozen")


@dataclass(frozen=True, slots=True)
class Move:
    """A lease that went from one processor to that of another worker, or of the same one.

    cause: one of WORDS. seconds: for which nobody read the shard, from the signal to the old owner, or from the end of
    its processor, until the next one was initialized. repeated: records that both finished.
    """

    cause: str
    worker: str
    successor: str
    shard: str
    at: int
    seconds: float
    repeated: int


def checks_of(evidence: Evidence) -> list[Check]:
    """Checks that hold whoever assigns the leases."""
    checks = (nothing_lost, no_strangers, order_without_gaps, parents_first, starts_where_the_row_stood)
    return [check(evidence) for check in checks]


def problems_of(evidence: Evidence) -> list[str]:
    return [f"{check.name}: {problem}" for check in checks_of(evidence) for problem in check.problems]


def starts_where_the_row_stood(evidence: Evidence) -> Check:
    """A processor starts at the checkpoint of its row, as it last was its worker's: so what it repeats had not been
    checkpointed."""
    problems = []
    for life in evidence.lives:
        stood = START
        for write in evidence.writes:
            if write.t >= life.t:
                break
            after = write.after
            # Of another worker's time: a slow processor may start when its lease has gone again.
            if write.key == life.shard and write.applied and after is not None and after.owner == life.worker:
                stood = after.checkpoint
        if life.start < stood:
            problems.append(f"{life} began at {shown(life.start)}, its row stood at {shown(stood)}")
    return check_of("start at the checkpoint", f"{len(evidence.lives)} starts", problems, len(evidence.lives))


def moves(evidence: Evidence, otherwise: str = "assigned") -> list[Move]:
    """In the order of their beginnings. otherwise: the cause where nothing was done to the old owner."""
    by_shard: dict[str, list[Life]] = {}
    for life in sorted(evidence.lives, key=lambda one: one.t):
        by_shard.setdefault(life.shard, []).append(life)
    found = [
        _move(one, other, evidence.processes[one.worker], otherwise)
        for lives in by_shard.values()
        for one, other in pairwise(lives)
    ]
    return sorted(found, key=lambda move: move.at)


def _move(one: Life, other: Life, process: Process, otherwise: str) -> Move:
    done = max((t for t, _ in one.done), default=one.t)
    ended = done if one.ended_at is None else one.ended_at
    # A lease that is handed over in order asks the processor to shut down.
    cause = "expired" if otherwise == "assigned" and one.ends[:1] != ["shutdown"] else otherwise
    since = ended
    signals = [("killed", process.killed), ("terminated", process.terminated)]
    signals += [("frozen", begin) for begin, _ in process.freezes]
    for what, at in signals:
        # It may have handed the lease over before, and the next one's start may only come later.
        if at is not None and at <= other.t and (one.ended_at is None or one.ended_at >= at):
            cause, since = what, at
            break
    repeated = len({item for _, item in one.done} & {item for _, item in other.done})
    seconds = max(0, other.t - since) / 1000
    return Move(cause, one.worker, other.worker, one.shard, other.t, seconds, repeated)


def duplicates(evidence: Evidence) -> int:
    """Deliveries that were finished beyond the first of each record."""
    finished: Counter[tuple[str, Item]] = Counter()
    for life in evidence.lives:
        finished.update((life.shard, item) for _, item in life.done)
    return sum(count - 1 for count in finished.values())


# -- the lock of the leader ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """For which one worker held the lock. seconds: its duration, as the row said last. last: of its heartbeats.
    released: when it gave the lock up; None if it did not."""

    owner: str
    since: int
    last: int
    seconds: float
    released: int | None = None


def terms(requests: Iterable[Mapping[str, Any]]) -> list[Term]:
    """Terms in the log of the local AWS, in order. Times in milliseconds."""
    found: list[Term] = []
    for request in requests:
        params = request["parameters"]
        row = params.get("Item") or params.get("Key") or {}
        if request["status"] != 200 or row.get("leaseKey") != {"S": "Leader"}:
            continue
        t = request["at_millis"]
        if request["operation"] == "PutItem":
            millis = int(params["Item"]["leaseDuration"]["S"])
            found.append(Term(params["Item"]["ownerName"]["S"], t, t, millis / 1000))
        elif request["operation"] == "UpdateItem" and found:
            found[-1] = _updated(found[-1], params, t)
        elif request["operation"] == "DeleteItem" and found:
            found[-1] = replace(found[-1], released=t)  # so Java's daemon does
    return found


def _updated(term: Term, params: Mapping[str, Any], t: int) -> Term:
    """The term after a heartbeat or a release that changes the row in place."""
    names = params.get("ExpressionAttributeNames", {})
    values = params["ExpressionAttributeValues"]
    update = re.sub(r"#\w+", lambda match: names[match[0]], params["UpdateExpression"])
    if re.search(r"\bisReleased\b", update):
        return replace(term, released=t)
    placeholder = re.search(r"leaseDuration = (:\w+)", update)
    seconds = int(values[placeholder[1]]["S"]) / 1000 if placeholder else term.seconds
    return replace(term, last=t, seconds=seconds)


def never_two_leaders(found: Sequence[Term]) -> Check:
    """Each new leader took a lock that had been released, or whose last heartbeat was as old as its duration."""
    problems = []
    for one, other in pairwise(found):
        free_at = one.last + one.seconds * 1000 if one.released is None else one.released
        if other.since < free_at:
            problems.append(
                f"{other.owner} took the lock of {one.owner} {(free_at - other.since) / 1000:.1f} s too early"
            )
    return check_of("never two leaders", f"{len(found)} leaders", problems, len(found))


def assigned_by_the_leader(requests: Iterable[Mapping[str, Any]], found: Sequence[Term]) -> Check:
    """A worker that gave a lease to another one held the lock then."""
    problems, count = [], 0
    for request in requests:
        new = _new_owner(request)
        by = sender(request)
        if new is None or not by or new == by:
            continue
        t = request["at_millis"]
        count += 1
        led = [
            term for term in found
            if term.owner == by and term.since <= t <= (term.released or term.last + term.seconds * 1000)
        ]  # fmt: skip
        if not led and not _hands_over(request):
            problems.append(f"{by} gave {request['parameters']['Key']['leaseKey']['S']} to {new} at {t}")
    return check_of("assigned by the leader", f"{count} leases given to others", problems, count)


def _new_owner(request: Mapping[str, Any]) -> str | None:
    params = request["parameters"]
    if request["operation"] != "UpdateItem" or request["status"] != 200:
        return None
    if "AttributeUpdates" in params:
        update = params["AttributeUpdates"].get("leaseOwner", {})
        owner: str | None = update.get("Value", {}).get("S")
        return owner
    placeholder = re.search(r"\bleaseOwner = (:\w+)", params.get("UpdateExpression", ""))
    if placeholder is None:
        return None
    named: str = params["ExpressionAttributeValues"][placeholder[1]]["S"]
    return named


def _hands_over(request: Mapping[str, Any]) -> bool:
    """True for the write by which an old owner ends a hand-over: the row names the next one already."""
    params = request["parameters"]
    return (
        "leaseOwner" in params.get("Expected", {})
        and "checkpointOwner" in params["Expected"]
        and (params["Expected"]["checkpointOwner"].get("Value", {}).get("S") == sender(request))
    )


# -- figures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NativeFigures:
    """Of one fleet. minutes: that it ran. changes: [cause, "kind → kind", seconds unread, records repeated] of each lease
    that changed hands. at_rest: leases that moved while nothing was done to anybody, and the seconds of that; None where
    there was no such time."""

    fleet: str
    records: int
    lost: int
    out_of_order: int
    duplicates: int
    changes: list[tuple[str, str, float, int]]
    at_rest: tuple[int, float] | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def figures_of(
    evidence: Evidence,
    fleet: str,
    kinds: Mapping[str, str],
    *,
    otherwise: str = "assigned",
    leaders: Iterable[str] = (),
    rest: tuple[int, int] | None = None,
) -> NativeFigures:
    """kinds: of each worker, such as "pykcl" or "Java 3.5.1". otherwise: see `moves`. leaders: workers that led when they ended. rest: from when
    to when nothing was done."""
    checks = {check.name: check for check in checks_of(evidence)}
    led = set(leaders)
    changes = []
    for move in moves(evidence, otherwise):
        if move.worker != move.successor:
            old = kinds[move.worker].partition(" ")[0]
            old += " leader" * (move.worker in led and move.cause in SIGNALS)
            new = kinds[move.successor].partition(" ")[0]
            changes.append((move.cause, f"{old} → {new}", move.seconds, move.repeated))
    return NativeFigures(
        fleet=fleet,
        records=sum(map(len, evidence.records.values())),
        lost=len(checks["nothing lost"].problems),
        out_of_order=len(checks["order per shard, no gaps"].problems),
        duplicates=duplicates(evidence),
        changes=changes,
        at_rest=None if rest is None else (moved_within(evidence, *rest), (rest[1] - rest[0]) / 1000),
    )


def moved_within(evidence: Evidence, since: int, until: int) -> int:
    """Number of leases that changed hands between these times."""
    return sum(since < move.at <= until and move.worker != move.successor for move in moves(evidence))


HEAD = ("fleet", "records", "lost", "out of order", "duplicates", "leases moved at rest")
CHANGES_HEAD = ("what ended the old owner", "from → to", "leases", "unread: median", "longest", "duplicates")


def rows(all_figures: Sequence[NativeFigures]) -> Iterator[tuple[Sequence[str], list[list[str]]]]:
    """Heads and rows of two tables."""
    yield (
        HEAD,
        [
            [one.fleet, *map(str, (one.records, one.lost, one.out_of_order, one.duplicates)), _rest(one)]
            for one in all_figures
        ],
    )
    changes = [change for one in all_figures for change in one.changes]
    found = []
    for cause in WORDS:
        for pair in sorted({pair for what, pair, _, _ in changes if what == cause}):
            each = [(seconds, again) for what, of, seconds, again in changes if (what, of) == (cause, pair)]
            seconds = [one for one, _ in each]
            again = sum(one for _, one in each)
            found.append(
                [
                    WORDS[cause],
                    pair,
                    str(len(each)),
                    f"{median(seconds):.1f} s",
                    f"{max(seconds):.1f} s",
                    str(again),
                ]
            )
    yield CHANGES_HEAD, found


def _rest(one: NativeFigures) -> str:
    return "" if one.at_rest is None else f"{one.at_rest[0]} in {one.at_rest[1]:.0f} s"


def report(evidence: Evidence, figures: NativeFigures) -> str:
    """All checks, and the figures."""
    lines = [figures.fleet]
    for check in checks_of(evidence):
        lines.append(f"{check.name:<34}{check.verdict:<14}{check.examined}")
        lines += [f"    {problem}" for problem in check.problems[:8]]
    lines.append(
        f"records put {figures.records}, lost {figures.lost}, out of order {figures.out_of_order}, duplicates "
        f"{figures.duplicates}" + (f", leases moved at rest {_rest(figures)}" if figures.at_rest else "")
    )
    for cause, pair, seconds, again in figures.changes:
        lines.append(f"    {WORDS[cause]}, {pair}: unread for {seconds:.1f} s, {again} records repeated")
    return "\n".join(lines)


def summary(all_figures: Sequence[NativeFigures]) -> str:
    """Two tables for the terminal."""
    return "\n\n".join(_aligned([list(head), *found]) for head, found in rows(all_figures))


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def written_into(page: str, all_figures: Sequence[NativeFigures]) -> str:
    """The text of a page with these figures replaced. Raises ValueError where it has no place for them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"The page has no {BEGIN} and {END}.")
    tables = [
        "\n".join(f"| {' | '.join(row)} |" for row in [list(head), ["---"] * len(head), *found])
        for head, found in rows(all_figures)
    ]
    return f"{before}{BEGIN}\n" + "\n\n".join(tables) + f"\n{END}{after}"
