"""Heartbeats for every held lease, independent of user code and of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from pykcl.errors import FatalError, LeaseLostError, SetupError, TemporaryError
from pykcl.metrics.meter import Meter
from pykcl.planning.read_schedule import heartbeat_slack, heartbeats_due
from pykcl.runtime import Event, Runtime, Task
from pykcl.status import Activity
from pykcl.worker.failure_tracker import FailureTracker
from pykcl.worker.held_leases import HeldLease, HeldLeases
from pykcl.worker.measurements import RenewalRounds
from pykcl.worker.threads import ThreadHeartbeat

MAX_HELPERS = 8
_HELPER_POLL_SECONDS = 5.0
_ONE_MORE_AFTER = 0.025
"""Seconds for which heartbeats wait until one more helper is called."""
_AGAIN_AFTER = 1.0
_LEAST_REST, _LONGEST_REST = 0.01, 1.0
_ONE_HEARTBEAT = 10.0
"""Seconds one may take beyond a failover time: it waits for another write of its lease, then tries three times."""


class LeaseRenewer:
    """One thread that knows which heartbeat is due next, and up to eight helpers that send them.

    One helper sends all that are due, one after another, which costs least; while some still wait, one more is called
    every few milliseconds, so that one slow answer never delays another lease.
    """

    def __init__(
        self,
        held: HeldLeases,
        runtime: Runtime,
        trouble: FailureTracker,
        *,
        name: str,
        on_fatal: Callable[[Exception], None],
        rounds: RenewalRounds | None = None,
    ) -> None:
        self._held = held
        self._runtime = runtime
        self._name = name
        self._on_fatal = on_fatal
        self._trouble = trouble
        self._rounds = rounds or RenewalRounds(Meter(runtime), runtime, 1.0)
        self._stop = runtime.event()
        self._lock = runtime.lock()
        self._queue: list[HeldLease] = []
        self._under_way: set[HeldLease] = set()
        # One for each helper, which waits for it; and those of the helpers with nothing to do, the last one last.
        self._calls: list[Event] = []
        self._resting: list[Event] = []
        self._tasks: list[Task] = []
        self.pulses: list[ThreadHeartbeat] = []
        # When one that failed is tried again, in monotonic seconds.
        self._again_at: dict[HeldLease, float] = {}
        self._again_after = min(_AGAIN_AFTER, self._rounds.seconds / 5)
        self._give = heartbeat_slack(self._rounds.seconds)

    def start(self) -> None:
        self._spawn(f"{self._name}-renewer", self._run, patience=0.0)

    def stop(self) -> None:
        """Ask all threads to end. Heartbeats cease; leases still held expire for everyone after their deadline."""
        with self._lock:
            # Under the lock: a helper that finds the queue empty either clears its call before this, and is woken, or
            # sees that it must not. 1) It sees no stop; 2) both are set; 3) it clears its call, and sleeps on.
            self._stop.set()
            self._held.gate.heartbeats_due = 0
            for call in self._calls:
                call.set()
        self._held.changed.set()

    @property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self._tasks)

    def _spawn(self, name: str, body: Callable[[ThreadHeartbeat], None], *, patience: float) -> None:
        pulse = ThreadHeartbeat(name, self._runtime, patience=patience)
        self._tasks.append(pulse.spawn(partial(body, pulse), self._on_fatal))
        self.pulses.append(pulse)

    def _run(self, pulse: ThreadHeartbeat) -> None:
        while True:
            pulse.beat()
            # Cleared before the check: what is added or asked for after it sets it again and is not overslept.
            self._held.changed.clear()
            if self._stop.is_set():
                return
            pause = self._dispatch()
            if self._queue and not self._calls:
                self._send_alone(pulse)
            pulse.rest(pause)
            due = self._runtime.monotonic() + pause
            self._held.changed.wait(pause)
            self._check_lateness(self._runtime.monotonic() - due)

    def _check_lateness(self, late: float) -> None:
        """late: seconds by which this thread went on later than it meant to; negative where it was woken before."""
        if late < self._rounds.seconds / 2 or not len(self._held):
            self._trouble.worked(Activity.SENDING_HEARTBEATS)
            return
        why = TemporaryError(
            f"The thread that sends heartbeats could not run for {late:.1f} s, more than half the time from one "
            "heartbeat to the next: native code kept the interpreter to itself (the GIL), or the machine stood still "
            "or has too few cores. Leases without heartbeats go to other workers."
        )
        self._trouble.failed(Activity.SENDING_HEARTBEATS, why.about("E11"))

    def _dispatch(self) -> float:
        """Queue every heartbeat that is due, and see to it that somebody sends it; return the seconds to rest."""
        all_held = self._held.all()
        self._rounds.measure_if_over(all_held)
        now = self._runtime.monotonic()
        with self._lock:
            waiting = self._under_way.union(self._queue)
            # One that failed is still due: it is tried again, and not at once.
            again_at = self._again_at = {held: at for held, at in self._again_at.items() if at > now}
        there = [held for held in all_held if held not in waiting and not held.is_over]
        left = {held: held.next_heartbeat(again_at.get(held, now)) - now for held in there}
        due, soonest = heartbeats_due(left, self._give)
        if self._enqueue(due):
            soonest = _ONE_MORE_AFTER
        return min(max(soonest, _LEAST_REST), _LONGEST_REST)

    def _enqueue(self, due: Iterable[HeldLease]) -> bool:
        """Enqueue the leases and call one helper if there is anything to send.

        Return whether one more could be called.
        """
        with self._lock:
            # Under the lock, with the helpers: 1) this thread sees no stop; 2) the stop comes, and its caller waits for
            # the threads that there are; 3) a helper is started that nobody waits for.
            if self._stop.is_set():
                return False
            self._queue.extend(due)
            self._held.gate.heartbeats_due = len(self._queue)
            if not self._queue:
                return False
            most = min(MAX_HELPERS, len(self._held))
            if self._resting:
                self._resting.pop().set()
            elif len(self._calls) < most:
                call = self._runtime.event()
                name = f"{self._name}-renewer-{len(self._calls) + 1}"
                try:
                    self._spawn(name, partial(self._help, call), patience=_ONE_HEARTBEAT)
                except TemporaryError:
                    # The program has ended, say: those that are there send all.
                    return False
                self._calls.append(call)
            return bool(self._resting) or len(self._calls) < most

    def _send_alone(self, pulse: ThreadHeartbeat) -> None:
        """Send what is due in this thread: there is no helper, and none to be had."""
        while not self._stop.is_set() and (held := self._next()) is not None:
            pulse.beat()
            self._send(held)

    def _help(self, call: Event, pulse: ThreadHeartbeat) -> None:
        while not self._stop.is_set():
            pulse.beat()
            held = self._next(call)
            if held is None:
                pulse.rest(_HELPER_POLL_SECONDS)
                call.wait(_HELPER_POLL_SECONDS)
                continue
            self._send(held)

    def _send(self, held: HeldLease) -> None:
        try:
            self._beat(held)
        finally:
            with self._lock:
                self._under_way.discard(held)

    def _next(self, call: Event | None = None) -> HeldLease | None:
        """Take a lease from the queue; without one, note that the helper of that call rests."""
        with self._lock:
            if call in self._resting:
                self._resting.remove(call)  # it was not called, but checks from time to time
            if self._queue:
                held = self._queue.pop(0)
                self._held.gate.heartbeats_due = len(self._queue)
                self._under_way.add(held)
                return held
            if call is not None and not self._stop.is_set():
                call.clear()
                self._resting.append(call)
            return None

    def _beat(self, held: HeldLease) -> None:
        began = self._rounds.meter.clock()
        try:
            sent = held.renew_if_due(self._give)
        except LeaseLostError:
            # Its lease worker has been woken and calls the processor's lease_lost.
            self._rounds.beat(began, worked=not held.ran_out)
            return
        except FatalError as error:
            self._not_again_at_once(held)
            self._on_fatal(error)
        except (TemporaryError, SetupError) as error:
            # A set-up error too: these leases were taken with the same permissions a moment ago.
            self._not_again_at_once(held)
            self._rounds.beat(began, worked=False)
            self._trouble.failed(Activity.RENEWING_LEASES, error)
        else:
            if sent:
                self._rounds.beat(began, worked=True)
            self._trouble.worked(Activity.RENEWING_LEASES)

    def _not_again_at_once(self, held: HeldLease) -> None:
        with self._lock:
            self._again_at[held] = self._runtime.monotonic() + self._again_after
