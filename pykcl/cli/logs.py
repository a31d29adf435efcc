"""The log of the commands: to standard error, as text or as JSON."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pykcl.errors import printable

LogFormat = Literal["text", "json"]
LOG_FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)-7s "
_NAME = "%(name)s "
_MESSAGE = "%(message)s"
_CHATTY = ("botocore", "boto3", "urllib3", "s3transfer")


class _TextFormatter(logging.Formatter):
    """Make the name of the logger printable: some contain a lease key."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its parent's name
        if not record.name.isprintable():
            record = copy.copy(record)  # other handlers get the record as it was
            record.name = printable(record.name)
        return super().formatMessage(record)


def formatter(
    log_format: LogFormat, *, with_names: bool = False, process: int | None = None
) -> logging.Formatter:
    """Return a formatter. with_names: the text has the name of the logger, too. process: number of this process."""
    if log_format == "json":
        from pykcl.logs import JsonFormatter

        return JsonFormatter(process)
    number = "" if process is None else f"[{process}] "
    return _TextFormatter(_TEXT + number + (_NAME if with_names else "") + _MESSAGE)


def log_to_stderr(
    log_format: LogFormat, *, verbose: bool, with_names: bool = False, process: int | None = None
) -> None:
    """Log the whole process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format, with_names=with_names, process=process))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def log_beside_the_program(log_format: LogFormat, *, verbose: bool, process: int | None = None) -> None:
    """Log pykcl to stderr, and leave the root logger to the program, whose logging.basicConfig() must still work."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(log_format, process=process))
    ours = logging.getLogger("pykcl")
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG if verbose else logging.INFO)
    ours.propagate = False
    # The program's own logging may be at DEBUG, for it had no AWS in its process: there botocore logs what it signs,
    # with the session's token. Who wants that sets these levels after this.
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.INFO)


@contextmanager
def logged_to_stderr(name: str) -> Iterator[None]:
    """Log that logger to standard error in the block, for a command that prints everything else itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter("text"))
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
