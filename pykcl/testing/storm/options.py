"""With which configuration the workers of one storm run."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

from pykcl.testing.simulation import EPOCH_MILLIS
from pykcl.testing.storm.faults import Faults
from pykcl.testing.storm.fleet import GRACE

FEW_LEASES = 5
"""With two workers all shards of a storm still find an owner."""
_STORM_BEGINS = 1000
_START_AFTER = 3
"""Seconds."""


def storm_options(seed: int, rng: random.Random, faults: Faults, *, own_processor: bool) -> dict[str, Any]:
    """Fields of Config, by name. own_processor: it is a user's, of which nobody knows when it raises.

    What was added later has generators of its own: it moves nothing else in the story of a seed.
    """
    options = _first_options(rng)
    start = _own(seed, "AT_TIMESTAMP")
    if options["start"] == "TRIM_HORIZON" and start.random() < 0.25:
        began = datetime.fromtimestamp(EPOCH_MILLIS / 1000, tz=timezone.utc)
        options["start"] = began + timedelta(seconds=_STORM_BEGINS + _START_AFTER)
    if faults.has("F17.raises") and not own_processor:
        options["on_error"] = _own(seed, "on_error").choice(["retry", "retry", "retry", "skip", "raise"])
    if _own(seed, "processor_timeout").random() < 0.25:
        # Longer than the batches that are slow on purpose in calm weather, by a fast clock too.
        options["processor_warn_after"], options["processor_timeout"] = 10.0, 25.0
    audits = _own(seed, "audits")
    options["audit_interval"], options["audit_confirmations"] = (
        audits.choice([5.0, 20.0]),
        audits.choice([1, 3]),
    )
    # Fleets of a storm are too small for looks at parts, unless they are told to.
    options["table_looks"] = _own(seed, "table_looks").choice(["whole", "parts"])
    if _own(seed, "max_leases").random() < 0.25:
        options["max_leases"] = FEW_LEASES
        # Where those who look at a lease are full, others may not know of it for long: docs/guarantees.md.
        options["table_looks"] = "whole"
    return options


def _own(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed}/option/{name}")  # noqa: S311 - reproducible


def _first_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "start": rng.choice(["TRIM_HORIZON"] * 4 + ["LATEST"]),
        "checkpoint": rng.choice(["auto", "auto", "interval", "manual"]),
        "max_records": rng.choice([2, 5, 10_000]),
        "cleanup_interval": rng.choice([3.0, 20.0]),
        "shard_sync_interval": rng.choice([5.0, 30.0]),
        "retry_for": rng.choice([5.0, 30.0]),
        "parent_poll_interval": rng.choice([0.5, 2.0]),
        "max_leases_to_steal_at_one_time": rng.choice([1, 3]),
        "shutdown_grace": GRACE,
    }
    interval = rng.choice([0.5, 5.0])
    if options["checkpoint"] == "interval":
        options["checkpoint_interval"] = interval
    return options
