"""Error of a checkpoint that was not written."""

from __future__ import annotations


class CheckpointError(Exception):
    """value: the simple name of Java's exception, such as "ShutdownException" (the lease is lost: stop) or
    "ThrottlingException" (try again)."""

    def __init__(self, value: str) -> None:
        # As args, too: so it survives pickling.
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return repr(self.value)
