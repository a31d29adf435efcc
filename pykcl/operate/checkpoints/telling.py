"""What a plan means, as plain values for a table: where each shard goes on, and how much comes again or never."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pykcl.model.checkpoint import TRIM_HORIZON, Checkpoint
from pykcl.operate.checkpoints.plan import Plan, Step
from pykcl.operate.checkpoints.times import time_text


@dataclass(frozen=True, slots=True)
class Effect:
    """resumes_at: epoch milliseconds; None: with what comes from now on, or nobody knows.

    replays, skips: seconds between the arrivals of the first and the last record that come again, or that nobody will
    be given; None: not that, or nobody knows. to_end: what comes again reaches to the end of a closed shard.
    """

    resumes_at: float | None = None
    replays: float | None = None
    skips: float | None = None
    to_end: bool = False


def effect_of(step: Step, now_millis: int) -> Effect:
    """What a step does to the shard's readers."""
    look = step.look
    if look is None or step.action == "delete":
        return Effect()
    row = step.new or step.seen
    to = row.checkpoint if row is not None else None
    if to is None or to.is_shard_end:
        return Effect()
    begins = look.oldest if to.sequence_number == TRIM_HORIZON else look.place.resumes_at
    if step.action == "keep":
        return Effect(begins)
    before = step.seen.checkpoint if step.seen is not None else None
    if before is None or before.is_shard_end:
        return Effect(begins, replays=_seconds(begins, now_millis), to_end=before is not None)
    if to < before:
        return Effect(begins, replays=_seconds(begins, look.current_at))
    since = look.oldest if before.sequence_number == TRIM_HORIZON else look.current_at
    return Effect(begins, skips=_seconds(since, begins if begins is not None else now_millis))


def rows_of(plan: Plan, now_millis: int) -> list[dict[str, Any]]:
    """One plain mapping for each step, in order; times as text."""
    return [_row(step, effect_of(step, now_millis)) for step in plan.steps]


def _row(step: Step, effect: Effect) -> dict[str, Any]:
    after = None if step.action == "delete" else (step.new or step.seen)
    return {
        "shard": step.key,
        "action": step.action,
        "current": _text(step.seen.checkpoint if step.seen is not None else None),
        "new": _text(after.checkpoint if after is not None else None),
        "resumes_at": None if effect.resumes_at is None else time_text(effect.resumes_at),
        "replays_seconds": effect.replays,
        "skips_seconds": effect.skips,
        "to_end": effect.to_end,
        "why": step.why,
    }


def _text(checkpoint: Checkpoint | None) -> str | None:
    return None if checkpoint is None else str(checkpoint)


def _seconds(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else round(max(0.0, last - first) / 1000, 3)
