"""Looks around before anything is planned: the stream, the table, and the shards that are to be moved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from pykcl.errors import ConfigError, InternalError, PyKclError, Refused, ShardGone, TemporaryError
from pykcl.interfaces import LeaseTable, Stream
from pykcl.model.lease import Lease, Row
from pykcl.model.record import Record
from pykcl.operate.checkpoints.places import Destination, Look
from pykcl.operate.checkpoints.plan import Plan, Situation
from pykcl.operate.checkpoints.reset_plan import plan_reset
from pykcl.operate.checkpoints.search import ShardSearch
from pykcl.operate.checkpoints.skipping import step_over
from pykcl.operate.checkpoints.times import time_text
from pykcl.operate.side_by_side import side_by_side
from pykcl.runtime import Runtime

AT_ONCE = 8
"""Shards that are read at the same time; each of them not more often than Kinesis allows."""
CLOCK_MILLIS = 1000
"""Kinesis' clock is known to the second, rounded down: what arrived until now arrived before that much later."""

Result = TypeVar("Result")


def look_around(table: LeaseTable, stream: Stream) -> Situation:
    """Raises SetupError (no such stream or table), WrongTable, TemporaryError."""
    table.prepare(create=False)
    description = stream.describe()
    # In this order: a scan older than the listing could miss the row of a listed shard.
    listing = stream.list_shards()
    return Situation(description, listing, table.scan().rows, stream.server_time_millis())


def plan_for(
    situation: Situation,
    destination: Destination,
    keys: Collection[str] | None,
    stream: Stream,
    runtime: Runtime,
    on_read: Callable[[], None] = lambda: None,
) -> Plan:
    """Look into the shards and plan the reset. keys: shard ids; None: of all the shards.

    on_read: told of every read of a shard, from any thread. Raises ConfigError for a shard that is not there and a time
    that has not come, Refused (see `plan_reset`), TemporaryError, SetupError.
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

    def look(key: str) -> Look:
        return _look(ShardSearch(stream, key, runtime, on_read), key, destination, situation)

    looks = in_parallel(sorted(chosen), look, runtime)
    whole = keys is None and destination.kind != "positions"
    plan = plan_reset(situation, looks, whole=whole, as_told=destination.kind == "positions")
    return Plan(plan.steps, (*hints, *plan.hints))


def in_parallel(keys: list[str], call: Callable[[str], Result], runtime: Runtime) -> dict[str, Result]:
    """`call(key)` for each, several at a time. Raises what one of them raised; then the others are not finished."""
    results = side_by_side(keys, call, runtime, most=AT_ONCE, name="pykcl-look")
    if len(results) < len(keys):
        raise InternalError(
            "A thread that looked into shards died; the log says of what. Nothing was written."
        )
    return results


def _look(search: ShardSearch, key: str, destination: Destination, situation: Situation) -> Look:
    row = situation.leases.get(key)
    try:
        if destination.kind == "earliest":
            found = search.oldest()
        elif destination.kind == "positions":
            found = search.behind(*destination.positions[key])
        else:
            found = search.before(_until(destination, situation))
        now_at = None if row is None else search.arrival_of(row.checkpoint)
    except ShardGone:
        gone: PyKclError = TemporaryError(f"{key} was trimmed while it was looked at. Do: try again.")
    else:
        return Look(found.place, found.oldest, now_at)
    raise gone


def _until(destination: Destination, situation: Situation) -> int:
    if destination.kind == "time" and destination.at_millis is not None:
        return destination.at_millis
    return situation.now_millis + CLOCK_MILLIS


def _time_hints(destination: Destination, situation: Situation) -> list[str]:
    """What is to be said of the time. Raises ConfigError for one that has not come."""
    at = destination.at_millis
    if destination.kind != "time":
        return []
    if at is None:
        raise ConfigError("No time was given.")
    if at > situation.now_millis + CLOCK_MILLIS:
        raise ConfigError(
            f"{time_text(at)} has not come yet: Kinesis' clock says {time_text(situation.now_millis)}. Nothing was "
            "written. Do: use --to-latest to go on with what comes from now on."
        )
    hours = situation.stream.retention_hours
    horizon = max(situation.stream.created_at, situation.now_millis - hours * 3_600_000)
    if at >= horizon:
        return []
    return [
        f"{time_text(at)} is before what the stream keeps ({hours} h, from about {time_text(horizon)} on): what is "
        "older is gone, and shards go on at their oldest record."
    ]


def stream_of_rows(rows: Iterable[Row]) -> str | None:
    """The ARN of the stream that the rows say they belong to; None where they say nothing, or different things."""
    named = {row.metadata.stream_arn for row in rows if isinstance(row, Lease) and row.metadata is not None}
    return named.pop() if len(named) == 1 else None


def plan_skip(
    situation: Situation, key: str, count: int, stream: Stream, runtime: Runtime
) -> tuple[Plan, tuple[Record, ...]]:
    """The plan that steps over the next `count` user records of a shard, and these records.

    Raises as `plan_for` and `step_over`; Refused also where the shard has no row that can be understood.
    """
    lease = situation.leases.get(key)
    shard = situation.listing.by_id.get(key)
    if lease is None or shard is None:
        problem = situation.unreadable.get(key)
        why = f"cannot be understood ({problem.problem})" if problem else "does not exist"
        raise Refused(
            f"{f'The row of {key} {why}' if shard else f'Kinesis lists no shard {key}'}. Nothing was written."
        )
    hash_range = lease.hash_range or shard.hash_range
    look, skipped = step_over(ShardSearch(stream, key, runtime), lease, hash_range, count)
    return plan_reset(situation, {key: look}, whole=False, as_told=True), skipped
