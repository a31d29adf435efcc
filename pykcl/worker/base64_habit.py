"""Tells whether a processor raised because it took `record.data` for what amazon_kclpy hands over: base64 text."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from pykcl.model.record import Record


def takes_data_for_text(error: BaseException, records: Sequence[Record]) -> bool:
    """Whether it was raised by base64.b64decode(record.data), or by a method of str that bytes have not.

    Told by identity: what a program decodes that it got from elsewhere is its own affair.
    """
    if isinstance(error, AttributeError):
        return hasattr(str, error.name or "") and _is_data(error.obj, records)
    return any(
        frame.f_code.co_name == "b64decode"
        and frame.f_globals.get("__name__") == "base64"
        and _is_data(frame.f_locals.get("s"), records)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _is_data(value: object, records: Sequence[Record]) -> bool:
    return isinstance(value, bytes) and any(value is record.data for record in records)
