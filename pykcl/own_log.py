"""What pykcl logs is heard also where the program it runs configures logging."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_OURS = "pykcl"
_found: tuple[int, tuple[logging.Logger, ...]] = (0, ())
"""How many loggers there were when they were last looked through, and which of them are pykcl's."""


@contextmanager
def heard() -> Iterator[None]:
    """Around what the program does: pykcl's loggers are not disabled when it begins and when it ends.

    logging.config disables all loggers that are there, unless it is told not to. A process of its own has no others
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
    """Looked for among all only when there are more of those: a call of the program costs no such walk."""
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
