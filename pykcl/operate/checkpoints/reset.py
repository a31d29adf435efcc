"""Plan of a reset: the search in the shards, and the rows to move, create and keep.

Every record from the time on is delivered, in order. A shard with such records is read again from the time, and its
descendants from their beginning: their records come later than the parent's. Deleted rows of shards to be read again
are put back, because a child without its parent's row does not wait for it. Parents come first: if the tool dies
between two rows, a fleet reads the table without skipping records, and the same reset, run again, does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from pykcl.errors import ConfigError, PyKclError, Refused, ShardGone, TemporaryError
from pykcl.interfaces import LeaseTable, Stream
from pykcl.model.checkpoint import AT_SHARD_END, AT_TRIM_HORIZON
from pykcl.model.lease import Lease, Row
from pykcl.model.record import Record
from pykcl.model.shard import Shard, range_of_aggregates
from pykcl.operate.checkpoints.plan import (
    Destination,
    Plan,
    SearchResult,
    Situation,
    Step,
    creation_step,
    parents_first,
    refuse_unplannable,
    reset_step,
    unfinished_ancestors,
)
from pykcl.operate.checkpoints.search import ShardSearch, skip_records
from pykcl.planning.run_end import part_of_run
from pykcl.runtime import Runtime, parallel_map
from pykcl.times import format_time

MAX_PARALLEL = 8
"""Shards searched at the same time; each is read no more often than Kinesis allows."""
CLOCK_MILLIS = 1000
"""Kinesis' clock is known to the second, rounded down: every record so far arrived before that much later."""


def plan_reset(
    situation: Situation, results: Mapping[str, SearchResult], *, whole: bool, as_given: bool = False
) -> Plan:
    """Plan a reset to the positions in `results`, one for each shard to be moved.

    whole: these are all listed shards. as_given: the operator named each position, so none is replaced because an
    ancestor is read again. Raises Refused if the listing is incomplete, if rows are unreadable or of another stream,
    without leases, and for a shard that cannot be moved without others.
    """
    refuse_unplannable(situation, results)
    return _Reset(situation, results, whole, as_given).plan()


class _Reset:
    def __init__(
        self, situation: Situation, results: Mapping[str, SearchResult], whole: bool, as_given: bool
    ) -> None:
        self._situation, self._results, self._whole, self._as_given = situation, results, whole, as_given
        self._shards = situation.listing.by_id
        self._leases = situation.leases
        self._tree = situation.tree
        closed = [
            key for key, found in results.items() if found.resume.has_later and not self._shards[key].is_open
        ]
        # Descendants of a shard that is read again are read from their beginning.
        self._reread = self._tree.descendants_of(closed)
        self._unfinished = {key: not lease.is_ended for key, lease in self._leases.items()}
        self._unfinished.update(dict.fromkeys(situation.unreadable, True))

    def plan(self) -> Plan:
        steps: dict[str, Step] = {}
        for key in parents_first(self._results, self._tree):
            step = self._step(self._shards[key], self._results[key])
            if step is not None:
                steps[key] = step
                row = step.new or step.seen
                self._unfinished[key] = row is not None and not row.is_ended
        ordered = [steps[key] for key in parents_first(steps, self._tree)]
        # Siblings first: ended rows do no harm, and if the tool died before them, Java's readers would wait for ever.
        return Plan((*self._siblings(steps), *ordered), tuple(self._hints(steps)))

    def _step(self, shard: Shard, found: SearchResult) -> Step | None:
        """Return the step of a shard; None if it has no row and needs none."""
        key, seen = shard.shard_id, self._leases.get(shard.shard_id)
        below = key in self._reread and not self._as_given
        to = AT_TRIM_HORIZON if below else found.resume.checkpoint
        is_read_again = below or found.resume.has_later
        if seen is not None:
            if seen.is_ended and not is_read_again and not shard.is_open and self._whole:
                return Step(key, "keep", seen, None, found, "ended before that")
            return reset_step(seen, to, found, "again from its beginning" if below else "")
        above = unfinished_ancestors(key, self._tree, self._unfinished)
        if not self._whole:
            self._refuse_before_its_turn(key, above)
        if not (is_read_again or shard.is_open or above or not self._whole):
            return None
        return creation_step(shard, to, self._situation, found, "its row is put back")

    def _refuse_before_its_turn(self, key: str, above: Collection[str]) -> None:
        """Raise Refused for a shard without a row below one that is still being read.

        With a row for that shard alone, workers would take the shards between the two for read.
        """
        left = sorted(one for one in above if one not in self._results)
        if left:
            raise Refused(
                f"{key} has no row yet: {left[0]}, which comes before it, is not read to its end. Nothing was written. "
                "Do: move both, or leave --shard out."
            )

    def _siblings(self, steps: Mapping[str, Step]) -> list[Step]:
        """Create the other parent of a merge if only one of the two would have a row.

        At the end of its shard, Java's reader waits until both rows are there, or neither (v3.5.1 `ShutdownTask`): it
        would wait for ever. The other parent was read and its row deleted, so the row is put back as ended.
        """
        found: dict[str, Step] = {}
        for key in steps:
            # Also for a row that is kept: the tool may have died after it in an earlier run.
            if not self._unfinished[key]:
                continue
            for child in self._tree.children_of(key):
                for other in self._parents_without_row(child, steps):
                    found[other] = creation_step(
                        self._shards.get(other, Shard(other)),
                        AT_SHARD_END,
                        self._situation,
                        None,
                        "the other half of a merge",
                        children=(child,),
                    )
        return [found[key] for key in sorted(found)]

    def _parents_without_row(self, child: str, steps: Mapping[str, Step]) -> list[str]:
        return [
            parent
            for parent in self._tree.parents_of(child)
            if parent not in steps
            and parent not in self._leases
            and parent not in self._situation.unreadable
            and not unfinished_ancestors(parent, self._tree, self._unfinished)
        ]

    def _hints(self, steps: Mapping[str, Step]) -> list[str]:
        hints = []
        left = sorted(
            key
            for key in self._reread - self._results.keys()
            if key in self._leases and any(parent in steps for parent in self._tree.ancestors_of([key]))
        )
        if left:
            hints.append(
                f"{', '.join(left)}: children of shards that are read again, and not moved: they wait, and go on where "
                "they are. Add them with --shard to read them again, too."
            )
        gone = sorted(
            key
            for key, lease in self._leases.items()
            if key not in self._shards and not lease.is_ended and self._whole
        )
        if gone:
            hints.append(f"{', '.join(gone)}: Kinesis no longer lists them, so their rows stay as they are.")
        return hints


def read_situation(table: LeaseTable, stream: Stream) -> Situation:
    """List the shards and scan the table. Raises SetupError (no such stream or table), WrongTable, TemporaryError."""
    table.prepare(create=False)
    description = stream.describe()
    # In this order: a scan older than the listing could miss the row of a listed shard.
    listing, rows = stream.list_shards(), table.scan().rows
    leases = {row.key: row for row in rows if isinstance(row, Lease)}
    listing = replace(listing, shards=part_of_run(listing.shards, leases))
    return Situation(description, listing, rows, stream.server_time_millis())


def plan_reset_to(
    situation: Situation,
    destination: Destination,
    keys: Collection[str] | None,
    stream: Stream,
    runtime: Runtime,
    on_read: Callable[[], None] = lambda: None,
) -> Plan:
    """Search the shards and plan the reset. keys: shard ids; None: all shards.

    on_read: called for every read of a shard, from any thread. Raises ConfigError for an unknown shard and a time in
    the future, Refused (see `plan_reset`), TemporaryError, SetupError.
    """
    hints = _time_hints(destination, situation)
    listed = situation.listing.by_id
    chosen = set(destination.positions) if destination.kind == "positions" else set(keys or listed)
    unknown = sorted(chosen - listed.keys())
    if unknown:
        near = ", ".join(sorted(listed)[:5])
        raise ConfigError(
            f"Kinesis lists no shard {unknown[0]} in stream {situation.stream.name!r}. Nothing was written. It lists "
            f"{len(listed)}: {near}{', …' if len(listed) > 5 else ''}."
        )

    def search(key: str) -> SearchResult:
        return _search(ShardSearch(stream, key, runtime, on_read), key, destination, situation)

    results = parallel_map(search, sorted(chosen), runtime, max_threads=MAX_PARALLEL, name="pykcl-search")
    whole = keys is None and destination.kind != "positions"
    plan = plan_reset(situation, results, whole=whole, as_given=destination.kind == "positions")
    return Plan(plan.steps, (*hints, *plan.hints))


def _search(search: ShardSearch, key: str, destination: Destination, situation: Situation) -> SearchResult:
    row = situation.leases.get(key)
    try:
        if destination.kind == "earliest":
            found = search.oldest()
        elif destination.kind == "positions":
            found = search.after(*destination.positions[key])
        else:
            found = search.before(_until(destination, situation))
        now_at = None if row is None else search.arrival_of(row.checkpoint)
    except ShardGone:
        gone: PyKclError = TemporaryError(f"{key} was trimmed during the search. Do: try again.")
    else:
        return SearchResult(found.resume, found.oldest, now_at)
    raise gone


def _until(destination: Destination, situation: Situation) -> int:
    if destination.kind == "time" and destination.at_millis is not None:
        return destination.at_millis
    return situation.now_millis + CLOCK_MILLIS


def _time_hints(destination: Destination, situation: Situation) -> list[str]:
    """Return notes on the time. Raises ConfigError for a time in the future."""
    at = destination.at_millis
    if destination.kind != "time":
        return []
    if at is None:
        raise ConfigError("No time was given.")
    if at > situation.now_millis + CLOCK_MILLIS:
        raise ConfigError(
            f"{format_time(at)} is in the future: Kinesis' clock says {format_time(situation.now_millis)}. Nothing was "
            "written. Do: use --to-latest to go on with new records only."
        )
    hours = situation.stream.retention_hours
    horizon = max(situation.stream.created_at, situation.now_millis - hours * 3_600_000)
    if at >= horizon:
        return []
    return [
        f"{format_time(at)} is before the retention period ({hours} h, from about {format_time(horizon)} on): older "
        "records are gone, and shards go on at their oldest record."
    ]


def stream_of_rows(rows: Iterable[Row]) -> str | None:
    """Return the ARN of the stream named in the rows; None if they name none, or several."""
    named = {row.metadata.stream_arn for row in rows if isinstance(row, Lease) and row.metadata is not None}
    return named.pop() if len(named) == 1 else None


def plan_skip(
    situation: Situation, key: str, count: int, stream: Stream, runtime: Runtime
) -> tuple[Plan, tuple[Record, ...]]:
    """Return the plan that skips the next `count` user records of a shard, and these records.

    Raises as `plan_reset_to` and `skip_records`; Refused also for a shard without a readable row.
    """
    lease = situation.leases.get(key)
    shard = situation.listing.by_id.get(key)
    if lease is None or shard is None:
        problem = situation.unreadable.get(key)
        why = f"cannot be understood ({problem.problem})" if problem else "does not exist"
        raise Refused(
            f"{f'The row of {key} {why}' if shard else f'Kinesis lists no shard {key}'}. Nothing was written."
        )
    ignores_keys = situation.stream.ignores_keys
    hash_range = range_of_aggregates(shard.hash_range, lease.hash_range, ignores_keys=ignores_keys)
    found, skipped = skip_records(ShardSearch(stream, key, runtime), lease, hash_range, count)
    return plan_reset(situation, {key: found}, whole=False, as_given=True), skipped
