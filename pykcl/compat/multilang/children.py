"""All child processes of a daemon, served by one selector thread: their pipes, exits and timeouts."""

from __future__ import annotations

import heapq
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count

from pykcl.compat.multilang.child import (
    UNENDED_SECONDS,
    Child,
    ChildEnded,
    ChildFailed,
    ChildGone,
    ChildStarted,
)
from pykcl.compat.multilang.command import why_not_started
from pykcl.event_dispatch import EventFan
from pykcl.interfaces import Events

log = logging.getLogger("pykcl.multilang")

SUSPICION_SECONDS = 1.0
"""Time to wait for the exit code of a child that closed a pipe: it is ending, as a rule, and the code says more."""
POLL_SECONDS = 0.5
"""Interval of polling for the exit of children where the operating system does not report it (no pidfd)."""
CLOSED_INPUT = selectors.EVENT_READ if sys.platform == "linux" else 0
"""The writing end of a pipe is never read; on Linux it is "readable" when the other end has been closed. Elsewhere the
next write reports that."""
STUCK_SECONDS = 5.0
"""Time that a process may take to exit after SIGKILL."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a child has to exit: after the end of its input, and after SIGTERM. SIGKILL follows."""

    after_end_of_input: float = 10.0
    after_sigterm: float = 5.0

    @classmethod
    def within(cls, grace: float) -> Patience:
        """Return one for a daemon that has `grace` seconds to stop, most of them for the running batch."""
        return cls(min(10.0, 0.4 * grace), min(5.0, 0.2 * grace))


AT_ONCE = Patience(0.0, 2.0)
"""For a child that hangs or violates the protocol: SIGTERM now."""
_NONE = Patience(0.0, 0.0)


class Children:
    """Starts a process of `command` per lease, each in a session and process group of its own, and ends them.

    started: number of children. failures: number of failed children by shard. patience: for children whose lease was
    lost or has ended; patience_at_stop: for those that end with the daemon. is_closing: `close` was called.
    has_worked: a child has answered. Use as a context manager: leaving it ends the children that still run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        patience: Patience | None = None,
        patience_at_stop: Patience | None = None,
        events: Events | None = None,
    ) -> None:
        self.command = tuple(command)
        self.failures: Counter[str] = Counter()
        self.started = 0
        self._patience = patience or Patience()
        self.patience_at_stop = patience_at_stop or self._patience
        self._events = events or EventFan()
        self._loop = _Loop(self._events)
        self.is_closing = self._is_in_a_hurry = self.has_worked = False
        self._left: tuple[Child, ...] = ()
        self._starting = threading.Lock()
        self._lock = threading.Lock()

    def start(self, shard: str) -> Child:
        """Raises ChildGone if the process cannot be started."""
        # 1) A start finds the daemon running; 2) the daemon ends all its children; 3) the process starts, and nothing
        # would serve or end it. So `close` waits for starts in progress.
        with self._starting:
            if self.is_closing:
                raise ChildGone("is not started any more: the daemon is stopping")
            return self._begin(shard)

    def _begin(self, shard: str) -> Child:
        if self._loop.has_died:
            raise ChildGone(
                "could not be served: a bug in pykcl, see the first error in the log. Restart the daemon"
            )
        try:
            process = subprocess.Popen(  # noqa: S603 - running the user's program is the whole point
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ChildGone(f"could not be started: {why_not_started(self.command, error)}") from None
        child = Child(shard, process, self._loop.check, self._events.emit)
        try:
            self._loop.add(child)
        except RuntimeError as error:
            child.on_ended()
            raise ChildGone(f"cannot be served: {error}") from None
        self.started += 1
        self._events.emit(ChildStarted(shard=shard, pid=child.pid))
        return child

    def end(self, child: Child, patience: Patience | None = None) -> None:
        """End its input, wait, SIGTERM, wait, SIGKILL. Return when it has ended, however long that takes: another child
        for its shard must not run at the same time."""
        self._loop.end(child, patience or self._patience)
        while not child.wait_ended(POLL_SECONDS) and self._loop.is_serving:
            continue

    def failed(self, shard: str, child: Child | None, doing: str, why: str) -> None:
        """Count and report a failed child."""
        with self._lock:
            self.failures[shard] += 1
            failures = self.failures[shard]
        self._events.emit(
            ChildFailed(
                shard=shard,
                pid=child.pid if child else None,
                doing=doing,
                why=why,
                failures=failures,
            )
        )

    def close(self) -> None:
        """End all children at once, and the thread. No child can be started afterwards."""
        self.is_closing = True
        with self._starting:
            self._left = self._loop.children
        try:
            self._end_all(_NONE if self._is_in_a_hurry else Patience(0.0, 1.0))
        except KeyboardInterrupt:
            # A child that outlives the daemon would go on with a shard that another worker takes.
            self._end_all(_NONE)
            raise
        finally:
            self._loop.stop()

    def hurry(self) -> None:
        """Kill the children that `close` is ending. For signal handlers: takes no lock that their thread may hold."""
        self._is_in_a_hurry = True
        for child in self._left:
            self._loop.end(child, _NONE)

    def _end_all(self, patience: Patience) -> None:
        for child in self._left:
            self._loop.end(child, patience)
        for child in self._left:
            while not child.wait_ended(POLL_SECONDS) and self._loop.is_serving and not child.is_stuck:
                continue

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Loop:
    """The selector thread. Other threads hand it work; only this thread uses descriptors and sends signals.

    has_died: a bug ended the thread, and all children with it. is_serving: False after the thread has ended.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._selector = selectors.DefaultSelector()
        self._ring, self._bell = socket.socketpair()
        self._ring.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, lambda _: self._drain_bell())
        self._work: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._watched: set[Child] = set()
        self._stdin_events: dict[Child, int] = {}
        self._suspected: set[Child] = set()
        self._ends: dict[Child, int] = {}
        self._unheard: set[Child] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.has_died = False
        self.is_serving = True

    # -- by other threads --------------------------------------------------------------------------------------

    @property
    def children(self) -> tuple[Child, ...]:
        with self._lock:
            return tuple(self._watched)

    def add(self, child: Child) -> None:
        """Raises RuntimeError if the thread cannot be started."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="pykcl-children", daemon=True)
                thread.start()
                self._thread = thread
            self._watched.add(child)
        self._do(partial(self._watch, child))

    def check(self, child: Child) -> None:
        self._do(partial(self._check, child))

    def end(self, child: Child, patience: Patience) -> None:
        self._do(partial(self._start_end, child, patience))

    def stop(self) -> None:
        self._stopping = True
        self._do(lambda: None)
        if self._thread is None:
            self._close()
        else:
            self._thread.join(STUCK_SECONDS)

    def _do(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        # A full ring wakes the thread anyway.
        with suppress(BlockingIOError, OSError):
            self._ring.send(b"!")

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except Exception as error:
            # No thread serves the children any more: notify those who wait for one, and let no child work on alone.
            self.has_died = True
            log.exception("the thread that serves the children died")
            for child in self.children:
                child.on_gone(f"cannot be served any more ({type(error).__name__} in pykcl)")
                child.on_ended()
            raise
        finally:
            self._close()

    def _close(self) -> None:
        self.is_serving = False
        self._selector.close()
        self._ring.close()
        self._bell.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._until_next_timer()):
            key.data(events)
        while self._work:
            self._work.popleft()()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def _until_next_timer(self) -> float | None:
        if self._work:
            return 0.0
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), action))

    def _drain_bell(self) -> None:
        with suppress(BlockingIOError):
            while self._bell.recv(4096):
                continue

    # -- one child ---------------------------------------------------------------------------------------------

    def _watch(self, child: Child) -> None:
        _, out, err = child.descriptors
        self._selector.register(out, selectors.EVENT_READ, partial(self._on_output, child, out))
        self._selector.register(err, selectors.EVENT_READ, partial(self._on_complaint, child, err))
        try:
            end = os.pidfd_open(child.pid)
        except (AttributeError, OSError):
            self._unheard.add(child)
            self._later(POLL_SECONDS, partial(self._poll_end, child))
        else:
            self._ends[child] = end
            self._selector.register(end, selectors.EVENT_READ, lambda _: self._on_ended(child))
        self._check(child)

    def _check(self, child: Child) -> None:
        """Called after the thread of the lease has queued a write, or a write has failed."""
        if child not in self._watched:
            return
        if child.closed_its_stdin:
            self._suspect(child, "closed its standard input")
            self._listen_to_stdin(child, 0)
        elif child.descriptors[0] >= 0:
            wanted = selectors.EVENT_WRITE if child.wants_to_write else 0
            self._listen_to_stdin(child, wanted | CLOSED_INPUT)

    def _listen_to_stdin(self, child: Child, wanted: int) -> None:
        stdin, before = child.descriptors[0], self._stdin_events.pop(child, 0)
        if wanted:
            self._stdin_events[child] = wanted
        if wanted and before and wanted != before:
            self._selector.modify(stdin, wanted, partial(self._on_stdin, child))
        elif wanted and not before:
            self._selector.register(stdin, wanted, partial(self._on_stdin, child))
        elif before and not wanted:
            self._selector.unregister(stdin)

    def _on_stdin(self, child: Child, events: int) -> None:
        # It may have ended in this turn.
        if child not in self._watched:
            return
        if events & CLOSED_INPUT:
            child.on_closed_input()
        else:
            child.on_writable()
        self._check(child)

    def _on_output(self, child: Child, descriptor: int, _: int) -> None:
        if child in self._watched and not child.on_output():
            self._selector.unregister(descriptor)
            self._suspect(child, "closed its standard output")

    def _on_complaint(self, child: Child, descriptor: int, _: int) -> None:
        if child in self._watched and not child.on_complaint():
            self._selector.unregister(descriptor)
        if child.starts_an_unended_line():
            self._later(UNENDED_SECONDS, child.on_unended_line)

    def _suspect(self, child: Child, why: str) -> None:
        if child not in self._suspected:
            self._suspected.add(child)
            self._later(SUSPICION_SECONDS, partial(child.on_gone, why))

    def _poll_end(self, child: Child) -> None:
        if child not in self._unheard:
            return
        if child.process.poll() is None:
            self._later(POLL_SECONDS, partial(self._poll_end, child))
        else:
            self._on_ended(child)

    def _on_ended(self, child: Child) -> None:
        with self._lock:
            if child not in self._watched:
                return
            self._watched.discard(child)
        for descriptor in (*child.descriptors, self._ends.get(child, -1)):
            with suppress(KeyError, ValueError):
                self._selector.unregister(descriptor)
        if child in self._ends:
            os.close(self._ends.pop(child))
        self._stdin_events.pop(child, None)
        self._suspected.discard(child)
        self._unheard.discard(child)
        exit_code = child.on_ended()
        self._events.emit(ChildEnded(shard=child.shard, pid=child.pid, exit=exit_code, forced=child.forced))

    # -- ending ------------------------------------------------------------------------------------------------

    def _start_end(self, child: Child, patience: Patience) -> None:
        if child not in self._watched:
            return
        self._listen_to_stdin(child, 0)
        child.on_close_stdin()
        child.on_gone("is being ended")
        terminate = partial(self._force, child, signal.SIGTERM)
        self._later(patience.after_end_of_input, terminate)
        kill = partial(self._force, child, signal.SIGKILL)
        self._later(patience.after_end_of_input + patience.after_sigterm, kill)

    def _force(self, child: Child, number: signal.Signals) -> None:
        if child in self._watched:
            child.forced = number.name
            child.signal_group(number)
            if number is signal.SIGKILL:
                # From now, and not from the request to end: this thread may have been late.
                self._later(STUCK_SECONDS, partial(self._give_up, child))

    def _give_up(self, child: Child) -> None:
        if child in self._watched:
            child.is_stuck = True
            log.error("child does not exit after SIGKILL shard=%s pid=%d", child.shard, child.pid)
