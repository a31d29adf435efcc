"""Scenario of the demo: the actions on the fleet in order, and what is observed until each has had its effect."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random

from pykcl.aws.clients import client_config, connect, new_session
from pykcl.demo.java import java_worker
from pykcl.demo.producer import Producer
from pykcl.demo.record_log import Delivery, RecordLogReader
from pykcl.demo.redrive import LETTERS, REDRIVE, kept_letters, start_redrive
from pykcl.demo.verdict import Evidence, Kill, Poison, Verdict, evaluate
from pykcl.demo.view import DemoState, Entry, ShardLine, View, WorkerLine, counted, grouped, short
from pykcl.demo.workers import STREAM, DemoError, PoisonRecord, WorkerProcess, config, end_all, python_worker
from pykcl.errors import TableGone, TemporaryError
from pykcl.interfaces import LeaseTable
from pykcl.local.server import LocalAws
from pykcl.local.stream import LocalKinesis
from pykcl.model.lease import Lease
from pykcl.model.shard import Shard
from pykcl.runtime import SystemRuntime

STEP_SECONDS = 120.0
"""Until a step has failed. On two cores it takes a few; beside ten busy processes one took 31."""
_POLL_SECONDS = 0.02
_SCAN_SECONDS = 0.25
_DRAW_SECONDS = 0.15
_ALARMS = {
    "DataLost": "records were trimmed before they were read",
    "UnreadShardLost": "a shard was trimmed before anybody had read it",
    "ProcessorRaised": "a record processor raised",
    "AggregateRefused": "an aggregate was refused",
    "AggregateOutsideShard": "an aggregate reached another shard",
    "InvalidLeaseRow": "a row of the lease table was refused",
}
"""Events that no worker of the demo has a reason to report, but for a record processor that raises PoisonRecord."""


class FleetObserver:
    """State of the fleet: record logs, lease table, shards and processes. Used by one thread.

    problems: what went wrong, as texts for the verdict.
    """

    def __init__(
        self, kinesis: LocalKinesis, table: LeaseTable, producer: Producer, view: View, state: DemoState
    ) -> None:
        self.kinesis = kinesis
        self.producer = producer
        self.logs = RecordLogReader()
        self.leases: dict[str, Lease] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.problems: list[str] = []
        self._table = table
        self._view = view
        self._state = state
        self._started = time.monotonic()
        self._next_scan = self._next_draw = 0.0
        self._alarms_read = 0

    # -- waiting -------------------------------------------------------------------------------------------------

    def wait(
        self, condition: Callable[[], bool], what: str, *, quick: bool = False, seconds: float = STEP_SECONDS
    ) -> bool:
        """Poll until the condition holds; return False, and add a problem, when it does not in time.

        quick: only read the record logs, when every millisecond counts.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.logs.poll() if quick else self.poll()
            if condition():
                return True
            if time.monotonic() >= deadline:
                self.problems.append(f"waited {seconds:g} s in vain for {what}")
                return False
            time.sleep(_POLL_SECONDS)

    def observe_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.poll()
            time.sleep(_POLL_SECONDS)

    def poll(self) -> None:
        """Read what has changed, and show it. Raises DemoError when a worker or the producer has failed."""
        now = time.monotonic()
        self.logs.poll()
        self._raise_failures()
        self._report_alarms_read()
        if now >= self._next_scan:
            self._next_scan = now + _SCAN_SECONDS
            self.scan()
        if now >= self._next_draw:
            self._next_draw = now + _DRAW_SECONDS
            self._draw()

    def scan(self) -> None:
        try:
            rows = self._table.scan().rows
        except TableGone:
            if self.leases:
                raise
            return  # no worker has created it yet
        except TemporaryError:
            return  # the machine is busy: what the last scan found stands until the next one
        self.leases = {row.key: row for row in rows if isinstance(row, Lease)}

    # -- output --------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def phase(self, text: str) -> None:
        self._state.phase = text
        self._draw()

    def log(self, what: str, detail: str, outcome: str, *, at: float | None = None, tone: str = "") -> None:
        entry = Entry(self.elapsed if at is None else at, what, detail, outcome, tone)
        self._state.entries.append(entry)
        self._view.entry(entry)

    # -- state ---------------------------------------------------------------------------------------------------

    def running(self) -> list[str]:
        return [name for name, worker in self.workers.items() if worker.state == "running"]

    def owned_by(self, name: str) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.owner == name and not lease.is_ended]

    def lease_counts(self) -> Counter[str]:
        """Return the number of leases by worker."""
        return Counter(lease.owner for lease in self.leases.values() if lease.owner and not lease.is_ended)

    def shards(self) -> list[Shard]:
        return self.kinesis.list_shards(STREAM, operation=None)

    def open_shards(self) -> list[Shard]:
        return [shard for shard in self.shards() if shard.is_open]

    def children_of(self, parent: str) -> tuple[str, ...]:
        return tuple(shard.shard_id for shard in self.shards() if parent in shard.parents)

    def neighbours(self) -> list[tuple[Shard, Shard]]:
        """Return adjacent pairs of open shards; original shards only, while there are such pairs."""
        ranged = [(shard.hash_range.first, shard) for shard in self.open_shards() if shard.hash_range]
        pairs = list(pairwise(shard for _, shard in sorted(ranged, key=lambda pair: pair[0])))
        return [pair for pair in pairs if not pair[0].parents and not pair[1].parents] or pairs

    def first_deliveries(
        self, shards: Sequence[str], since: int, *, not_by: str | None = None
    ) -> list[Delivery]:
        """Return the first delivery from each shard that has one, from index `since` on, by any worker but `not_by`."""
        found: dict[str, Delivery] = {}
        for delivery in self.logs.deliveries[since:]:
            if delivery.shard in shards and delivery.worker != not_by:
                found.setdefault(delivery.shard, delivery)
        return list(found.values())

    def is_shared(self, names: Sequence[str], max_leases: int) -> bool:
        """Return True if every worker owns 1 to `max_leases` leases, and has delivered from each."""
        counts = self.lease_counts()
        if any(not 1 <= counts[name] <= max_leases for name in names):
            return False
        owners = {(lease.owner, key) for key, lease in self.leases.items()}
        return owners <= {(delivery.worker, delivery.shard) for delivery in self.logs.deliveries}

    def is_drained(self) -> bool:
        """Return True if every shard is ended or checkpointed to its tip, and no batch is being processed.

        Checkpoints decide, not deliveries: a fleet that checkpoints what it did not deliver must come to a verdict too.
        """
        for shard in self.shards():
            lease = self.leases.get(shard.shard_id)
            last = self.producer.last_sequence(shard.shard_id)
            if lease is None or lease.is_ended or (shard.is_open and last is None):
                continue
            if not shard.is_open or lease.checkpoint.sequence_number != last:
                return False
        return not any(self.logs.in_progress(name) for name in self.running())

    # -- a poll --------------------------------------------------------------------------------------------------

    def _raise_failures(self) -> None:
        failure = self.producer.failure
        if failure is not None:
            raise DemoError(f"the producer failed with {type(failure).__name__}: {failure}") from failure
        for worker in self.workers.values():
            worker.require_alive()

    def _report_alarms_read(self) -> None:
        for event in self.logs.events[self._alarms_read :]:
            if event.kind in _ALARMS and event.fields.get("error") != PoisonRecord.__name__:
                self.problems.append(f"{event.worker}: {_ALARMS[event.kind]} ({event.shard or '-'})")
                self.log(event.kind, f"{event.worker} {short(event.shard)}", _ALARMS[event.kind], tone="bad")
        self._alarms_read = len(self.logs.events)

    def _draw(self) -> None:
        state, logs, leases = self._state, self.logs, self.lease_counts()
        counts = self.kinesis.put_counts(STREAM)
        state.elapsed = self.elapsed
        state.shards = [self._shard_line(shard, counts.get(shard.shard_id, 0)) for shard in self.shards()]
        state.workers = [
            WorkerLine(name, worker.state, leases[name], logs.by_worker.get(name, 0))
            for name, worker in self.workers.items()
        ]
        state.produced = len(self.producer.placed)
        state.processed = len(logs.ids)
        state.duplicates = len(logs.deliveries) - len(logs.ids)
        state.steals = sum(event.fields.get("reason") == "rebalance" for event in logs.events)
        self._view.refresh(state)

    def _shard_line(self, shard: Shard, put: int) -> ShardLine:
        key = shard.shard_id
        lease = self.leases.get(key)
        ended = lease is not None and lease.is_ended
        checkpointed = put if ended else 0
        if lease is not None and not lease.checkpoint.is_sentinel:
            checkpointed = self.producer.put_up_to(key, lease.checkpoint.sequence_number)
        state = "ended" if ended else "open" if shard.is_open else "closed"
        delivered = len(self.logs.sequences.get(key, ()))
        owner = lease.owner if lease is not None else None
        return ShardLine(key, shard.parents, state, owner, put, delivered, checkpointed)


SHARDS = 4
WORKERS = ("py-1", "py-2", "py-3")
JAVA_SECONDS = 240.0
"""For a Java worker until it has its share: its start, and it scans for leases only every two failover times."""
_KILL_ATTEMPTS = 20
_BURST = 200
_BESIDE_POISON = 100


@dataclass(frozen=True, slots=True)
class Pace:
    """pause: seconds between two actions. rate: user records per second."""

    pause: float
    rate: int


NORMAL = Pace(pause=7.0, rate=800)
FAST = Pace(pause=0.3, rate=800)


@dataclass(frozen=True, slots=True)
class ActionStart:
    """Start of an action. elapsed: seconds since the start of the demo. at: monotonic nanoseconds. deliveries: their
    number so far.
    """

    elapsed: float
    at: int
    deliveries: int


class Scenario:
    """One run of the demo, in the thread that calls `play`.

    start_worker: starts a Python worker of that name. start_java: starts a Java worker; None for a run without one.
    start_redrive: starts a redrive of the letters in `dead_letters`, the directory of the Python workers; None for a
    run without poison.
    """

    def __init__(
        self,
        observer: FleetObserver,
        *,
        start_worker: Callable[[str], WorkerProcess],
        start_java: Callable[[], WorkerProcess] | None = None,
        start_redrive: Callable[[], WorkerProcess] | None = None,
        dead_letters: Path = Path(LETTERS),
        state: DemoState,
        pace: Pace,
    ) -> None:
        self._observer = observer
        self._start_worker = start_worker
        self._start_java_worker = start_java
        self._java: WorkerProcess | None = None
        self._start_redrive = start_redrive
        self._redrive_process: WorkerProcess | None = None
        self._dead_letters = dead_letters
        self._state = state
        self._pace = pace
        self._random = Random(state.seed)  # noqa: S311 - which shard and which worker, no secret
        self._kills: list[Kill] = []
        self._terminated: str | None = None
        self._split_children: tuple[str, ...] = ()
        self._merge_children: tuple[str, ...] = ()

    def play(self, *, keep: bool) -> Verdict:
        """Run the scenario. keep: leave the last worker running. Raises DemoError."""
        self._start()
        actions = [self._kill_python, self._split_one, self._merge_two, self._terminate_one]
        if self._start_java_worker:
            # Before any shard has ended: Java computes its share from all rows, and with those of ended shards among
            # them it may not take any of the few that are left.
            actions[0:1] = [self._start_java, self._kill_python, self._kill_java]
        if self._start_redrive:
            # After the Java worker is gone: Java skips a batch that raises.
            actions += [self._poison_one, self._redrive]
        for action in actions:
            self._pause()
            action()
        self._pause()
        self._drain()
        if not keep:
            self._stop_all()
        return self._evaluate()

    def clean_up(self) -> None:
        """End the producer and the workers. Call it after success and failure."""
        redrive = [self._redrive_process] if self._redrive_process else []
        end_all([*self._observer.workers.values(), *redrive])
        self._observer.producer.stop()

    # -- actions -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        observer = self._observer
        observer.phase(f"three workers start and share {self._state.shards_at_start} shards")
        for name in WORKERS:
            self._add(self._start_worker(name))
        observer.producer.start()
        self._await_shared()
        observer.log("workers up", " ".join(WORKERS), f"leases {self._leases(WORKERS)}")

    def _start_java(self) -> None:
        """Start Java with a table that has leases: with an empty one it waits for a random time of up to 30 s."""
        observer = self._observer
        if self._start_java_worker is None:
            return
        observer.phase("a Java KCL worker starts and takes its share")
        before = self._action_start()
        self._java = self._start_java_worker()
        self._add(self._java)
        self._await_shared(JAVA_SECONDS)
        outcome = f"leases {self._leases(observer.workers)} after {observer.elapsed - before.elapsed:.1f}s"
        observer.log("Java joins", self._java.name, outcome, at=before.elapsed)

    def _add(self, worker: WorkerProcess) -> None:
        self._observer.workers[worker.name] = worker
        self._observer.logs.add(worker.record_log)

    def _leases(self, names: Iterable[str]) -> str:
        counts = self._observer.lease_counts()
        return "/".join(str(counts[name]) for name in names)

    def _await_shared(self, seconds: float = STEP_SECONDS) -> None:
        observer, names = self._observer, self._observer.running()
        max_leases = self._state.shards_at_start - len(names) + 1
        if not observer.wait(
            lambda: observer.is_shared(names, max_leases), "the workers to share the shards", seconds=seconds
        ):
            tails = "\n".join(f"{name}: {observer.workers[name].log_tail()}" for name in names)
            raise DemoError(
                f"the workers did not share the shards: {dict(observer.lease_counts())}. End of their logs:\n{tails}"
            )

    def _kill_python(self) -> None:
        """kill -9 in the middle of a batch: the victim is suspended while its state is read, then killed."""
        self._await_shared()
        counts = self._observer.lease_counts()
        max_leases = max(counts[name] for name in WORKERS)
        self._kill(self._random.choice([name for name in WORKERS if counts[name] == max_leases]))

    def _kill_java(self) -> None:
        """Kill the Java worker; the Python workers that are left take its leases."""
        if self._java is not None:
            self._kill(self._java.name)

    def _kill(self, victim: str) -> None:
        observer = self._observer
        observer.phase(f"kill -9 {victim} in the middle of a batch")
        kill = self._freeze_in_batch(victim)
        before = self._action_start()
        observer.workers[victim].kill()
        observer.phase(f"{victim} is dead; its leases expire and move")
        new_owners = self._peers_deliver(kill.leases, victim, before.deliveries)
        detail = f"{counted(len(kill.leases), 'lease')}, {kill.undelivered} undelivered"
        observer.log(f"kill -9 {victim}", detail, _after(new_owners, before), at=before.elapsed)
        self._kills.append(kill)

    def _freeze_in_batch(self, victim: str) -> Kill:
        """Freeze the victim when it owns leases and has started, but not finished, a batch of a burst."""
        observer, process = self._observer, self._observer.workers[victim]
        for _ in range(_KILL_ATTEMPTS):
            observer.scan()
            ranges = [lease.hash_range for lease in observer.owned_by(victim) if lease.hash_range is not None]
            if ranges:
                observer.producer.burst(_BURST, ranges)
            observer.wait(
                lambda: observer.logs.in_progress(victim) > 0, f"{victim} to start a batch", quick=True
            )
            process.freeze()
            kill = self._inspect(victim)
            if kill.leases and kill.undelivered and kill.in_progress:
                return kill
            process.thaw()
        raise DemoError(f"{victim} was never found in the middle of a batch, {_KILL_ATTEMPTS} times")

    def _inspect(self, victim: str) -> Kill:
        observer = self._observer
        observer.logs.poll()
        observer.scan()
        leases = tuple(lease.key for lease in observer.owned_by(victim))
        counts = observer.kinesis.put_counts(STREAM)
        undelivered = sum(counts.get(key, 0) - len(observer.logs.sequences.get(key, ())) for key in leases)
        return Kill(victim, leases, undelivered, observer.logs.in_progress(victim))

    def _split_one(self) -> None:
        observer = self._observer
        shard = self._random.choice(observer.open_shards()).shard_id
        observer.phase(f"split {short(shard)}: its children wait until it has ended")
        before = self._action_start()
        observer.kinesis.split(STREAM, shard)
        self._split_children = children = observer.children_of(shard)
        outcome = self._children_deliver((shard,), children, before)
        detail = f"SHARD_END, then {' '.join(map(short, children))}"
        observer.log(f"split {short(shard)}", detail, outcome, at=before.elapsed)

    def _merge_two(self) -> None:
        observer = self._observer
        parents = tuple(shard.shard_id for shard in self._random.choice(observer.neighbours()))
        names = "+".join(map(short, parents))
        observer.phase(f"merge {names}: the child waits until both have ended")
        before = self._action_start()
        observer.kinesis.merge(STREAM, *parents)
        self._merge_children = children = observer.children_of(parents[0])
        outcome = self._children_deliver(parents, children, before)
        detail = f"SHARD_END twice, then {' '.join(map(short, children))}"
        observer.log(f"merge {names}", detail, outcome, at=before.elapsed)

    def _terminate_one(self) -> None:
        observer = self._observer
        observer.scan()
        candidates = [name for name in WORKERS if name in observer.running() and observer.owned_by(name)]
        if not candidates:
            raise DemoError(f"no running Python worker owns a lease: {dict(observer.lease_counts())}")
        name = self._random.choice(candidates)
        observer.phase(f"SIGTERM {name}: it finishes, checkpoints and releases")
        before, known = self._action_start(), len(observer.logs.events)
        observer.workers[name].terminate()
        self._await_end([name])
        released = [
            event
            for event in observer.logs.events[known:]
            if (event.kind, event.worker) == ("LeaseReleased", name)
        ]
        if not released:
            observer.problems.append(f"{name} released no lease on SIGTERM")
        seconds = (max((event.at for event in released), default=before.at) - before.at) / 1e9
        new_owners = self._peers_deliver([event.shard for event in released], name, before.deliveries)
        detail = f"{counted(len(released), 'lease')} released in {seconds:.2f}s"
        observer.log(f"SIGTERM {name}", detail, _after(new_owners, before), at=before.elapsed)
        self._terminated = name

    def _poison_one(self) -> None:
        """Put a poison record among others. Its dead letter must be kept before a checkpoint passes it."""
        observer = self._observer
        shard = self._random.choice(observer.open_shards())
        if shard.hash_range is None:
            raise DemoError(f"{shard.shard_id} has no range of hash keys")
        observer.phase(f"a poison record in {short(shard.shard_id)}: it is set apart, the others go on")
        before, known = self._action_start(), len(observer.logs.events)
        number = observer.producer.put_poison(shard.hash_range, _BESIDE_POISON)
        key, sequence = observer.producer.placed[number], int(observer.producer.poison[number])

        def passed() -> bool:
            lease = observer.leases.get(key)
            if lease is None or lease.checkpoint.is_sentinel:
                return lease is not None and lease.is_ended
            return int(lease.checkpoint.sequence_number) >= sequence

        observer.wait(passed, f"a checkpoint after the poison record in {key}")
        observer.logs.poll()
        counts = Counter(event.kind for event in observer.logs.events[known:])
        kept = [event for event in observer.logs.events[known:] if event.kind == "RecordsDeadLettered"]
        records = sum(int(event.fields["records"]) for event in kept)
        attempts = max((int(event.fields["attempts"]) for event in kept), default=0)
        observer.log(
            "poison record",
            f"{counted(attempts, 'attempt')}, bisected {counted(counts['BatchSplit'], 'time')}",
            f"{counted(records, 'record')} in {self._dead_letters.name}/",
            at=before.elapsed,
            tone="" if kept else "bad",
        )

    def _redrive(self) -> None:
        """Process the dead letters by the command of an operator, with a processor that is mended."""
        observer = self._observer
        letters = kept_letters(self._dead_letters)
        if self._start_redrive is None or not letters:
            return
        observer.phase("the processor is mended; pykcl dead-letters redrive brings the record back")
        before = self._action_start()
        self._redrive_process = process = self._start_redrive()
        observer.logs.add(process.record_log)
        observer.wait(process.has_stopped, "pykcl dead-letters redrive to end")
        observer.logs.poll()
        if process.exit_code:
            observer.problems.append(f"the redrive ended with {process.exit_code}: {process.log_tail()}")
        count = sum(delivery.worker == REDRIVE for delivery in observer.logs.deliveries[before.deliveries :])
        observer.log(
            "redrive",
            f"{counted(len(letters), 'letter')}, mended processor",
            f"{counted(count, 'record')} processed",
            at=before.elapsed,
            tone="" if count else "bad",
        )

    def _drain(self) -> None:
        observer = self._observer
        observer.phase("the producer ends; the fleet drains the stream")
        before = self._action_start()
        observer.producer.stop()
        observer.wait(observer.is_drained, "every shard to be read to its end")
        outcome = f"all checkpointed after {observer.elapsed - before.elapsed:.1f}s"
        observer.log(
            "drain", f"{grouped(len(observer.producer.placed))} records produced", outcome, at=before.elapsed
        )

    def _stop_all(self) -> None:
        self._observer.phase("the last worker stops")
        names = self._observer.running()
        for name in names:
            self._observer.workers[name].terminate()
        self._await_end(names)

    def _evaluate(self) -> Verdict:
        observer = self._observer
        poison = None
        if self._start_redrive:
            poison = Poison(
                frozenset(observer.producer.poison),
                kept_letters(self._dead_letters),
                [delivery for delivery in observer.logs.deliveries if delivery.worker == REDRIVE],
            )
        verdict = evaluate(
            Evidence(
                produced=observer.producer.placed,
                acknowledged=observer.producer.kinesis_records,
                put_counts=observer.kinesis.put_counts(STREAM),
                deliveries=[delivery for delivery in observer.logs.deliveries if delivery.worker != REDRIVE],
                parents={shard.shard_id: shard.parents for shard in observer.shards()},
                kills=tuple(self._kills),
                java=self._java.name if self._java else None,
                poison=poison,
                split_children=self._split_children,
                merge_children=self._merge_children,
                terminated=self._terminated,
                problems=tuple(observer.problems),
            )
        )
        observer.phase("done")
        self._state.verdict = verdict
        return verdict

    def _pause(self) -> None:
        self._observer.phase("the fleet is at work")
        self._observer.observe_for(self._pace.pause)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _action_start(self) -> ActionStart:
        self._observer.logs.poll()
        return ActionStart(self._observer.elapsed, time.monotonic_ns(), len(self._observer.logs.deliveries))

    def _peers_deliver(self, shards: Sequence[str], former: str, since: int) -> list[Delivery]:
        """Wait until other workers have delivered from each of the shards; return the first delivery from each."""
        observer = self._observer
        observer.wait(
            lambda: len(observer.first_deliveries(shards, since, not_by=former)) == len(shards),
            f"peers to deliver from the shards of {former}",
        )
        return observer.first_deliveries(shards, since, not_by=former)

    def _children_deliver(self, parents: Sequence[str], children: Sequence[str], before: ActionStart) -> str:
        observer = self._observer

        def delivering() -> bool:
            ended = all(key not in observer.leases or observer.leases[key].is_ended for key in parents)
            return ended and len(observer.first_deliveries(children, before.deliveries)) == len(children)

        whose = "child delivers" if len(children) == 1 else "children deliver"
        if not observer.wait(delivering, f"the children of {' and '.join(parents)} to deliver"):
            return "not in time"
        return (
            f"{whose} after {_seconds(observer.first_deliveries(children, before.deliveries), before):.1f}s"
        )

    def _await_end(self, names: Sequence[str]) -> None:
        observer = self._observer
        workers = [observer.workers[name] for name in names]
        observer.wait(lambda: all(worker.has_stopped() for worker in workers), f"{' '.join(names)} to stop")
        for worker in workers:
            if worker.exit_code:
                observer.problems.append(
                    f"{worker.name} ended with exit code {worker.exit_code}: {worker.log_tail()}"
                )
        observer.logs.poll()


def _seconds(deliveries: Sequence[Delivery], before: ActionStart) -> float:
    return (max(delivery.at for delivery in deliveries) - before.at) / 1e9


def _after(new_owners: Sequence[Delivery], before: ActionStart) -> str:
    if not new_owners:
        return "no peer delivers"
    names = sorted({delivery.worker for delivery in new_owners})
    verb = "delivers" if len(names) == 1 else "deliver"
    return f"{' '.join(names)} {verb} after {_seconds(new_owners, before):.1f}s"


def create_scenario(
    aws: LocalAws,
    view: View,
    state: DemoState,
    *,
    pace: Pace,
    folder: Path,
    environment: Mapping[str, str],
    jars: Sequence[Path] | None,
) -> Scenario:
    """Set up a scenario on a local AWS that has its stream, to which the environment of this process points, too.

    folder: for logs. environment: of the workers. jars: for a Java worker; None for a run without one.
    """
    table, _ = connect(config(), SystemRuntime())
    # One attempt: a put that is sent twice because its response was late would not be counted twice by the producer.
    once = client_config(connect_timeout=10.0, read_timeout=60.0, connections=4)
    kinesis = new_session().client("kinesis", endpoint_url=aws.url, config=once)
    producer = Producer(kinesis, STREAM, seed=state.seed, rate=pace.rate)
    return Scenario(
        FleetObserver(aws.kinesis, table, producer, view, state),
        start_worker=lambda name: python_worker(name, folder, environment, folder / LETTERS),
        start_java=partial(java_worker, jars, folder, environment, aws.url) if jars else None,
        start_redrive=partial(start_redrive, folder, environment),
        dead_letters=folder / LETTERS,
        state=state,
        pace=pace,
    )
