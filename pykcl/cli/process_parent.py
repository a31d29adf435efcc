"""The parent of `--processes`: starts ordinary workers, starts again what crashed, passes on what asks them to stop.

It has no connection to AWS and runs no code of the application's. Its main thread alone starts, reads and ends
processes; the threads of its health endpoint only ask questions and wait for answers.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pykcl.cli.process_reports import merged_metrics, merged_report, named, report_of
from pykcl.cli.process_slot import Slot, exit_code_of, is_final
from pykcl.health.probes import Verdict
from pykcl.health.source import HealthCheck
from pykcl.worker.signals import StopSignals, woken_by_signals

log = logging.getLogger("pykcl.processes")

PATIENCE = 1.0
"""Seconds that a page waits for the processes; who has not answered by then is told of as silent."""
DEAD_AFTER = 30.0
"""Seconds of silence after which only a new process will help: three probes ten seconds apart would see no answer."""
_BUSY_POLL_MILLIS, _IDLE_POLL_MILLIS = 100, 2000
"""For how long it sleeps at most: while processes start and end, and else, when only news wake it."""
_WAKES_AT_ONCE = 4096
_KILLED_BY = 3
"""That many signals: the first drains, the second forces, and a process that is frozen hears neither."""
_KILLED_AFTER = 2.0
"""Seconds after that: one that is not frozen ends its children meanwhile, of which nobody else knows."""


class Parent:
    """arguments: of `pykcl`, the verb first. The worker of process N is `worker_id`-N, whenever it is started."""

    def __init__(self, count: int, worker_id: str, arguments: Sequence[str]) -> None:
        self._slots = [Slot(number, f"{worker_id}-{number}", arguments) for number in range(1, count + 1)]
        self.signals = StopSignals()
        # Around everything of the slots, and told when one of them may have answered.
        self._news = threading.Condition()
        self._ever_worked = False
        self._is_ending = False
        self._killed_at: float | None = None
        self._code = 0

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Until SIGTERM or SIGINT, or until a process ends that no new one could replace. Returns the exit code."""
        try:
            with self.signals.heard(), woken_by_signals() as woken:
                while not self._is_over():
                    self._tend()
                    self._hear(woken)
        finally:
            # Whatever ends this: the end of its file ends a process that is still there.
            with self._news:
                for slot in self._slots:
                    slot.close()
        return self._code

    def _is_over(self) -> bool:
        return self._must_stop() and all(slot.pid is None for slot in self._slots)

    def _must_stop(self) -> bool:
        return self._is_ending or self.signals.count > 0

    def _tend(self) -> None:
        with self._news:
            for slot in self._slots:
                code = slot.ended()
                if code is not None:
                    self._bury(slot, code)
                elif slot.pid is None and not self._must_stop() and slot.again_at <= time.monotonic():
                    self._start(slot)
            times = max(self.signals.count, int(self._is_ending))
            if times >= _KILLED_BY and self._killed_at is None:
                self._killed_at = time.monotonic() + _KILLED_AFTER
            for slot in self._slots:
                slot.stop(times)
                if self._killed_at is not None and time.monotonic() >= self._killed_at:
                    slot.kill()
            self._news.notify_all()

    def _start(self, slot: Slot) -> None:
        try:
            slot.start()
        except OSError as error:
            # Too many processes, or no memory, which may pass; not while it is the first thing that was tried.
            log.error(
                "process cannot be started process=%d error=%s",
                slot.number,
                error.strerror or type(error).__name__,
            )
            self._bury(slot, exit_code_of(-1))

    def _bury(self, slot: Slot, code: int) -> None:
        self._ever_worked = self._ever_worked or slot.had_worker
        if self._must_stop():
            # Without a worker it held nothing, and a signal may end it as it likes.
            if slot.had_worker and code != 0 and self._code == 0:
                self._code = exit_code_of(code)
            log.info("process ended process=%d code=%d", slot.number, code)
        elif is_final(code, had_worker=slot.had_worker, ever_worked=self._ever_worked):
            log.error("process ended process=%d code=%d: a new one would fare no better", slot.number, code)
            self._is_ending, self._code = True, exit_code_of(code)
        else:
            pause = slot.rest()
            log.log(
                logging.ERROR if code else logging.WARNING,
                "process ended process=%d code=%d again_in=%g starts=%d",
                slot.number, code, pause, slot.starts,
            )  # fmt: skip

    def _hear(self, woken: socket.socket) -> None:
        """What the processes tell, for a while. woken: what signals are heard through."""
        # Made anew each time: a socket that was closed leaves its number to the next one.
        poll = select.poll()
        talking = {slot.channel.fileno(): slot for slot in self._slots if slot.channel and not slot.is_mute}
        for file in (woken.fileno(), *talking):
            poll.register(file, select.POLLIN)
        # Without a process, or with one that tells no more, something is about to begin or to end.
        is_busy = self._must_stop() or len(talking) < len(self._slots)
        heard = {file for file, _ in poll.poll(_BUSY_POLL_MILLIS if is_busy else _IDLE_POLL_MILLIS)}
        if woken.fileno() in heard:
            woken.recv(_WAKES_AT_ONCE)
        if told := heard & talking.keys():
            with self._news:
                for file in told:
                    talking[file].read()
                self._news.notify_all()

    # -- as a HealthSource --------------------------------------------------------------------------------------------

    def check(self) -> HealthCheck:
        """Live unless one of them is not, ready if all are."""
        answers = self._ask("look")
        live: list[str] = []
        ready: list[str] = []
        with self._news:
            for slot, answer in zip(self._slots, answers, strict=True):
                if answer is not None:
                    live += named(slot.number, answer["live"])
                    ready += named(slot.number, answer["ready"])
                    continue
                why = tuple(named(slot.number, self._why_silent(slot)))
                ready += why
                live += why if slot.silent_for >= DEAD_AFTER else ()
        return HealthCheck(
            Verdict(tuple(live)), Verdict(tuple(ready)), "draining" if self._must_stop() else "running"
        )

    def report(self) -> dict[str, Any]:
        look, answers = self.check(), self._ask("report")
        with self._news:
            told = [
                report_of(slot.number, slot.pid, slot.starts, answer, self._why_silent(slot))
                for slot, answer in zip(self._slots, answers, strict=True)
            ]
        return merged_report(look.live, look.ready, told)

    def exposition(self) -> tuple[bytes, str] | None:
        answers = self._ask("metrics")
        pages = {slot.number: answer for slot, answer in zip(self._slots, answers, strict=True) if answer}
        if not pages:
            return None
        kind: str = next(iter(pages.values()))["type"]
        return merged_metrics({number: page["text"] for number, page in pages.items()}).encode(), kind

    def _ask(self, what: str) -> list[Any]:
        """The answer of each process; None where it gave none in time."""
        with self._news:
            for slot in self._slots:
                slot.ask(what)
            self._news.wait_for(
                lambda: not any(slot.is_waited_for(what, PATIENCE) for slot in self._slots), timeout=PATIENCE
            )
            return [slot.answer(what) for slot in self._slots]

    def _why_silent(self, slot: Slot) -> Iterator[str]:
        if slot.pid is not None:
            yield f"has not answered for {slot.silent_for:.0f} s"
        elif self._must_stop():
            yield "has ended"
        else:
            left = max(0.0, slot.again_at - time.monotonic())
            yield f"ended with code {slot.code} and is started again in {left:.0f} s"
