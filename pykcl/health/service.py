"""The health endpoint of a process, its health file, and a line in the log when health changes.

The file is renewed while the worker lives: for probes that run a command, without a port.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from pykcl.errors import SetupError
from pykcl.health.http import Address, HttpServer, listen
from pykcl.health.pages import Pages, new_token
from pykcl.health.probes import HealthCheck, HealthSource, Verdict, Watched, WorkerHealth
from pykcl.host_names import allowed_names

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
        content = {
            "live": True,
            "ready": ready.is_good,
            "why": list(ready.why),
            "state": state,
            "pid": os.getpid(),
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        self._try(lambda: self._write(json.dumps(content).encode("ascii") + b"\n"))

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


CHECK_SECONDS = 1.0
_STOP_SECONDS = 2.0


class HealthService:
    """A context manager around the making and running of a worker. All of it is optional.

    http: where to listen: "8080" (127.0.0.1 only), "0.0.0.0:8080". token: what /status needs; without one it is open
    where only this machine can listen in, and needs `token` as made here everywhere else. file: renewed while the
    worker lives, removed when it does not. allow_hosts: names that a Host header may have besides localhost and the
    address it came in on.
    Raises ConfigError for what is no address and no host name, and, when entered, ConfigError and SetupError for an
    address or a file that cannot be used.
    """

    def __init__(
        self,
        *,
        http: str | None = None,
        token: str | None = None,
        file: Path | None = None,
        allow_hosts: Iterable[str] | None = (),
    ) -> None:
        self._address = Address.of(http) if http is not None else None
        self.token = token
        self._allowed = allowed_names(allow_hosts)
        self.has_made_token = False
        self._file = HealthFile(file) if file is not None else None
        self._worker: Watched | None = None
        self._source: HealthSource = WorkerHealth(lambda: self._worker)
        self._server: HttpServer | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._edges = {"live": _Edge("live", logging.ERROR), "ready": _Edge("ready", logging.WARNING)}

    @property
    def url(self) -> str | None:
        """The URL of the server, while it runs."""
        return f"http://{self._server.address}" if self._server is not None else None

    def watch(self, worker: Watched) -> None:
        """Set the worker to check. Without one the answers are live and not ready."""
        self._worker = worker

    def use_source(self, source: HealthSource) -> None:
        """Check this source instead of one worker. To be called before the context is entered."""
        self._source = source

    def __enter__(self) -> HealthService:
        if self._file is not None:
            self._file.prepare()
        if self._address is not None:
            listener = listen(self._address)
            if self.token is None and not listener.is_loopback:
                self.token, self.has_made_token = new_token(), True
            self._server = HttpServer(listener, Pages(self._source, self.token, allowed=self._allowed).answer)
            self._server.start()
        if self._file is not None or self._server is not None:
            self._thread = threading.Thread(target=self._run, name="pykcl-health", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        if self._server is not None:
            self._server.stop()
        if self._file is not None:
            self._file.remove()

    def _run(self) -> None:
        while True:
            try:
                self._check()
            except Exception as error:  # noqa: BLE001 - the worker works without it; the file grows old, which shows
                log.error("checking the worker's health failed error=%s", type(error).__name__)
            if self._over.wait(CHECK_SECONDS):
                return

    def _check(self) -> None:
        found: HealthCheck = self._source.check()
        if found.state != "stopped":
            self._edges["live"].report(found.live)
            # A worker that is being stopped reports that itself.
            if found.state == "running":
                self._edges["ready"].report(found.ready)
        if self._file is not None:
            self._file.renew(found.live, found.ready, found.state)


class _Edge:
    """Logs one line when a verdict turns bad, and one when it is good again."""

    def __init__(self, name: str, level: int, now: Callable[[], float] = time.monotonic) -> None:
        self._name, self._level, self._now = name, level, now
        self._bad_since: float | None = None
        self._has_been_good = False

    def report(self, verdict: Verdict) -> None:
        # A worker that has just been started is not ready yet, and nothing is wrong with that.
        self._has_been_good = self._has_been_good or verdict.is_good
        if self._has_been_good and not verdict.is_good and self._bad_since is None:
            self._bad_since = self._now()
            log.log(self._level, "worker is not %s why=%r", self._name, "; ".join(verdict.why))
        elif verdict.is_good and self._bad_since is not None:
            seconds, self._bad_since = self._now() - self._bad_since, None
            log.info("worker is %s again seconds=%.1f", self._name, seconds)
