"""What happens to children, as events beside those of the worker; same listeners, same form in the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pykcl.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStarted(Event):
    """pid: also of the child's own session and process group."""

    TEXT = "child started"
    shard: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFailed(Event):
    """The child is of no use any more: it ended, hung, could not be started. Its shard begins anew with another one.

    failures: how many children of this shard have failed in this process, this one among them.
    """

    LEVEL = logging.ERROR
    TEXT = "child failed"
    shard: str
    pid: int | None
    doing: str
    why: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnded(Event):
    """exit: its exit code, minus the number of the signal that ended it. forced: which signal it needed, if any."""

    TEXT = "child ended"
    shard: str
    pid: int
    exit: int
    forced: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerNotBelieved(Event):
    """The child printed a status line that answers nothing it was asked. awaited: what it is being asked, if anything.

    Told once for each child.
    """

    LEVEL = logging.WARNING
    TEXT = "a line that looks like the protocol answers nothing that was asked, and is not believed"
    shard: str
    pid: int
    answers: str
    awaited: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotUnderstood(Event):
    """The child asked for a checkpoint at something that is no position, and was answered IllegalArgumentException.

    field: the one that is wrong. The line itself is in the log of what the child prints. Told once for each child.
    """

    LEVEL = logging.WARNING
    TEXT = "a child asks for a checkpoint at no position, and is refused"
    shard: str
    pid: int
    field: str
