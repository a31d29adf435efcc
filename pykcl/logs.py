"""A formatter for the log as JSON: one object on each line, with the fields of events by their names."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import fields
from datetime import datetime, timezone

from pykcl.events import Event
from pykcl.listeners import EVENT_OF_RECORD, explained

_OWN = ("time", "level", "logger", "message", "event", "traceback", "process")


class JsonFormatter(logging.Formatter):
    """Each record as one line of JSON in ASCII: `time` (ISO 8601, UTC), `level`, `logger`, `message`.

    A record about an event has its type as `event`, and its fields; the message is then the first words only. One about
    a known mistake has `code`, `hint` and `docs`, too; one with an exception its `traceback`. For any logger, not
    only pykcl's. process: which of several this is, told as `process`; None: nothing of it.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            **self._process,
        }
        event = getattr(record, EVENT_OF_RECORD, None)
        if isinstance(event, Event):
            told |= {
                "message": event.TEXT,
                "event": type(event).__name__,
                **_values(event),
                **explained(event),
            }
        else:
            told["message"] = record.getMessage()
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def _values(event: Event) -> dict[str, object]:
    found = {field.name: getattr(event, field.name) for field in fields(event) if field.repr}
    return {
        f"event_{name}" if name in _OWN else name: None if _is_no_json(value) else value
        for name, value in found.items()
    }


def _is_no_json(value: object) -> bool:
    """Infinity and NaN, which json would write as something that is not JSON."""
    return isinstance(value, float) and not math.isfinite(value)
