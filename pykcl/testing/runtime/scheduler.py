"""Real threads of which exactly one runs at a time, and a clock that jumps when all wait, under one seed.

Every wait, lock, spawn and every call to a simulated service is a switch point at which the seed decides who goes on.
The unmodified worker runs in it: what takes ten seconds of its time takes a millisecond of ours, and the same seed
takes the same course.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, ClassVar, ParamSpec, TypeVar

from pykcl.runtime import Coroutines, EndsThread, Task, stack_of
from pykcl.testing.runtime.determinism import DeterminismGuard, RuntimeBypassed


class Deadlock(AssertionError):
    """Every thread waits for something that no thread and no timer will bring. The message names them."""


class SimulationOver(EndsThread):
    """Raised inside leftover threads to end them."""


class ThreadStruck(EndsThread):
    """Kills a thread of the simulation: no `except Exception` stops it."""


class SimTask:
    """A thread of the simulation; a `runtime.Task`."""

    def __init__(self, simulation: Simulation, name: str, group: str) -> None:
        self._simulation = simulation
        self.name = name
        self.group = group
        self.label = f"{group}/{name}"
        self.thread: threading.Thread | None = None
        self.baton = threading.Lock()
        self.baton.acquire()
        self.finished = False
        self.error: BaseException | None = None
        self.struck = False
        # Each wait has a number, so that a timer or a waker that comes too late knows its wait is over.
        self.wait_number = 0
        self.is_waiting = False
        self.joiners: list[tuple[SimTask, int]] = []

    def is_alive(self) -> bool:
        return not self.finished

    def join(self, timeout: float | None = None) -> None:
        if self.finished:
            self._simulation.switch()
        else:
            self._simulation.wait(self.joiners, timeout)


class SimEvent:
    """A `runtime.Event`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._set = False
        self._waiters: list[tuple[SimTask, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        if self._waiters:
            self._simulation.wake(self._waiters)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            self._simulation.switch()
            return True
        # As threading.Event: who was woken by set() returns True even if the event is cleared before it runs.
        return self._simulation.wait(self._waiters, timeout) or self._set


class SimLock:
    """A `runtime.Lock`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._taken = False
        self._waiters: list[tuple[SimTask, int]] = []

    def __enter__(self) -> None:
        self._simulation.maybe_switch()
        while self._taken:
            self._simulation.wait(self._waiters, None)
        self._taken = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken = False
        if self._waiters:
            self._simulation.wake(self._waiters)


EPOCH_MILLIS = 1_790_000_000_000
"""What the wall clocks show at simulated time 0, epoch milliseconds."""


class GroupClock:
    """Clocks of a worker relative to simulated time.

    rate: seconds of its monotonic clock per simulated second. wall_offset: milliseconds its wall clock is wrong by.
    """

    def __init__(self, rate: float = 1.0) -> None:
        self._rate = rate
        self._since = 0.0
        self._shown = 0.0
        self.wall_offset = 0

    @property
    def rate(self) -> float:
        return self._rate

    def run_at(self, rate: float, now: float) -> None:
        """Run at this rate from now on; the time that the clock shows does not jump."""
        self._shown, self._since, self._rate = self.monotonic(now), now, rate

    def monotonic(self, now: float) -> float:
        return self._shown + (now - self._since) * self._rate

    def wall_millis(self, now: float) -> int:
        return EPOCH_MILLIS + int(now * 1000) + self.wall_offset

    def real_seconds(self, seconds: float) -> float:
        """Return the simulated time that passes while this clock counts `seconds`."""
        return seconds / self._rate


class SimulatedRuntime:
    """A `runtime.Runtime` for one worker of a simulation."""

    def __init__(self, simulation: Simulation, group: str, clock: GroupClock, seed: str) -> None:
        self._simulation = simulation
        self._group = group
        self._clock = clock
        # Of its own, so that what one worker draws does not change what another is dealt.
        self._random = random.Random(seed)  # noqa: S311 - reproducible
        self._coroutines = Coroutines(self.lock(), self._new_loop)

    def monotonic(self) -> float:
        return self._clock.monotonic(self._simulation.now)

    def utcnow_millis(self) -> int:
        return self._clock.wall_millis(self._simulation.now)

    def lock(self) -> SimLock:
        return SimLock(self._simulation)

    def event(self) -> SimEvent:
        return SimEvent(self._simulation)

    def signal_event(self) -> SimEvent:
        return self.event()

    def spawn(self, name: str, body: Callable[[], None]) -> SimTask:
        return self._simulation.spawn(name, self._group, body)

    def coroutines(self) -> Coroutines:
        return self._coroutines

    def _new_loop(self) -> Any:
        # asyncio is slow to import, and few handlers are async.
        from pykcl.testing.runtime.event_loop import SteppingLoop

        return SteppingLoop(self)

    def is_current(self, task: Task) -> bool:
        return self._simulation.is_current(task)

    def stack(self, task: Task, *, below: CodeType | None = None) -> tuple[str, ...]:
        return stack_of(task.thread if isinstance(task, SimTask) else None, below)

    def random(self) -> random.Random:
        return self._random

    def token(self) -> str:
        return f"{self._group}-{self._random.getrandbits(32):08x}"


LAST_LINES = 60


class Trace:
    """A hash that differs between courses, and lines that show the events before something broke."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self._pending: list[str] = []
        self._lines: deque[str] = deque(maxlen=LAST_LINES)

    def step(self, name: str, now: float) -> None:
        """One decision of the scheduler: who goes on, and when. For the hash only."""
        self._pending.append(f"{name}@{now!r}")
        if len(self._pending) > 500:
            self._fold()

    def add(self, now: float, text: str) -> None:
        """Something that happened, at simulated time `now`."""
        self._pending.append(text)
        self._lines.append(f"{now:10.3f}  {text}")

    def remark(self, now: float, text: str) -> None:
        """Add a line for people about a cause from outside, such as a fault; its effects have lines of their own."""
        self._lines.append(f"{now:10.3f}  {text}")

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits; equal for equal courses."""
        self._fold()
        return self._hash.hexdigest()

    @property
    def last_lines(self) -> list[str]:
        return list(self._lines)

    def _fold(self) -> None:
        self._hash.update("\n".join(self._pending).encode())
        self._pending.clear()


_POLL_SECONDS = 0.05
_LOCK_SWITCHES = (0.02, 0.1, 0.5)
_END_SECONDS = 10.0
_SHORTEST_WAIT = 1e-6
_MOST_SWITCHES_AT_ONCE = 20_000

Waiters = list[tuple[SimTask, int]]
P = ParamSpec("P")
T = TypeVar("T")


class Simulation:
    """The scheduler. The thread that makes it is its first task; `runtime(group)` gives a Runtime to one worker.

    Use as a context manager: leaving it ends every leftover thread and raises what a thread died of. Inside it real
    time, threads and chance refuse to work for pykcl's own modules other than `runtime`: see `determinism`.
    on_switch: called after every switch, by whichever thread goes on; it must not wait.
    running: simulations that were entered and not left, the innermost last; for the watch over user code.
    """

    running: ClassVar[list[Simulation]] = []

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.now = 1000.0
        self.rng = random.Random(seed)  # noqa: S311 - reproducible choice
        self.trace = Trace()
        self.switches = 0
        self.on_switch: Callable[[], None] | None = None
        # How often a free lock lets another thread go first: often finds races, seldom goes far.
        self._lock_switches = self.rng.choice(_LOCK_SWITCHES)
        self._dying = False
        self._dead_groups: set[str] = set()
        self._frozen: dict[str, list[SimTask]] = {}
        self._thaws_at: dict[str, float] = {}
        self._deadlock: Deadlock | None = None
        self._insisted_on: Exception | None = None
        self._failed = False
        self._runtimes = 0
        self._stuck_since = 0
        self._clocks: dict[str, GroupClock] = {}
        self._main = SimTask(self, "main", "main")
        self._current = self._main
        self._tasks: list[SimTask] = [self._main]
        self._groups: dict[str, list[SimTask]] = {"main": [self._main]}
        self._ready: list[SimTask] = []
        self._timers: list[tuple[float, int, SimTask | str, int]] = []
        self._timers_set = 0
        self._guard = DeterminismGuard()

    # -- for tests ---------------------------------------------------------------------------

    def runtime(self, group: str) -> SimulatedRuntime:
        """A Runtime whose threads belong to `group`, so that they can be killed together."""
        self._runtimes += 1
        return SimulatedRuntime(self, group, self.clock(group), f"{self.seed}/{group}/{self._runtimes}")

    def clock(self, group: str) -> GroupClock:
        """The clocks that this group's threads see."""
        return self._clocks.setdefault(group, GroupClock())

    @property
    def current_group(self) -> str:
        """The group of the thread that is running."""
        return self._current.group

    def unfinished(self, group: str) -> list[SimTask]:
        """Its threads that have not ended, in the order of their start."""
        alive = [task for task in self._groups.get(group, ()) if not task.finished]
        self._groups[group] = alive
        return alive.copy()

    def kill(self, group: str) -> None:
        """The threads of this group never run again, as after kill -9."""
        self._dead_groups.add(group)
        self._frozen.pop(group, None)
        self._ready = [task for task in self._ready if task.group != group]

    def freeze(self, group: str, seconds: float) -> None:
        """Freeze the threads of this group for so long, as kill -STOP does; their clocks go on."""
        held = self._frozen.setdefault(group, [])
        held += [task for task in self._ready if task.group == group]
        self._ready = [task for task in self._ready if task.group != group]
        self._thaws_at[group] = self.now + seconds
        self._set_timer(self.now + seconds, group, 0)

    def is_frozen(self, group: str) -> bool:
        return group in self._frozen

    def strike(self, task: SimTask) -> None:
        """The thread raises ThreadStruck where it stands, as soon as it runs again; what it waits for is cut short."""
        task.struck = True
        if task.is_waiting:
            self._make_ready(task)

    def is_current(self, task: Task) -> bool:
        return task is self._current

    @property
    def running_thread(self) -> threading.Thread | None:
        """The thread that runs now; None for the first one."""
        return self._current.thread

    def runs_this_thread(self) -> bool:
        """Return whether the calling thread is the one of the simulation that runs now; False in its first one."""
        return self._current.thread is threading.current_thread()

    def sleep(self, seconds: float) -> None:
        """Let the others run for `seconds` of simulated time."""
        self.wait([], seconds)

    def run_until(self, condition: Callable[[], bool], timeout: float, what: str = "the condition") -> None:
        """Let the others run until `condition()`; AssertionError when `timeout` simulated seconds did not bring it."""
        deadline = self.now + timeout
        while not condition():
            if self.now >= deadline:
                raise AssertionError(f"{what} did not come within {timeout:g} simulated seconds")
            # Evaluated by this thread alone, between steps: a condition may itself call what switches threads.
            self.sleep(min(_POLL_SECONDS, deadline - self.now))

    def insist(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, whose exceptions end the simulation even if they are caught.

        For checkers that run inside a worker's calls: a worker that continues after the error would hide it.
        """

        def insisting(*args: P.args, **options: P.kwargs) -> T:
            try:
                return function(*args, **options)
            except Exception as error:
                self._insisted_on = self._insisted_on or error
                raise

        return insisting

    def fail(self, error: Exception) -> None:
        """End the simulation with this error, even if it is caught on the way. The first error counts.

        No other thread goes on: user code that has waited for seconds would do so again.
        """
        self._insisted_on = self._insisted_on or error
        self._failed = True

    def abandon(self, error: Exception, stuck: int | None = None) -> None:
        """End the simulation from outside of it, while the thread with the ident `stuck` does not come back.

        The first thread raises the error, without waiting for the stuck one, which ends at its next switch.
        """
        self.fail(error)
        self._dying = True
        for task in self._tasks:
            if task.thread is not None and task.thread.ident == stuck:
                task.finished = True
        self._main.baton.release()

    def spawn(self, name: str, group: str, body: Callable[[], None]) -> SimTask:
        task = SimTask(self, name, group)
        self._tasks.append(task)
        self._groups.setdefault(group, []).append(task)
        task.thread = threading.Thread(target=self._live, args=(task, body), name=name, daemon=True)
        task.thread.start()
        self._make_ready(task)
        self.switch()
        return task

    # -- for tasks, events and locks ---------------------------------------------------------------------------

    def switch(self) -> None:
        """A point where another thread may go on first."""
        self._make_ready(self._current)
        self._pass_on(self._current)

    def maybe_switch(self) -> None:
        """A switch point so frequent that the seed mostly lets the same thread go on."""
        if self.rng.random() < self._lock_switches:
            self.switch()

    def wait(self, waiters: Waiters, timeout: float | None) -> bool:
        """Wait until somebody wakes `waiters` (True) or for `timeout` seconds of the thread's own clock (False)."""
        me = self._current
        me.wait_number += 1
        number = me.wait_number
        me.is_waiting = True
        entry = (me, number)
        waiters.append(entry)
        if timeout is not None:
            # A wait for less than a clock can measure would bring its waiter back at the same moment, for ever.
            seconds = max(_SHORTEST_WAIT, timeout) if timeout > 0 else 0.0
            clock = self._clocks.get(me.group)
            self._set_timer(self.now + (clock.real_seconds(seconds) if clock else seconds), me, number)
        self._pass_on(me)
        woken = entry not in waiters
        if not woken:
            waiters.remove(entry)
        return woken

    def wake(self, waiters: Waiters) -> None:
        """Wake the tasks that wait in this list."""
        woken, waiters[:] = waiters[:], []
        for task, number in woken:
            if task.is_waiting and task.wait_number == number:
                self._make_ready(task)

    # -- the baton ---------------------------------------------------------------------------------------------

    def _live(self, task: SimTask, body: Callable[[], None]) -> None:
        task.baton.acquire()
        try:
            if not self._dying:
                self._go_on(task)
                body()
        except (SimulationOver, ThreadStruck):
            task.error = None
        except BaseException as error:  # noqa: BLE001 - handed to the test when the simulation ends
            task.error = error
        task.finished = True
        if not self._dying:
            self.wake(task.joiners)
            self._choose().baton.release()

    def _pass_on(self, me: SimTask) -> None:
        if self._dying:
            # Clean-up code of a thread that is being ended: it must not wait for anybody any more.
            raise SimulationOver
        chosen = self._choose()
        if chosen is not me:
            chosen.baton.release()
            me.baton.acquire()
        self._go_on(me)

    def _go_on(self, me: SimTask) -> None:
        if self._dying and me is not self._main:
            raise SimulationOver
        if me is self._main and (self._deadlock or self._insisted_on) is not None:
            raise self._deadlock or self._insisted_on  # type: ignore[misc]
        if me.struck:
            me.struck = False
            raise ThreadStruck
        if self.on_switch is not None:
            try:
                self.on_switch()
            except Exception as error:
                self._insisted_on = self._insisted_on or error
                raise

    def _choose(self) -> SimTask:
        self.switches += 1
        if self._failed:
            self._current = self._main
            return self._main
        if self.switches - self._stuck_since > _MOST_SWITCHES_AT_ONCE and self._deadlock is None:
            self._deadlock = Deadlock(
                f"time stands still at {self.now:.3f}: {self._current.label} and others spin"
            )
            self._ready = [self._main]
        while not self._ready:
            if self._timers:
                self._fire_next_timer()
            else:
                # Reported by the first thread, wherever it stands: what it runs is the test.
                self._deadlock = Deadlock(f"no task can continue: {self._waiting()}")
                self._ready.append(self._main)
        index = int(self.rng.random() * len(self._ready))
        chosen = self._ready[index]
        self._ready[index] = self._ready[-1]
        self._ready.pop()
        self._current = chosen
        self.trace.step(chosen.label, self.now)
        return chosen

    def _make_ready(self, task: SimTask) -> None:
        task.is_waiting = False
        if task.group in self._dead_groups:
            return
        # Who stands frozen is ready too, but for later.
        self._frozen.get(task.group, self._ready).append(task)

    def _set_timer(self, at: float, what: SimTask | str, number: int) -> None:
        self._timers_set += 1
        heapq.heappush(self._timers, (at, self._timers_set, what, number))

    def _fire_next_timer(self) -> None:
        """Move the clock to the next timer, and let go on whom it concerns. All timers of one moment fire together."""
        at = self._timers[0][0]
        if at > self.now:
            self.now, self._stuck_since = at, self.switches
        while self._timers and self._timers[0][0] <= at:
            _, _, what, number = heapq.heappop(self._timers)
            if isinstance(what, str):
                if self._thaws_at[what] <= at:
                    self._ready += self._frozen.pop(what, [])
            elif what.is_waiting and what.wait_number == number:
                self._make_ready(what)

    def _waiting(self) -> str:
        return ", ".join(
            task.label for task in self._tasks if not task.finished and task.group not in self._dead_groups
        )

    # -- the end -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Simulation:
        self._guard.close()
        Simulation.running.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guard.open()
        Simulation.running.remove(self)
        self._dying = True
        for task in self._tasks:
            if task.thread is not None and not task.finished:
                task.baton.release()
                task.thread.join(_END_SECONDS)
        errors = [task.error for task in self._tasks if task.error is not None]
        self._tasks = [self._main]
        if self._guard.crossed and not isinstance(error, RuntimeBypassed):
            # No seed reproduces errors that follow a bypass, or that a handler made of it.
            raise self._guard.crossed[0]
        if self._insisted_on is not None and error is not self._insisted_on:
            raise self._insisted_on
        if errors and error is None:
            raise errors[0]
