"""`Fleet`: a local AWS, records, and workers of both kinds; what is done to them is written down for the verdict.

Everything waits for a condition with a deadline, from what the workers delivered, logged or wrote into the lease table.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import npm_emulators
from fleet_aggregates import OtherEncoder
from fleet_clock import now_millis
from fleet_evidence import END, HARNESS, PUTS, REQUESTS, STREAM, TABLE, Evidence, load
from fleet_processes import PykclWorker, Server, WorkerProcess
from fleet_reaper import Reaper
from fleet_recording import POLICY_VARIABLE, WORK_VARIABLE
from fleet_rows import SHARD_END, LeaseRows
from fleet_stream import CountingProducer, Stream, client
from java_worker import JavaWorker, Timing
from kclpy_worker import KclpyWorker, KclRsWorker
from multilangd_worker import MultilangdWorker

from pykcl.model.shard import HashRange

PATIENCE = 120.0


class Overdue(AssertionError):
    """What was waited for did not come; says what the workers last said."""


class Fleet:
    """Use as a context manager: at its end no process of it is left. say: gets a line of progress.

    kinesis: "local", or "kinesis-local" from npm as a second opinion (raises npm_emulators.Unavailable where it is missing).
    aggregated: share of user records that come in aggregates; drawn from the seed if None. Every second aggregate is by
    aws-kinesis-agg. server: what makes the local AWS, of a folder and a number of shards. balances: leases of unfinished
    shards of each living worker, whenever balance was waited for. options: of Config, for all pykcl workers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        shards: int = 3,
        seed: int = 1,
        rate: int = 40,
        aggregated: float | None = None,
        timing: Timing | None = None,
        kinesis: str = "local",
        server: Callable[[Path, int], Any] = Server,
        say: Callable[[str], None] = print,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self._options = dict(options or {})
        self.timing = timing or Timing()
        self._shards, self._seed, self._rate = shards, seed, rate
        self._aggregated, self._kinesis_kind, self._say = aggregated, kinesis, say
        self._new_server = server
        self._begun = time.monotonic()
        self._stack = contextlib.ExitStack()
        self._pause = threading.Event()
        self._kinesis_url: str | None = None
        self._done: set[tuple[str, str, int]] = set()
        self._delivered: Counter[str] = Counter()
        self.workers: dict[str, WorkerProcess] = {}
        self.balances: list[dict[str, int]] = []

    def __enter__(self) -> Fleet:
        with contextlib.ExitStack() as stack:
            self._facts = stack.enter_context((self.folder / HARNESS).open("w", encoding="utf-8"))
            puts = stack.enter_context((self.folder / PUTS).open("w", encoding="utf-8"))
            self._reaper = stack.enter_context(Reaper())
            self.server = self._new_server(self.folder, self._shards)
            stack.callback(self.server.end)
            self.rows = LeaseRows(self.folder / REQUESTS, TABLE)
            kinesis = client(self._url_of_kinesis(stack))
            stack.callback(kinesis.close)
            self.stream = Stream(kinesis, self.say)
            self.producer = CountingProducer(
                kinesis, puts, seed=self._seed, rate=self._rate, aggregated=self._aggregated,
                other=stack.enter_context(OtherEncoder()),
            )  # fmt: skip
            stack.callback(self.producer.stop)
            stack.callback(self._end_workers)
            self._stack = stack.pop_all()
        return self

    def _url_of_kinesis(self, stack: contextlib.ExitStack) -> str:
        if self._kinesis_kind == "local":
            return self.server.url
        emulator = stack.enter_context(npm_emulators.kinesis_local())
        self._kinesis_url = emulator.url
        with contextlib.closing(client(emulator.url)) as kinesis:
            kinesis.create_stream(StreamName=STREAM, ShardCount=self._shards)
            kinesis.get_waiter("stream_exists").wait(
                StreamName=STREAM, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
            )
        return emulator.url

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end_workers(self) -> None:
        for worker in self.workers.values():
            worker.end()

    # -- workers -----------------------------------------------------------------------------------------------

    def java(self, worker: str, version: str, **more: Any) -> JavaWorker:
        """Start one; see JavaWorker."""
        self._note("started", worker=worker)
        more = {"timing": self.timing, "kinesis_url": self._kinesis_url, **more}
        started = JavaWorker(self.folder, self.server.url, worker, version, reaper=self._reaper, **more)
        return self._hired(started)

    def pykcl(
        self, worker: str, *, policy: str = "never", work: float = 0.0, **options: object
    ) -> PykclWorker:
        """Start one that checkpoints after each batch, as by default, and beyond that by its policy. options: of Config."""
        self._note("started", worker=worker)
        usual = {
            "failover_time": self.timing.failover_time, "idle_time_between_reads": self.timing.idle_time_between_reads,
            "parent_shard_poll_interval": 1.0, "shard_sync_interval": self.timing.shard_sync,
            "cleanup_interval": self.timing.cleanup,
        }  # fmt: skip
        started = PykclWorker(
            self.folder, self.server.url, worker, {**usual, **self._options, **options}, kinesis_url=self._kinesis_url,
            more={POLICY_VARIABLE: policy, WORK_VARIABLE: str(work)},
        )  # fmt: skip
        return self._hired(started)

    def multilangd(self, worker: str, **more: Any) -> MultilangdWorker:
        """Start one; see MultilangdWorker."""
        self._note("started", worker=worker)
        return self._hired(MultilangdWorker(self.folder, worker, **more))

    def kclpy(self, worker: str, package: Path, how: str) -> KclpyWorker:
        """Start one; see KclpyWorker."""
        self._note("started", worker=worker)
        more = {"reaper": self._reaper, "package": package, "how": how}
        return self._hired(KclpyWorker(self.folder, self.server.url, worker, **more))

    def kcl_rs(self, worker: str, python: Path) -> KclRsWorker:
        """Start one; see KclRsWorker."""
        self._note("started", worker=worker)
        more = {"reaper": self._reaper, "python": python}
        return self._hired(KclRsWorker(self.folder, self.server.url, worker, **more))

    def _hired(self, worker: Any) -> Any:
        self.workers[worker.worker] = worker
        self.say(f"started {worker.worker}")
        return worker

    def kill(self, worker: WorkerProcess) -> None:
        """SIGKILL, to a Java worker's record processors too."""
        self._leave("killed", worker)
        worker.kill() if isinstance(worker, JavaWorker) else worker.send(signal.SIGKILL)
        self.wait_for(f"{worker.worker} to be gone", lambda: worker.noted_exit)

    def terminate(self, worker: WorkerProcess) -> None:
        """SIGTERM, and wait until it is gone."""
        self._leave("terminated", worker)
        worker.send(signal.SIGTERM)
        self.wait_for(f"{worker.worker} to be gone", lambda: worker.noted_exit)

    def _leave(self, how: str, worker: WorkerProcess) -> None:
        self._tick()
        self._note(how, worker=worker.worker)
        worker.leaving = True
        cpu = f" after {worker.cpu_seconds:.1f} s of CPU" if isinstance(worker, JavaWorker) else ""
        self.say(f"{how} {worker.worker}, owner of {len(self.leases_of(worker))} leases{cpu}")

    @contextlib.contextmanager
    def frozen(self, worker: WorkerProcess) -> Iterator[None]:
        """SIGSTOP within the block."""
        self._note("frozen", worker=worker.worker)
        worker.frozen = True
        worker.freeze() if isinstance(worker, JavaWorker) else worker.send(signal.SIGSTOP)
        self.say(f"froze {worker.worker}, owner of {len(self.rows.owned_by(worker.worker))} leases")
        try:
            yield
        finally:
            worker.thaw() if isinstance(worker, JavaWorker) else worker.send(signal.SIGCONT)
            worker.frozen = False
            self._note("thawed", worker=worker.worker)
            self.say(f"thawed {worker.worker}")

    # -- the stream --------------------------------------------------------------------------------------------

    def put(self, count: int) -> None:
        """So many user records over all open shards, now."""
        ranges = list(self.open_ranges().values())
        self.producer.burst(count, ranges)
        self.say(f"put {count} records into {len(ranges)} shards")

    def open_ranges(self) -> dict[str, HashRange]:
        """The hash keys of each open shard, in their order."""
        found = {}
        for shard in self.stream.shards():
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                keys = shard["HashKeyRange"]
                found[shard["ShardId"]] = HashRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"]))
        return dict(sorted(found.items(), key=lambda one: one[1].first))

    def reshard(self, what: str) -> None:
        """ "split" or "merge"."""
        self.stream.reshard(what, Random(self._seed))

    # -- waiting -----------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        self._say(f"t+{time.monotonic() - self._begun:6.1f} s  {line}")

    def wait_for(self, what: str, condition: Callable[[], bool], seconds: float = PATIENCE) -> float:
        """Seconds until it held. Raises Overdue."""
        begun = time.monotonic()
        while True:
            self._tick()
            if condition():
                self.say(f"{what}: after {time.monotonic() - begun:.1f} s")
                return time.monotonic() - begun
            if time.monotonic() - begun >= seconds:
                raise Overdue(f"No {what} within {seconds:g} s.\n{self._last_words()}")
            self._pause.wait(0.05)

    def wait_until_started(self, *workers: WorkerProcess) -> float:
        names = ", ".join(worker.worker for worker in workers)
        return self.wait_for(f"{names} to start", lambda: all(worker.has_started for worker in workers))

    def wait_until_balanced(self) -> float:
        """Until every lease of an unfinished shard has an owner that runs and has begun to process it, and nobody has two
        more than another."""
        seconds = self.wait_for("balance", lambda: self.balanced() and self.all_begun())
        self.balances.append(self._counts())
        return seconds

    def wait_until_delivered(self) -> float:
        """Until all that was put has been finished, and the table says so of every shard."""
        return self.wait_for("all records delivered", lambda: self.missing() == 0 and not self.unsettled())

    def balanced(self) -> bool:
        counts = self._counts().values()
        return self.all_owned() and max(counts) - min(counts) <= 1

    def all_owned(self) -> bool:
        """Whether every lease of an unfinished shard has an owner that lives."""
        unfinished = sum(row.checkpoint != SHARD_END for row in self.rows.rows.values())
        return sum(self._counts().values()) == unfinished > 0

    def all_begun(self) -> bool:
        """Whether every lease of an unfinished shard has an owner that lives and has begun to process it."""
        return self.all_owned() and all(
            key in worker.processors for worker in self._living() for key in self.leases_of(worker)
        )

    def _living(self) -> list[WorkerProcess]:
        return [one for one in self.workers.values() if one.runs and not one.leaving and not one.frozen]

    def _counts(self) -> dict[str, int]:
        """Leases of unfinished shards, of each worker that lives."""
        return {worker.worker: len(self.leases_of(worker)) for worker in self._living()}

    def all_known(self) -> bool:
        """Whether every shard has had a row."""
        keys = {write.key for write in self.rows.writes}
        return all(shard["ShardId"] in keys for shard in self.stream.shards())

    def leases_of(self, worker: WorkerProcess) -> list[str]:
        """Of unfinished shards."""
        owned = self.rows.owned_by(worker.worker)
        return [key for key in owned if self.rows.rows[key].checkpoint != SHARD_END]

    def missing(self) -> int:
        """User records that were put and nobody has finished."""
        return self.producer.count - len(self._done)

    def missing_of(self, shard: str) -> int:
        """Kinesis records that were put there and nobody has finished; none of them aggregates."""
        done = {sequence for key, sequence, _ in self._done if key == shard}
        return len(self.producer.sequences.get(shard, ())) - len(done)

    def unsettled(self) -> list[str]:
        """What the table still lacks, in words."""
        found = []
        for shard in self.stream.shards():
            key, row = shard["ShardId"], self.rows.rows.get(shard["ShardId"])
            if "EndingSequenceNumber" in shard["SequenceNumberRange"]:
                if row is not None and row.checkpoint != SHARD_END:
                    found.append(f"{key} is closed and not at SHARD_END")
            elif row is None or row.owner is None:
                found.append(f"{key} has no {'lease' if row is None else 'owner'}")
            elif key in self.producer.last and row.checkpoint < self.producer.last[key]:
                found.append(f"{key} is not checkpointed to its end")
        return found

    def _tick(self) -> None:
        self.rows.poll()
        for worker in self.workers.values():
            if worker.noted_exit:
                continue
            ended = not worker.runs
            worker.poll()
            self._done.update(worker.finished)
            self._delivered[worker.worker] += len(worker.finished)
            worker.finished.clear()
            if ended:
                self._note("exited", worker=worker.worker, code=worker.process.returncode)
                worker.noted_exit = True
                if not worker.leaving:
                    code = worker.process.returncode
                    raise Overdue(f"{worker.worker} ended by itself with {code}.\n{self._last_words()}")
        if self.producer.failure is not None:
            raise self.producer.failure

    def _last_words(self) -> str:
        words = [f"{self.missing()} of {self.producer.count} records missing; {'; '.join(self.unsettled())}"]
        words += [f"{key}: {row}" for key, row in sorted(self.rows.rows.items())]
        for worker in self.workers.values():
            text = worker.log.read_text("utf-8", "replace") if worker.log.exists() else ""
            words += [f"-- {worker.worker}", *(line[:300] for line in text.splitlines()[-8:])]
        return "\n".join(words)

    # -- the end -----------------------------------------------------------------------------------------------

    def finish(self) -> Evidence:
        """Stop the producer, then the workers that are left one after the other, and read what they wrote down."""
        self.producer.stop()
        self._tick()
        shards, left = self.stream.shards(), self.unsettled()
        for worker in self.workers.values():
            if not worker.leaving:
                self.terminate(worker)
        parents = {
            shard["ShardId"]: [
                shard[name] for name in ("ParentShardId", "AdjacentParentShardId") if name in shard
            ]
            for shard in shards
        }
        end = {"parents": parents, "unsettled": left, "faults": {}}
        (self.folder / END).write_text(json.dumps(end), "utf-8")
        return load(self.folder)

    @property
    def java_workers(self) -> list[JavaWorker]:
        return [worker for worker in self.workers.values() if isinstance(worker, JavaWorker)]

    def kinds(self) -> dict[str, str]:
        """ "pykcl" ("multilangd" of it), or "Java" and its version, of each worker."""
        others = {worker.worker: f"Java {worker.version}" for worker in self.java_workers}
        others |= dict.fromkeys(
            (name for name, worker in self.workers.items() if isinstance(worker, MultilangdWorker)),
            "multilangd",
        )
        return {name: others.get(name, "pykcl") for name in self.workers}

    def delivered(self, worker: WorkerProcess) -> int:
        """User records that it has finished, repeats included."""
        self._tick()
        return self._delivered[worker.worker]

    def _note(self, what: str, **fields: object) -> None:
        self._facts.write(json.dumps({"what": what, **fields, "t": now_millis()}) + "\n")
        self._facts.flush()
