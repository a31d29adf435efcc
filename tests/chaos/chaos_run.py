"""One run: the local AWS, a producer and a fleet of `pykcl run`, and what is done to them step by step.

Every step waits for conditions (a lease taken, a batch begun, a process gone) with a deadline. No verdict depends on how
long anything took: what did not happen in time is not counted as exercised.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from chaos_processes import Child, Settings
from chaos_schedule import RESHARDS, WINDOWS, Rule, Step, rules_of
from fleet_clock import now_millis
from fleet_evidence import END, HARNESS, PUTS, REQUESTS, TABLE
from fleet_processes import Server, all_ended
from fleet_rows import SHARD_END, LeaseRows
from fleet_stream import CountingProducer, Stream, client

from pykcl.worker.signals import REPEAT_SECONDS

MOST_DESERTERS = 20
PATIENCE = 60.0
"""Seconds that a step waits for what it needs before it goes on without."""


class Run:
    """Use as a context manager: at its end no process of it is left. say: gets a line of progress."""

    def __init__(
        self,
        settings: Settings,
        *,
        seed: int,
        workers: int,
        rate: int,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings = settings
        self._seed, self._workers, self._rate = seed, workers, rate
        self._say = say
        self._begun = time.monotonic()
        self._stack = contextlib.ExitStack()
        self._children: list[Child] = []
        self._rows = LeaseRows(settings.folder / REQUESTS, TABLE)
        self._windows: list[tuple[float, str, list[Rule]]] = []
        self._finished: set[tuple[str, str, int]] = set()
        self._pause = threading.Event()
        self._deserters = 0

    def __enter__(self) -> Run:
        with contextlib.ExitStack() as stack:
            folder = self.settings.folder
            self._facts = stack.enter_context((folder / HARNESS).open("w", encoding="utf-8"))
            puts = stack.enter_context((folder / PUTS).open("w", encoding="utf-8"))
            processes: list[Child | Server] = []
            self._processes = processes
            stack.enter_context(all_ended(processes))
            self._server = Server(self.settings.folder, self.settings.shards)
            processes.append(self._server)
            kinesis = client(self._server.url)
            stack.callback(kinesis.close)
            self._stream = Stream(kinesis, self.say)
            self._producer = CountingProducer(kinesis, puts, seed=self._seed, rate=self._rate)
            stack.callback(self._producer.stop)
            self._server.faults(seed=self._seed)
            self._producer.start()
            for _ in range(self._workers):
                self._start_worker()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_for_fleet(self) -> bool:
        """Until every open shard has an owner and every worker has begun."""
        return self.until(
            lambda: (
                all(child.has_started for child in self._staff())
                and len([row for row in self._rows.rows.values() if row.owner]) >= self.settings.shards
            )
        )

    # -- what every step uses ----------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        self._say(f"t+{time.monotonic() - self._begun:6.1f} s  {line}")

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._begun

    def _note(self, what: str, **fields: object) -> None:
        self._facts.write(json.dumps({"what": what, **fields, "t": now_millis()}) + "\n")
        self._facts.flush()

    def _start_worker(self) -> Child:
        worker = f"w{len(self._children) + 1:02d}"
        self._note("started", worker=worker)
        child = Child(self.settings, self._server, worker)
        self._children.append(child)
        # In front of the server, so that it is ended first.
        self._processes.insert(0, child)
        return child

    def _tick(self) -> None:
        self._rows.poll()
        for child in self._children:
            if child.noted_exit:
                continue
            child.poll()
            self._finished.update(child.finished)
            child.finished.clear()
            if not child.runs:
                child.poll()
                self._finished.update(child.finished)
                self._note("exited", worker=child.worker, code=child.process.returncode)
                child.noted_exit = True
                if not child.leaving:
                    self._replace(child)
                    break
        for window in [window for window in self._windows if time.monotonic() >= window[0]]:
            self._close_window(window)
        if self._producer.failure is not None:
            raise self._producer.failure

    def _replace(self, child: Child) -> None:
        """A red line in the table, whatever follows; but the others shall not have to do its work."""
        self.say(f"{child.worker} ended by itself with {child.process.returncode}")
        self._deserters += 1
        if self._deserters > MOST_DESERTERS:
            raise RuntimeError(f"Workers keep ending by themselves: see {self.settings.folder}.")
        self._start_worker()

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Wait for a condition; False when it did not come within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            self._tick()
            if condition():
                return True
            if time.monotonic() >= deadline:
                return False
            self._pause.wait(0.02)

    def wait(self, seconds: float) -> None:
        """The schedule's own timer."""
        self.until(lambda: False, seconds)

    def _staff(self) -> list[Child]:
        return [child for child in self._children if child.runs and not child.leaving and not child.frozen]

    def _owners(self) -> list[Child]:
        return [child for child in self._staff() if self._rows.owned_by(child.worker)]

    def _victim(self, random: Random) -> Child | None:
        """One that owns leases; None when nobody does for too long."""
        return random.choice(self._owners()) if self.until(lambda: bool(self._owners())) else None

    def _busy_victim(self, random: Random) -> Child | None:
        """One in the middle of a batch, the worst moment: what it has not finished must come again."""
        self.until(lambda: any(child.busy > 1 for child in self._owners()), 10.0)
        busy = [child for child in self._owners() if child.busy > 1]
        return random.choice(busy) if busy else self._victim(random)

    # -- steps -------------------------------------------------------------------------------------------------

    def do(self, step: Step) -> None:
        """Do one step of the schedule."""
        self.wait(step.pause)
        random = Random(step.draw)
        if step.what in WINDOWS:
            self._open_window(step.what, random)
            return
        if step.what in RESHARDS:
            self._note("did", action=self._stream.reshard(step.what, random))
            return
        done = {
            "kill": self._kill,
            "freeze": self._freeze,
            "terminate": self._terminate,
            "force": self._force,
            "rolling restart": self._roll,
        }[step.what](random)
        if done:
            self._note("did", action=step.what)

    def _kill(self, random: Random) -> bool:
        victim = self._busy_victim(random)
        if victim is None:
            return False
        leases = self._rows.owned_by(victim.worker)
        self._note("killed", worker=victim.worker)
        victim.leaving = True
        victim.send(signal.SIGKILL)
        self.say(f"SIGKILL {victim.worker}, owner of {len(leases)} leases with {victim.busy} records in hand")
        self.until(lambda: victim.noted_exit)
        self._start_worker()
        return True

    def _freeze(self, random: Random) -> bool:
        if len(self._staff()) < 2:
            self._start_worker()
        for _ in range(5):
            victim = self._busy_victim(random)
            if victim is not None and self._freeze_one(victim):
                return True
        return False

    def _freeze_one(self, victim: Child) -> bool:
        """False when nothing was taken from it: others may have taken its last lease just before it froze."""
        self._note("frozen", worker=victim.worker)
        victim.frozen = True
        victim.send(signal.SIGSTOP)
        # What it had sent is answered and logged meanwhile; what it owns now, it owns while it is frozen.
        self.wait(0.2)
        leases = len(self._rows.owned_by(victim.worker))
        taken = leases > 0 and self.until(lambda: not self._rows.owned_by(victim.worker))
        victim.send(signal.SIGCONT)
        victim.frozen = False
        self._note("thawed", worker=victim.worker)
        words = "when others had them" if taken else "with nothing taken"
        self.say(f"SIGSTOP {victim.worker}, owner of {leases} leases; SIGCONT {words}")
        return taken

    def _terminate(self, random: Random) -> bool:
        victim = self._victim(random)
        if victim is None:
            return False
        self._send_away([victim])
        self._start_worker()
        return True

    def _roll(self, random: Random) -> bool:
        for child in self._staff():
            new = self._start_worker()
            self.until(lambda new=new: new.has_started)  # type: ignore[misc]
            self._send_away([child])
        return True

    def _send_away(self, children: Iterable[Child]) -> None:
        """SIGTERM, and wait until they are gone."""
        children = list(children)
        # Before it has begun it has no say in what a signal does.
        self.until(lambda: all(child.has_started or not child.runs for child in children))
        for child in children:
            leases = len(self._rows.owned_by(child.worker))
            self._note("terminated", worker=child.worker)
            child.leaving = True
            child.send(signal.SIGTERM)
            self.say(f"SIGTERM {child.worker}, owner of {leases} leases")
        self.until(lambda: all(child.noted_exit for child in children), self.settings.grace + PATIENCE)

    def _force(self, random: Random) -> bool:
        victim = self._victim(random)
        if victim is None:
            return False
        victim.hang_file.touch()
        if not self.until(lambda: victim.hanging or not victim.runs, PATIENCE / 2):
            # Whoever takes the file away decides: it, and then it hangs, or we.
            with contextlib.suppress(FileNotFoundError):
                victim.hang_file.unlink()
                return False
            self.until(lambda: victim.hanging or not victim.runs)
        self._note("forced", worker=victim.worker)
        victim.leaving = True
        victim.send(signal.SIGINT)
        # Signals of one second are one request; then the grace period ends what the second one should have.
        self.until(lambda: victim.noted_exit, 1.5 * REPEAT_SECONDS)
        victim.send(signal.SIGINT)
        gone = self.until(lambda: victim.noted_exit, self.settings.grace + PATIENCE)
        self.say(
            f"SIGINT twice to {victim.worker}, in a batch that hangs: exit code {victim.process.returncode}"
        )
        self._start_worker()
        return gone

    # -- faults ------------------------------------------------------------------------------------------------

    def _open_window(self, what: str, random: Random) -> None:
        seconds, rules = rules_of(what, random, self.settings.failover_time)
        self._windows.append((time.monotonic() + seconds, what, rules))
        self._apply_windows()
        self.say(f"{what} for {seconds:.1f} s")

    def _close_window(self, window: tuple[float, str, list[Rule]]) -> None:
        self._windows.remove(window)
        self._apply_windows()
        self.say(f"{window[1]} over")

    def _apply_windows(self) -> None:
        self._server.faults(*(rule for _, _, rules in self._windows for rule in rules))

    # -- the end -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Faults off, nothing more put; wait until all work is done; stop the fleet; write down how it ended."""
        for window in tuple(self._windows):
            self._close_window(window)
        self._producer.stop()
        self.say(f"no more faults; {self._producer.count} records put, waiting until all are done")
        shards = self._stream.shards()
        left = self._wait_for_rest(shards)
        # Nobody stops on its own any more, so the last to go is as clean as the first.
        self._send_away([child for child in self._children if child.runs])
        end = {"parents": {shard["ShardId"]: _parents(shard) for shard in shards}, "unsettled": left}
        (self.settings.folder / END).write_text(
            json.dumps({**end, "faults": self._server.injected()}), "utf-8"
        )

    def _wait_for_rest(self, shards: list[dict[str, Any]]) -> list[str]:
        """What has not come to rest when nothing has moved for PATIENCE seconds. A slow machine only takes longer."""
        while True:
            before = self._state()
            if self.until(lambda: not self._restless(shards), PATIENCE):
                return []
            if self._state() == before:
                return self._restless(shards)

    def _state(self) -> tuple[int, dict[str, Any]]:
        return len(self._finished), {key: row.checkpoint for key, row in self._rows.rows.items()}

    def _restless(self, shards: list[dict[str, Any]]) -> list[str]:
        """By what the table says: a record counted as done and never finished must not keep the run waiting."""
        rows, last, found = self._rows.rows, self._producer.last, []
        for shard in shards:
            key = shard["ShardId"]
            row = rows.get(key)
            if "EndingSequenceNumber" in shard["SequenceNumberRange"]:
                if row is not None and row.checkpoint != SHARD_END:
                    found.append(f"{key} is closed and not at SHARD_END")
            elif row is None:
                found.append(f"{key} has no lease")
            elif row.owner is None:
                found.append(f"{key} has no owner")
            elif key in last and row.checkpoint < last[key]:
                found.append(f"{key} is not read to its end")
        return found


def _parents(shard: dict[str, Any]) -> list[str]:
    return [shard[name] for name in ("ParentShardId", "AdjacentParentShardId") if name in shard]
