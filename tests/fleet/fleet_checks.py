"""What holds in every fleet, of whatever workers, as pure functions from `Evidence` to checks.

A check says what it examined. One that examined nothing proves nothing, and is shown as NOT EXERCISED.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fleet_evidence import Evidence, Item, Life
from fleet_rows import shown


@dataclass(frozen=True, slots=True)
class Check:
    """examined: what was looked at, in words. problems: one line each. exercised: whether there was anything."""

    name: str
    examined: str
    problems: tuple[str, ...]
    exercised: bool

    @property
    def verdict(self) -> str:
        return "FAILED" if self.problems else "ok" if self.exercised else "NOT EXERCISED"


def check_of(name: str, examined: str, problems: Iterable[str], count: int) -> Check:
    return Check(name, examined, tuple(problems), count > 0)


# -- records ---------------------------------------------------------------------------------------------------


def nothing_lost(evidence: Evidence) -> Check:
    """Every record that was put was worked on to its end by somebody."""
    done = {(life.shard, item.at) for life in evidence.lives for _, item in life.done}
    put = sum(map(len, evidence.records.values()))
    lost = [
        (shard, item)
        for shard, items in sorted(evidence.records.items())
        for item in items
        if (shard, item.at) not in done
    ]
    problems = [
        f"{item} of {shard} was put and never finished{_last_seen(evidence, shard, item)}"
        for shard, item in lost[:50]
    ]
    problems += [f"… and {len(lost) - 50} more"] if len(lost) > 50 else []
    return check_of("nothing lost", f"{put} records put", problems, put)


def _last_seen(evidence: Evidence, shard: str, item: Item) -> str:
    """Who said that it was done, and who had it in hand: where to begin looking."""
    words = []
    for write in evidence.writes:
        after = write.after
        if write.key == shard and write.applied and after and after.checkpoint >= item.at:
            words.append(f"{write.writer or 'somebody'} checkpointed {shown(after.checkpoint)}")
            break
    holders = [life.worker for life in evidence.lives if life.shard == shard and _was_given(life, item)]
    return "".join(f"; {word}" for word in [*words, *([f"given to {', '.join(holders)}"] if holders else [])])


def _was_given(life: Life, item: Item) -> bool:
    return any(item in batch for _, batch in life.given)


def no_strangers(evidence: Evidence) -> Check:
    """What was delivered is what was put."""
    known = {(shard, item) for shard, items in evidence.records.items() for item in items}
    given = [(life, item) for life in evidence.lives for _, batch in life.given for item in batch]
    problems = [
        f"{item}, given to {life}, was never put there"
        for life, item in given
        if (life.shard, item) not in known
    ]
    return check_of("nothing but what was put", f"{len(given)} deliveries", problems, len(given))


def order_without_gaps(evidence: Evidence) -> Check:
    """Each processor got the records of its shard behind its start in order, each once, and left none out."""
    problems, count = [], 0
    for life in evidence.lives:
        given = [item for _, batch in life.given for item in batch]
        count += len(given)
        items = evidence.records.get(life.shard, [])
        first = bisect_right([item.at for item in items], life.start)
        expected = items[first : first + len(given)]
        problems += _first_difference(life, given, expected)
        finished = [item for _, item in life.done]
        if finished != given[: len(finished)]:
            problems.append(f"{life} finished records in another order than it got them")
    examined = f"{count} deliveries to {len(evidence.lives)} processors"
    return check_of("order per shard, no gaps", examined, problems, count)


def _first_difference(life: Life, given: list[Item], expected: list[Item]) -> list[str]:
    for number, item in enumerate(given):
        if number >= len(expected):
            return [f"{life} got {item} beyond the last one put"]
        if item != expected[number]:
            return [f"{life} got {item} where {expected[number]} was due"]
    return []


def one_life(evidence: Evidence) -> Check:
    """Initialized once per ownership, ended at most once, and told nothing after that."""
    seen = Counter((life.worker, life.shard, life.token) for life in evidence.lives)
    problems = [
        f"{worker} was initialized {n} times for {shard}" for (worker, shard, _), n in seen.items() if n > 1
    ]
    for life in evidence.lives:
        problems += [f"{life} was told of {what} after its end ({life.ends[0]})" for what in life.after_end]
    return check_of("life of a processor", f"{len(evidence.lives)} processors", problems, len(evidence.lives))


def parents_first(evidence: Evidence) -> Check:
    """A child is begun when the end of each parent is in the table, and every record of the parents is done."""
    ended = {w.key: w.t for w in reversed(evidence.writes) if w.kind == "end" and w.applied}
    done: dict[tuple[str, Item], int] = {}
    for life in evidence.lives:
        for t, item in life.done:
            done[life.shard, item] = min(t, done.get((life.shard, item), t))
    problems, count = [], 0
    for life in evidence.lives:
        for parent in evidence.parents.get(life.shard, ()):
            count += 1
            if parent not in ended or life.t < ended[parent]:
                problems.append(f"{life} began before the end of its parent {parent} was in the table")
            late = [i for i in evidence.records.get(parent, ()) if done.get((parent, i), life.t + 1) > life.t]
            if late:
                problems.append(f"{life} began before {late[0]} of its parent {parent} was finished")
    return check_of("parents before children", f"{count} starts behind a parent", problems, count)
