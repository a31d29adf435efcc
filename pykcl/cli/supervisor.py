"""The parent of `--processes`: start the workers, watch and replace them, and report them as one."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.errors import ExitCode
from pykcl.cli.main import ARGUMENTS
from pykcl.cli.supervised import Member
from pykcl.health.probes import FORMAT, HealthCheck, Verdict, versions
from pykcl.runtime import SystemRuntime
from pykcl.worker.signals import StopSignals, woken_by_signals

if TYPE_CHECKING:
    from pykcl.cli.settings import Service, Settings
    from pykcl.config import Config

log = logging.getLogger("pykcl.processes")

MAX_PROCESSES = 128
"""Each is a worker of its own, with its own heartbeats and scans: for more workers use another host."""
FIRST_PAUSE = 1.0
MAX_PAUSE = 60.0
LONG_LIFE = 60.0
"""Seconds after which a crash counts as the first one again."""
PATIENCE = 1.0
"""Seconds that a page waits for the processes; one that has not answered by then is reported as silent."""
DEAD_AFTER = 30.0
"""Seconds of silence after which only a new process will help: three probes ten seconds apart would see no answer."""
_BUSY_POLL_MILLIS, _IDLE_POLL_MILLIS = 100, 2000
"""The longest sleep: while processes start and end, and otherwise, when only news wakes the parent."""
_KILLED_BY = 3
"""Number of signals: the first drains, the second forces, and a process that hangs receives neither."""
_KILLED_AFTER = 2.0
"""Seconds after that: a process that does not hang ends its children meanwhile, which nobody else knows."""
_ASKED_BY = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)) if os.name == "posix" else frozenset()
_WAKES_AT_ONCE = 4096
_READ_BYTES = 65_536
_COMMENT = re.compile(r"# (?:HELP|TYPE) (\S+)")
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")


OnWork = Callable[[tuple[int, int], Mapping[str, Any]], None]
"""Called with the number of a process, and how many were started under it, and with what it says of its work."""


def processes_option(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: `--processes`, handed to the command as `processes`. `service_options` must stand above it."""

    @functools.wraps(command)
    @click.pass_context
    def wrapped(context: click.Context, /, processes: int | None, **given: Any) -> None:
        if processes is not None and os.name != "posix":
            raise click.UsageError("--processes needs a POSIX system. Do: start the command several times.")
        own = Processes(processes, context.meta.get(ARGUMENTS, ()), context.find_object(Member))
        if own.member is not None:
            given["service"] = replace(given["service"], member=own.member)
        command(processes=own, **given)

    return click.option(
        "--processes",
        type=click.IntRange(1, MAX_PROCESSES),
        metavar="K",
        help="Run K workers, each in its own process, and restart those that crash; for example one per core.",
    )(wrapped)


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of one command.

    count: of `--processes`; None: this process is the worker. arguments: of `pykcl`, the verb first. member: this
    process, if it is one of them.
    """

    count: int | None
    arguments: tuple[str, ...]
    member: Member | None = None

    @property
    def is_parent(self) -> bool:
        return self.count is not None and self.member is None

    @property
    def name(self) -> str:
        """Return the beginning of this process's lines on standard error."""
        return "pykcl" if self.member is None else f"pykcl [{self.member.number}]"

    @property
    def number(self) -> int | None:
        return self.member.number if self.member is not None else None

    def own(self, settings: Settings) -> Settings:
        """Return the settings with the worker identifier of this process."""
        if self.member is None:
            return settings
        return replace(settings, config=replace(settings.config, worker_id=self.member.worker_id))

    def with_arguments(self, *more: str) -> Processes:
        """Return the same, where each process gets these options behind the others, and before what follows `--`."""
        end = self.arguments.index("--") if "--" in self.arguments else len(self.arguments)
        return replace(self, arguments=(*self.arguments[:end], *more, *self.arguments[end:]))

    def run(self, config: Config, service: Service, on_work: OnWork | None = None) -> int:
        """Run as the parent, and return the exit code. Raises ConfigError and SetupError."""
        if self.count is None:
            raise ValueError("no count of processes")
        worker_id = config.worker_id or f"{socket.gethostname()}:{os.getpid()}:{SystemRuntime().token()}"
        parent = Parent(self.count, worker_id, self.arguments, on_work)
        with service.watching_over(parent):
            return parent.run()


class Parent:
    """Start the processes, replace those that crash, and stop all together.

    arguments: of `pykcl`, the verb first. The worker of process N is `worker_id`-N, whenever it is started.
    """

    def __init__(
        self, count: int, worker_id: str, arguments: Sequence[str], on_work: OnWork | None = None
    ) -> None:
        self._slots = [
            Slot(number, f"{worker_id}-{number}", arguments, on_work) for number in range(1, count + 1)
        ]
        self.signals = StopSignals()
        # Around everything of the slots; notified when one of them may have answered.
        self._news = threading.Condition()
        self._ever_worked = False
        self._is_ending = False
        self._killed_at: float | None = None
        self._code = 0

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, or until a process ends that no new one could replace; return the exit code."""
        try:
            with self.signals.heard(), woken_by_signals() as woken:
                while not self._is_over():
                    self._manage()
                    self._receive(woken)
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

    def _manage(self) -> None:
        with self._news:
            for slot in self._slots:
                code = slot.ended()
                if code is not None:
                    self._on_ended(slot, code)
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
            self._on_ended(slot, exit_code_of(-1))

    def _on_ended(self, slot: Slot, code: int) -> None:
        self._ever_worked = self._ever_worked or any(one.had_worker for one in self._slots)
        if slot.is_run_over:
            # The others come to that end, too, or stop here: it is said of all shards. Its worker ended without an
            # error before, so that its exit code says nothing more.
            log.info("process ended process=%d code=%d: the run is over", slot.number, code)
            self._is_ending = True
        elif self._must_stop():
            # Without a worker it held nothing, and a signal may end it as it likes.
            if slot.had_worker and code != 0 and self._code == 0:
                self._code = exit_code_of(code)
            log.info("process ended process=%d code=%d", slot.number, code)
        elif is_final(code, had_worker=slot.had_worker, ever_worked=self._ever_worked):
            log.error(
                "process ended process=%d code=%d: a new one would end in the same way", slot.number, code
            )
            self._is_ending, self._code = True, exit_code_of(code)
        else:
            pause = slot.rest()
            log.log(
                logging.ERROR if code else logging.WARNING,
                "process ended process=%d code=%d again_in=%g starts=%d",
                slot.number, code, pause, slot.starts,
            )  # fmt: skip

    def _receive(self, woken: socket.socket) -> None:
        """Receive what the processes send, for a while. woken: the socket through which signals are received."""
        # A new poll object each time: a socket that was closed leaves its number to the next one.
        poll = select.poll()
        talking = {slot.channel.fileno(): slot for slot in self._slots if slot.channel and not slot.is_silent}
        for file in (woken.fileno(), *talking):
            poll.register(file, select.POLLIN)
        # Without a process, or with one that sends no more, something is about to start or to end.
        is_busy = self._must_stop() or len(talking) < len(self._slots)
        readable = {file for file, _ in poll.poll(_BUSY_POLL_MILLIS if is_busy else _IDLE_POLL_MILLIS)}
        if woken.fileno() in readable:
            woken.recv(_WAKES_AT_ONCE)
        if sent := readable & talking.keys():
            with self._news:
                for file in sent:
                    talking[file].read()
                self._news.notify_all()

    # -- as a HealthSource --------------------------------------------------------------------------------------------

    def check(self) -> HealthCheck:
        """Live unless one of them is not, ready if all are."""
        answers = self._ask("check")
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
        found, answers = self.check(), self._ask("report")
        with self._news:
            reports = [
                report_of(slot.number, slot.pid, slot.starts, answer, self._why_silent(slot))
                for slot, answer in zip(self._slots, answers, strict=True)
            ]
        return merged_report(found.live, found.ready, reports)

    def exposition(self) -> tuple[bytes, str] | None:
        answers = self._ask("metrics")
        pages = {slot.number: answer for slot, answer in zip(self._slots, answers, strict=True) if answer}
        if not pages:
            return None
        kind: str = next(iter(pages.values()))["type"]
        return merged_metrics({number: page["text"] for number, page in pages.items()}).encode(), kind

    def _ask(self, what: str) -> list[Any]:
        """Return the answer of each process; None for one that did not answer in time."""
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


# -- one process after the other -------------------------------------------------------------------------------


class Slot:
    """The place of one process, in which one follows the other. Not thread-safe: its owner locks.

    number: from 1 on. arguments: of `pykcl`, the verb first. on_work: called with what it says of its work. pid,
    channel: of the running process. starts: number of processes so far. had_worker: the running process has created its
    worker. is_run_over: it says that every shard was read until the end of the run. is_silent: it has closed its end of
    the channel. again_at: when the next one may start, of time.monotonic(). code: exit code of the last one.
    """

    def __init__(
        self, number: int, worker_id: str, arguments: Sequence[str], on_work: OnWork | None = None
    ) -> None:
        self.number, self.worker_id = number, worker_id
        self._arguments, self._on_work = tuple(arguments), on_work
        self._process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.starts = 0
        self.had_worker = False
        self.is_run_over = False
        self.is_silent = False
        self.again_at = 0.0
        self.code: int | None = None
        self._started_at = 0.0
        self._failures = 0
        self._unread = b""
        self._stops_sent = 0
        self._answers: dict[str, Any] = {}
        self._asked: dict[str, float] = {}

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    # -- its life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        self.starts += 1
        self._started_at = time.monotonic()
        command = [sys.executable, "-m", "pykcl.cli.supervised", str(self.number), self.worker_id]
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this very command again
                    [*command, str(theirs.fileno()), *self._arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self.channel = ours
        self.had_worker, self.is_run_over, self.is_silent, self.code = False, False, False, None
        self._unread, self._stops_sent = b"", 0
        self._answers, self._asked = {}, {}
        log.info("process started process=%d pid=%d worker_id=%s", self.number, self.pid, self.worker_id)

    def ended(self) -> int | None:
        """Return the exit code of a process that has ended since the last call; None if it has not."""
        if self._process is None or self._process.poll() is None:
            return None
        self.read()
        self.code = self._process.returncode
        self._process = None
        self.close()
        return self.code

    def rest(self) -> float:
        """Return the seconds until the next process may start, counted from now on."""
        now = time.monotonic()
        self._failures = 1 if now - self._started_at >= LONG_LIFE else self._failures + 1
        pause = pause_after(self._failures)
        self.again_at = now + pause
        return pause

    def stop(self, times: int) -> None:
        """Send the process the number of stop requests so far."""
        if times > self._stops_sent:
            self._stops_sent = times
            self._send({"stop": times})

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        self._asked = {}

    # -- what it sends -----------------------------------------------------------------------------------------

    def read(self) -> None:
        """Receive what it has sent so far."""
        while self.channel is not None and not self.is_silent:
            try:
                more = self.channel.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                log.debug(
                    "cannot receive from process process=%d error=%s", self.number, type(error).__name__
                )
                more = b""
            self.is_silent = not more
            *lines, self._unread = (self._unread + more).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def ask(self, what: str) -> None:
        """Ask for "check", "report" or "metrics"; not again before the answer, as the process may hang."""
        if what not in self._asked and self.channel is not None:
            self._asked[what] = time.monotonic()
            self._send({"ask": what})

    def is_waited_for(self, what: str, patience: float) -> bool:
        """Return whether that was asked less than `patience` seconds ago and not answered yet."""
        asked = self._asked.get(what)
        return self.channel is not None and asked is not None and time.monotonic() - asked < patience

    def answer(self, what: str) -> Any:
        """Return the answer to the last such question; None without one."""
        return self._answers.get(what) if what not in self._asked and self.channel is not None else None

    @property
    def silent_for(self) -> float:
        """Return the seconds for which its oldest question has been waiting."""
        return time.monotonic() - min(self._asked.values()) if self._asked else 0.0

    def _take(self, sent: Mapping[str, Any]) -> None:
        if "answer" in sent:
            self._asked.pop(sent["answer"], None)
            self._answers[sent["answer"]] = sent["value"]
        elif "worker" in sent:
            self.had_worker = True
        elif "over" in sent:
            self.is_run_over = True
        elif "work" in sent and self._on_work is not None:
            self._on_work((self.number, self.starts), sent["work"])

    def _send(self, what: Mapping[str, Any]) -> None:
        if self.channel is None:
            return
        try:
            self.channel.send(json.dumps(what).encode("ascii") + b"\n")
        except OSError as error:
            # It has ended, or hangs with a full buffer; either shows by itself.
            log.debug("cannot send to process process=%d error=%s", self.number, type(error).__name__)


def pause_after(failures: int) -> float:
    """Return the seconds until the next process starts, after this many short-lived ones in a row."""
    return float(min(FIRST_PAUSE * 2.0 ** min(failures - 1, 16), MAX_PAUSE))


def is_final(code: int, *, had_worker: bool, ever_worked: bool) -> bool:
    """Return whether a new process would end in the same way, so that all end with the code of this one.

    That holds for wrong configuration and wrong usage, and for whatever ended the first processes before any of them
    had a worker, such as a module that cannot be imported; not for a signal by which others ask a process to end.
    """
    if code == ExitCode.MISCONFIGURED:
        return True
    is_asked = -code in _ASKED_BY
    return not had_worker and (code == ExitCode.USAGE or not (ever_worked or is_asked))


def exit_code_of(code: int) -> int:
    """Return the exit code for the code of a process: one that was ended by a signal has crashed."""
    return ExitCode.CRASHED if code < 0 else code


# -- the answers of all as one ---------------------------------------------------------------------------------


def named(number: int, why: Iterable[str]) -> Iterator[str]:
    """Return the reasons, each with the number of the process."""
    return (f"process {number}: {one}" for one in why)


def report_of(
    number: int, pid: int | None, starts: int, report: Mapping[str, Any] | None, why: Iterable[str]
) -> dict[str, Any]:
    """Return the report of one process for `merged_report`. report: its own; None: it sent none, and `why` says why."""
    silent = {
        "live": pid is not None, "ready": False, "why": list(why), "max_millis_behind_latest": None, "stalled": [],
        "paused": [], "worker": None,
    }  # fmt: skip
    return {"process": number, "pid": pid, "starts": starts, **(silent if report is None else report)}


def merged_report(live: Verdict, ready: Verdict, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the /status of all processes. reports: one of `report_of` for each."""
    behind = [one["max_millis_behind_latest"] for one in reports]
    return {
        "format": FORMAT,
        "live": live.is_good,
        "ready": ready.is_good,
        "why": list(dict.fromkeys((*live.why, *ready.why))),
        "max_millis_behind_latest": max((one for one in behind if one is not None), default=None),
        "stalled": sorted({shard for one in reports for shard in one["stalled"]}),
        "paused": sorted({shard for one in reports for shard in one["paused"]}),
        "versions": versions(),
        "processes": list(reports),
    }


def merged_metrics(pages: Mapping[int, str]) -> str:
    """Return one Prometheus page of the pages of all processes: each sample with `process`, each family in one piece.

    The samples are labelled and not added up: the counters of a restarted process start at 0, and rate() would take a
    sum that falls by a part for a reset of the whole. Each page has the form that prometheus_client writes.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, page in pages.items():
        family = families.setdefault("", ([], []))
        for line in page.splitlines():
            comment = _COMMENT.match(line)
            if comment is not None:
                family = families.setdefault(comment[1], ([], []))
                if line not in family[0]:
                    family[0].append(line)
            elif line and not line.startswith("#"):
                family[1].append(labelled(line, number))
    lines = [line for comments, samples in families.values() for line in (*comments, *samples)]
    return "\n".join(lines) + "\n" if lines else ""


def labelled(sample: str, number: int) -> str:
    """Return the sample with the label `process` in front of its own."""
    name = _NAME.match(sample)
    if name is None:
        return sample
    rest = sample[name.end() :]
    label = f'process="{number}"'
    return f"{name[0]}{{{label},{rest[1:]}" if rest.startswith("{") else f"{name[0]}{{{label}}}{rest}"
