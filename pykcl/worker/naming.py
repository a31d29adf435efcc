"""Puts the names of this worker's application, stream and table into what errors tell to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

from pykcl.config import Config
from pykcl.errors import PyKclError


class _Configured(Protocol):
    config: Config


Told = TypeVar("Told", bound=Exception)
Worker = TypeVar("Worker", bound=_Configured)


def names_of(config: Config) -> dict[str, str]:
    """What the words of a hint stand for here."""
    return {"APPLICATION": config.application, "STREAM": config.stream, "TABLE": config.table}


def named(error: Told, config: Config) -> Told:
    """The error itself, its hint with the names of `config`."""
    if isinstance(error, PyKclError):
        error.naming(application=config.application, stream=config.stream, table=config.table)
    return error


def explaining(method: Callable[[Worker], None]) -> Callable[[Worker], None]:
    """Decorator of a method of Worker: what it raises is `named`."""

    @functools.wraps(method)
    def wrapped(self: Worker) -> None:
        try:
            method(self)
        except PyKclError as error:
            named(error, self.config)
            raise

    return wrapped
