"""A status as JSON: every lease, what fails, every thread, and which versions it is about."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pykcl import __version__
from pykcl.health.judgement import liveness, readiness
from pykcl.status import WorkerStatus

FORMAT = 1
"""Of the JSON; grows when a field goes or changes its meaning."""
_LIBRARIES = ("boto3", "botocore", "prometheus_client", "opentelemetry")


def report(status: WorkerStatus | None) -> dict[str, Any]:
    """What /status answers: the fields of WorkerStatus by their names, or null for `worker` where there is none yet."""
    live, ready = liveness(status), readiness(status)
    behind = [
        lease.millis_behind_latest
        for lease in (status.leases if status else ())
        if lease.millis_behind_latest is not None
    ]
    return {
        "format": FORMAT,
        "live": live.is_good,
        "ready": ready.is_good,
        "why": list(dict.fromkeys((*live.why, *ready.why))),
        "max_millis_behind_latest": max(behind, default=None),
        "stalled": [lease.shard for lease in (status.leases if status else ()) if _is_stalled(lease)],
        "versions": versions(),
        "worker": asdict(status) if status is not None else None,
    }


def as_json(told: Mapping[str, Any]) -> bytes:
    """ASCII: whatever a shard or a worker calls itself, it is inert here."""
    return json.dumps(told, allow_nan=False).encode("ascii") + b"\n"


def versions() -> dict[str, str]:
    """Of Python, pykcl, and those libraries that are loaded."""
    found = {"pykcl": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def _is_stalled(lease: Any) -> bool:
    return lease.call is not None and lease.call.stalled
