"""The error of a method that a program had to write and did not."""

from __future__ import annotations


def unwritten(instance: object, method: str) -> NotImplementedError:
    """To be raised by the method of a base class."""
    return NotImplementedError(f"{type(instance).__name__} has no {method}() of its own.")
