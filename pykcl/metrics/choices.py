"""What the options of metrics may say; checked by `Config`."""

from __future__ import annotations

import re
from typing import Literal

MetricsLevel = Literal["NONE", "SUMMARY", "DETAILED"]
SINKS = ("cloudwatch", "prometheus", "otel")
ALL = "ALL"
OPERATION = "Operation"
DIMENSIONS = (OPERATION, "ShardId", "WorkerIdentifier", "StreamId", "Cause")
"""What `metrics_dimensions` may name. StreamId is Java's, of workers with several streams; here it means nothing."""
_NAMESPACE = re.compile(r"(?!AWS/)(?!:)[A-Za-z0-9_.:/#-]{1,255}\Z")


def parts(text: str) -> tuple[str, ...]:
    """What stands between the commas."""
    return tuple(part.strip() for part in text.split(","))


def metrics_problem(metrics: str, dimensions: str, namespace: str | None) -> str | None:
    """What is wrong with these options, in the words of a ConfigError; None: nothing."""
    sinks = SINKS if "," in metrics else ("none", *SINKS)
    for name, text, allowed in (
        ("metrics", metrics, sinks),
        ("metrics_dimensions", dimensions, (ALL, *DIMENSIONS)),
    ):
        for part in parts(text):
            if part not in allowed:
                return f"{name}={text[:200]!r}: {part[:200]!r} is none of {', '.join(allowed)}."
    if namespace is not None and not _NAMESPACE.match(namespace):
        return (
            f"metrics_namespace={namespace[:300]!r} is no namespace of CloudWatch: use 1 to 255 of A-Z a-z 0-9 _ . - "
            "/ # and :, with neither a colon nor AWS/ in front."
        )
    return None
