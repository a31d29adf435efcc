"""A file that is renewed while the worker lives: for probes that run a command, without a port."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from pykcl.errors import SetupError
from pykcl.health.judgement import Verdict

log = logging.getLogger("pykcl.health")


class HealthFile:
    """There and younger than some seconds: the worker lives. Its content, one JSON object, says more.

    Replaced as a whole, so that nobody reads half of it. Used by one thread at a time.
    """

    def __init__(self, path: Path) -> None:
        self._given = path
        # The program that this process runs may change its folder. Not resolved, and no `..` taken out of it: a link is
        # what it is when it is followed.
        self._path = path.absolute()
        self._is_failing = False

    def prepare(self) -> None:
        """Remove what a process before this one left, and make sure that it can be written. Raises SetupError."""
        try:
            self._path.unlink(missing_ok=True)
            self._write(b"")
            self._path.unlink()
        except OSError as error:
            raise SetupError(
                f"The health file {str(self._given)!r} cannot be written: {error.strerror or type(error).__name__}. "
                "Do: name a file in a folder that this process may write to."
            ) from None

    def renew(self, live: Verdict, ready: Verdict, state: str) -> None:
        """Write it while the worker lives; take it away otherwise."""
        if not live.is_good:
            self.remove()
            return
        told = {
            "live": True,
            "ready": ready.is_good,
            "why": list(ready.why),
            "state": state,
            "pid": os.getpid(),
            "at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        }
        self._try(lambda: self._write(json.dumps(told).encode("ascii") + b"\n"))

    def remove(self) -> None:
        """No more of it."""
        self._try(lambda: self._path.unlink(missing_ok=True))

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            # A full disk, say. The file grows old, and whoever watches it sees that.
            if not self._is_failing:
                log.error("health file cannot be renewed error=%s", error.strerror or type(error).__name__)
            self._is_failing = True
        else:
            self._is_failing = False

    def _write(self, content: bytes) -> None:
        # A new file of a name that nobody can foresee: in a folder that is everybody's it is no link of somebody's.
        handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(name, 0o644)  # the probe may run as somebody else
            os.replace(name, self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
