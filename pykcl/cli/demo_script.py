"""The demo's script: what is done to the fleet, in order, and what is waited for after each deed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from pykcl.cli.demo_board import Board, counted, grouped, short
from pykcl.cli.demo_crew import DemoBroken, WorkerProcess, end_all
from pykcl.cli.demo_ledger import Delivery
from pykcl.cli.demo_verdict import Evidence, Kill, Verdict, judge
from pykcl.cli.demo_watch import STEP_SECONDS, Watch
from pykcl.cli.demo_worker import STREAM

SHARDS = 4
WORKERS = ("py-1", "py-2", "py-3")
JAVA_SECONDS = 90.0
"""For a Java worker until it has its share: its start, and it looks for leases only every two fail-over times."""
_KILL_ATTEMPTS = 20
_BURST = 200


@dataclass(frozen=True, slots=True)
class Pace:
    """pause: seconds of calm between two deeds, to look at. rate: user records per second."""

    pause: float
    rate: int


NORMAL = Pace(pause=9.5, rate=800)
FAST = Pace(pause=0.3, rate=800)


@dataclass(frozen=True, slots=True)
class Moment:
    """Just before a deed. elapsed: seconds since the start. at: monotonic nanoseconds. mark: deliveries so far."""

    elapsed: float
    at: int
    mark: int


class Script:
    """One performance, driven by the thread that calls `play`.

    hire: starts a Python worker of that name. hire_java: starts a Java worker, if there shall be one.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        hire: Callable[[str], WorkerProcess],
        hire_java: Callable[[], WorkerProcess] | None = None,
        board: Board,
        pace: Pace,
    ) -> None:
        self._watch = watch
        self._hire = hire
        self._hire_java = hire_java
        self._java: WorkerProcess | None = None
        self._board = board
        self._pace = pace
        self._random = Random(board.seed)  # noqa: S311 - which shard and which worker, no secret
        self._kills: list[Kill] = []
        self._terminated: str | None = None
        self._split_children: tuple[str, ...] = ()
        self._merge_children: tuple[str, ...] = ()

    def play(self, *, keep: bool) -> Verdict:
        """The whole script. keep: leave the last worker running. Raises DemoBroken."""
        self._start()
        deeds = [self._kill_one, self._split_one, self._merge_two, self._terminate_one]
        if self._hire_java:
            # Before any shard has ended: Java reckons its share from all rows, and with those of ended shards among
            # them may not ask for any of the few that are left.
            deeds[0:1] = [self._start_java, self._kill_one, self._kill_java]
        for deed in deeds:
            self._calm()
            deed()
        self._calm()
        self._drain()
        if not keep:
            self._stop_all()
        return self._judge()

    def clean_up(self) -> None:
        """End the producer and the workers. For every way out."""
        end_all(list(self._watch.workers.values()))
        self._watch.producer.stop()

    # -- the deeds -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        watch = self._watch
        watch.phase(f"three workers start and share {self._board.shards_at_start} shards")
        for name in WORKERS:
            self._add(self._hire(name))
        watch.producer.start()
        self._await_shared()
        watch.log("workers up", " ".join(WORKERS), f"leases {self._leases(WORKERS)}")

    def _start_java(self) -> None:
        """Into a table that has leases: into an empty one Java would wait for up to thirty seconds, by lot."""
        watch = self._watch
        if self._hire_java is None:
            return
        watch.phase("a Java KCL worker starts and takes its share")
        before = self._now()
        self._java = self._hire_java()
        self._add(self._java)
        self._await_shared(JAVA_SECONDS)
        outcome = f"leases {self._leases(watch.workers)} after {watch.elapsed - before.elapsed:.1f}s"
        watch.log("Java joins", self._java.name, outcome, at=before.elapsed)

    def _add(self, worker: WorkerProcess) -> None:
        self._watch.workers[worker.name] = worker
        self._watch.ledgers.add(worker.ledger)

    def _leases(self, names: Iterable[str]) -> str:
        loads = self._watch.loads()
        return "/".join(str(loads[name]) for name in names)

    def _await_shared(self, seconds: float = STEP_SECONDS) -> None:
        watch, names = self._watch, self._watch.running()
        most = self._board.shards_at_start - len(names) + 1
        if not watch.wait(
            lambda: watch.is_shared(names, most), "the workers to share the shards", seconds=seconds
        ):
            words = "\n".join(f"{name}: {watch.workers[name].log_tail()}" for name in names)
            raise DemoBroken(
                f"the workers did not share the shards: {dict(watch.loads())}. Last words:\n{words}"
            )

    def _kill_one(self) -> None:
        """kill -9 in the middle of a batch: the victim stands still while it is looked at, then it dies."""
        self._await_shared()
        loads = self._watch.loads()
        most = max(loads[name] for name in WORKERS)
        self._kill_it(self._random.choice([name for name in WORKERS if loads[name] == most]))

    def _kill_java(self) -> None:
        """The same, with whoever is left of the Python workers as heirs."""
        if self._java is not None:
            self._kill_it(self._java.name)

    def _kill_it(self, victim: str) -> None:
        watch = self._watch
        watch.phase(f"kill -9 {victim} in the middle of a batch")
        kill = self._bad_moment(victim)
        before = self._now()
        watch.workers[victim].kill()
        watch.phase(f"{victim} is dead; its leases expire and move")
        heirs = self._peers_deliver(kill.leases, victim, before.mark)
        detail = f"{counted(len(kill.leases), 'lease')}, {kill.undelivered} undelivered"
        watch.log(f"kill -9 {victim}", detail, _after(heirs, before), at=before.elapsed)
        self._kills.append(kill)

    def _bad_moment(self, victim: str) -> Kill:
        """Freeze the victim when it owns leases and has begun, but not finished, a batch of a burst."""
        watch, process = self._watch, self._watch.workers[victim]
        for _ in range(_KILL_ATTEMPTS):
            watch.scan()
            ranges = [lease.hash_range for lease in watch.owned_by(victim) if lease.hash_range is not None]
            if ranges:
                watch.producer.burst(_BURST, ranges)
            watch.wait(lambda: watch.ledgers.in_hand(victim) > 0, f"{victim} to begin a batch", quick=True)
            process.freeze()
            kill = self._look_at(victim)
            if kill.leases and kill.undelivered and kill.in_hand:
                return kill
            process.thaw()
        raise DemoBroken(f"{victim} was never found in the middle of a batch, {_KILL_ATTEMPTS} times")

    def _look_at(self, victim: str) -> Kill:
        watch = self._watch
        watch.ledgers.poll()
        watch.scan()
        leases = tuple(lease.key for lease in watch.owned_by(victim))
        counts = watch.kinesis.put_counts(STREAM)
        undelivered = sum(counts.get(key, 0) - len(watch.ledgers.sequences.get(key, ())) for key in leases)
        return Kill(victim, leases, undelivered, watch.ledgers.in_hand(victim))

    def _split_one(self) -> None:
        watch = self._watch
        shard = self._random.choice(watch.open_shards()).shard_id
        watch.phase(f"split {short(shard)}: its children wait until it has ended")
        before = self._now()
        watch.kinesis.split(STREAM, shard)
        self._split_children = children = watch.children_of(shard)
        outcome = self._children_deliver((shard,), children, before)
        detail = f"SHARD_END, then {' '.join(map(short, children))}"
        watch.log(f"split {short(shard)}", detail, outcome, at=before.elapsed)

    def _merge_two(self) -> None:
        watch = self._watch
        parents = tuple(shard.shard_id for shard in self._random.choice(watch.neighbours()))
        names = "+".join(map(short, parents))
        watch.phase(f"merge {names}: the child waits until both have ended")
        before = self._now()
        watch.kinesis.merge(STREAM, *parents)
        self._merge_children = children = watch.children_of(parents[0])
        outcome = self._children_deliver(parents, children, before)
        detail = f"SHARD_END twice, then {' '.join(map(short, children))}"
        watch.log(f"merge {names}", detail, outcome, at=before.elapsed)

    def _terminate_one(self) -> None:
        watch = self._watch
        watch.scan()
        candidates = [name for name in WORKERS if name in watch.running() and watch.owned_by(name)]
        if not candidates:
            raise DemoBroken(f"no running Python worker owns a lease: {dict(watch.loads())}")
        name = self._random.choice(candidates)
        watch.phase(f"SIGTERM {name}: it finishes, checkpoints and releases")
        before, notes = self._now(), len(watch.ledgers.notes)
        watch.workers[name].terminate()
        self._await_end([name])
        released = [
            note
            for note in watch.ledgers.notes[notes:]
            if (note.kind, note.worker) == ("LeaseReleased", name)
        ]
        if not released:
            watch.troubles.append(f"{name} released no lease on SIGTERM")
        seconds = (max((note.at for note in released), default=before.at) - before.at) / 1e9
        heirs = self._peers_deliver([note.shard for note in released], name, before.mark)
        detail = f"{counted(len(released), 'lease')} released in {seconds:.2f}s"
        watch.log(f"SIGTERM {name}", detail, _after(heirs, before), at=before.elapsed)
        self._terminated = name

    def _drain(self) -> None:
        watch = self._watch
        watch.phase("the producer ends; the fleet drains the stream")
        before = self._now()
        watch.producer.stop()
        watch.wait(watch.is_drained, "every shard to be read to its end")
        outcome = f"all checkpointed after {watch.elapsed - before.elapsed:.1f}s"
        watch.log(
            "drain", f"{grouped(len(watch.producer.placed))} records produced", outcome, at=before.elapsed
        )

    def _stop_all(self) -> None:
        self._watch.phase("the last worker stops")
        names = self._watch.running()
        for name in names:
            self._watch.workers[name].terminate()
        self._await_end(names)

    def _judge(self) -> Verdict:
        watch = self._watch
        verdict = judge(
            Evidence(
                produced=watch.producer.placed,
                acknowledged=watch.producer.kinesis_records,
                put_counts=watch.kinesis.put_counts(STREAM),
                deliveries=watch.ledgers.deliveries,
                parents={shard.shard_id: shard.parents for shard in watch.shards()},
                kills=tuple(self._kills),
                java=self._java.name if self._java else None,
                split_children=self._split_children,
                merge_children=self._merge_children,
                terminated=self._terminated,
                troubles=tuple(watch.troubles),
            )
        )
        watch.phase("done")
        self._board.verdict = verdict
        return verdict

    def _calm(self) -> None:
        self._watch.phase("the fleet is at work")
        self._watch.watch_for(self._pace.pause)

    # -- parts of them -------------------------------------------------------------------------------------------

    def _now(self) -> Moment:
        self._watch.ledgers.poll()
        return Moment(self._watch.elapsed, time.monotonic_ns(), len(self._watch.ledgers.deliveries))

    def _peers_deliver(self, shards: Sequence[str], former: str, mark: int) -> list[Delivery]:
        """Wait until others have delivered from each of the shards; the first delivery from each."""
        watch = self._watch
        watch.wait(
            lambda: len(watch.firsts(shards, mark, not_by=former)) == len(shards),
            f"peers to deliver from the shards of {former}",
        )
        return watch.firsts(shards, mark, not_by=former)

    def _children_deliver(self, parents: Sequence[str], children: Sequence[str], before: Moment) -> str:
        watch = self._watch

        def delivering() -> bool:
            ended = all(key not in watch.leases or watch.leases[key].is_ended for key in parents)
            return ended and len(watch.firsts(children, before.mark)) == len(children)

        whose = "child delivers" if len(children) == 1 else "children deliver"
        if not watch.wait(delivering, f"the children of {' and '.join(parents)} to deliver"):
            return "not in time"
        return f"{whose} after {_seconds(watch.firsts(children, before.mark), before):.1f}s"

    def _await_end(self, names: Sequence[str]) -> None:
        watch = self._watch
        workers = [watch.workers[name] for name in names]
        watch.wait(lambda: all(worker.has_stopped() for worker in workers), f"{' '.join(names)} to stop")
        for worker in workers:
            if worker.exit_code:
                watch.troubles.append(
                    f"{worker.name} ended with exit code {worker.exit_code}: {worker.log_tail()}"
                )
        watch.ledgers.poll()


def _seconds(deliveries: Sequence[Delivery], before: Moment) -> float:
    return (max(delivery.at for delivery in deliveries) - before.at) / 1e9


def _after(heirs: Sequence[Delivery], before: Moment) -> str:
    if not heirs:
        return "no peer delivers"
    names = sorted({delivery.worker for delivery in heirs})
    verb = "delivers" if len(names) == 1 else "deliver"
    return f"{' '.join(names)} {verb} after {_seconds(heirs, before):.1f}s"
