"""One of the processes of `--processes`, and its end of the socket to its parent.

Each line is a JSON object. The parent sends {"stop": number of stop requests so far} and {"ask": "check"}, "report" or
"metrics"; the process sends {"worker": true} once it has a worker, {"answer": what was asked, "value": …}, {"work":
what its command says of its work}, and {"over": true} if its worker has ended because every shard was read as far as
`until`. The end of the file means that the parent has ended, for whatever reason.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pykcl.cli.errors import ExitCode

if TYPE_CHECKING:
    from pykcl.worker.worker import Worker

log = logging.getLogger("pykcl.processes")

ORPHAN_SECONDS = 30.0
"""How long beyond the grace of its worker a process may live without its parent."""
_READ_BYTES = 4096


class Member:
    """The end of one process.

    number: from 1 on. worker_id: of its worker. parent: the socket.
    """

    def __init__(self, number: int, worker_id: str, parent: socket.socket) -> None:
        self.number, self.worker_id = number, worker_id
        self._parent = parent
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._worker: Worker | None = None
        self._asked = 0

    def start(self) -> None:
        """Listen to the parent from here on."""
        threading.Thread(target=self._listen, name="pykcl-parent", daemon=True).start()

    def watch(self, worker: Worker) -> Worker:
        """Report this worker from here on, and pass on the stop requests that came before it."""
        with self._lock:
            self._worker = worker
            worker._signals.ask(self._asked)
        self._send({"worker": True})
        return worker

    def worker_has_ended(self) -> None:
        """Say to the parent if a new process would find nothing to do, once the worker has ended without an error."""
        from pykcl.events import StopReason

        if self._worker is not None and self._worker._stop_reason is StopReason.RUN_OVER:
            self._send({"over": True})

    def report_work(self, work: Mapping[str, Any]) -> None:
        """Send the parent what the command has done so far, as JSON can write it."""
        self._send({"work": work})

    def _listen(self) -> None:
        # Not over makefile(): what Python closes in its last moments must be nothing that this thread waits in.
        unread = b""
        while more := self._more():
            *lines, unread = (unread + more).split(b"\n")
            for line in lines:
                self._handle(json.loads(line))
        self._end_as_orphan()

    def _more(self) -> bytes:
        try:
            return self._parent.recv(_READ_BYTES)
        except OSError as error:
            log.debug("cannot receive from the parent error=%s", type(error).__name__)
            return b""

    def _handle(self, sent: Mapping[str, Any]) -> None:
        if "stop" in sent:
            self._stop(int(sent["stop"]))
        elif "ask" in sent:
            self._send({"answer": sent["ask"], "value": self._answer(sent["ask"])})

    def _stop(self, times: int) -> None:
        with self._lock:
            self._asked = max(self._asked, times)
            worker = self._worker
            if worker is not None:
                worker._signals.ask(self._asked)
        if worker is None:
            # Nothing is held yet: as a signal would end this process now.
            os.kill(os.getpid(), signal.SIGTERM)

    def _answer(self, what: str) -> Any:
        from pykcl.health.probes import WorkerHealth

        source = WorkerHealth(lambda: self._worker)
        try:
            if what == "check":
                found = source.check()
                return {"live": found.live.why, "ready": found.ready.why, "state": found.state}
            if what == "report":
                return source.report()
            page = source.exposition()
            return None if page is None else {"text": page[0].decode(), "type": page[1]}
        except Exception as error:  # noqa: BLE001 - the worker works without it; no answer tells the parent enough
            log.error("answering the parent failed what=%s error=%s", what, type(error).__name__)
            return None

    def _send(self, what: Mapping[str, Any]) -> None:
        with self._sending:
            try:
                self._parent.sendall(json.dumps(what).encode("ascii") + b"\n")
            except OSError as error:
                # It is gone: the thread that listens to it notices, too.
                log.debug("cannot send to the parent error=%s", type(error).__name__)

    def _end_as_orphan(self) -> None:
        """Drain without a parent, and be gone some time after the grace even where the process will not end."""
        worker = self._worker
        log.warning("the parent process is gone: stopping")
        self._stop(1)
        grace = worker.config.shutdown_grace if worker is not None else 0.0
        threading.Event().wait(grace + ORPHAN_SECONDS)
        os._exit(ExitCode.CRASHED)


def main() -> None:
    """Run the verb as a member of its parent's processes."""
    number, worker_id, file = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    del sys.argv[1:4]
    # A program started by the application must not keep the parent waiting for the end of this one's file.
    os.set_inheritable(file, False)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C before there is a worker ends it at once, as SIGTERM does, and without K tracebacks.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    member = Member(number, worker_id, socket.socket(fileno=file))
    member.start()

    from pykcl.cli.main import main as pykcl

    pykcl(args=sys.argv[1:], prog_name="pykcl", obj=member)


if __name__ == "__main__":
    # As a module of the package: `isinstance(…, Member)` there must mean the class of the member made here.
    from pykcl.cli.supervised import main as canonical

    canonical()
