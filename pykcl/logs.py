"""pykcl's log: a JSON formatter, and loggers that stay enabled where the program configures logging."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime

from pykcl.event_dispatch import EVENT_OF_RECORD, explained
from pykcl.events import Event

_OURS = "pykcl"
_found: tuple[int, tuple[logging.Logger, ...]] = (0, ())
"""Number of loggers at the last search through them, and those of pykcl among them."""


@contextmanager
def heard() -> Iterator[None]:
    """Enable pykcl's loggers at the begin and at the end of the block, which runs code of the program.

    logging.config disables all loggers that are there, unless configured not to. A process of its own has no others
    that count; here a batch would then fail again and again without a word. 1) The method of one shard configures
    logging; 2) another shard's, which begins or ends meanwhile, enables some of them; 3) those and all others are
    disabled; 4) the first method ends, and all are enabled. Where a thread of the program did it, the next call of any
    shard does that.
    """
    enable()
    try:
        yield
    finally:
        enable()


def enable() -> None:
    """Let pykcl's loggers log again. Their handlers and levels are left to whoever set them."""
    for logger in _own():
        logger.disabled = False


def _own() -> tuple[logging.Logger, ...]:
    """Search all loggers only when there are more of them: a call of the program costs no such search."""
    global _found  # noqa: PLW0603 - loggers are the process's, too
    known = logging.root.manager.loggerDict
    count, own = _found
    if count != len(known):
        # A copy, made in one go: other threads make loggers meanwhile. The count is that of the copy, so that one made
        # behind it is found the next time. (One that takes the place of a mere parent's name is not; pykcl has none.)
        now = list(known.items())
        own = tuple(
            logger
            for name, logger in now
            if isinstance(logger, logging.Logger) and name.partition(".")[0] == _OURS
        )
        _found = len(now), own
    return own


_OWN = ("time", "level", "logger", "message", "event", "traceback", "process")


class JsonFormatter(logging.Formatter):
    """Each record as one line of JSON in ASCII: `time` (ISO 8601, UTC), `level`, `logger`, `message`.

    A record about an event has its type as `event`, and its fields; the message is then the first words only. One about
    a known mistake has `code`, `hint` and `docs`, too; one with an exception its `traceback`. For any logger, not
    only pykcl's. process: number of this process among several, logged as `process`; None: not logged.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            **self._process,
        }
        event = getattr(record, EVENT_OF_RECORD, None)
        if isinstance(event, Event):
            fields |= {
                "message": event.TEXT,
                "event": type(event).__name__,
                **_values(event),
                **explained(event),
            }
        else:
            fields["message"] = record.getMessage()
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def _values(event: Event) -> dict[str, object]:
    found = {field.name: getattr(event, field.name) for field in fields(event) if field.repr}
    return {
        f"event_{name}" if name in _OWN else name: None if _is_no_json(value) else value
        for name, value in found.items()
    }


def _is_no_json(value: object) -> bool:
    """Infinity and NaN, which json would write as something that is not JSON."""
    return isinstance(value, float) and not math.isfinite(value)
