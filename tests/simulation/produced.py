"""Simulations of producers (F24): programs that put into the stream that a fleet of workers reads.

Between a producer and the stream requests are refused, in part or whole, get lost, come late, or have no answer; and
shards are split and merged under it. A program is closed at any time, stands still, or dies.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pykcl.errors import BufferFull, FlushTimedOut, PyKclError, SetupError, TemporaryError, Throttled
from pykcl.events import Event
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.shard import ShardListing, StreamDescription
from pykcl.processor import Batch
from pykcl.producer.producer import Producer, ProducerSeams, PutFailed
from pykcl.testing.fleet import STREAM
from pykcl.testing.memory.stream import MemoryStream
from pykcl.testing.simulation import chaos
from pykcl.testing.simulation.faults import Freezes
from pykcl.testing.simulation.guarantees import Guarantee
from pykcl.testing.simulation.processors import FaultyProcessor
from tests.simulation.chaos import FleetChaos
from tests.simulation.checkers.puts import Program, Put, PutChecker
from tests.simulation.quiescence import FleetQuiescence
from tests.simulation.world import CheckedFleet, CheckedWorld

_MOST_PROGRAMS = 3
_TIMEOUT = 8.0
"""Seconds after which a request without an answer fails."""
_THREADS_END = 2 * _TIMEOUT
_CLOSES_LATE = 0.5
_LENGTHS = (0, 0, 0, 20, 20, 2000, 2000, 60_000)
"""Bytes that are added to payloads; the most are more than an aggregate takes."""
_CLOSED = 300.0
"""Seconds in which everything is put once the stream takes it again."""


class ConsumingProcessor(FaultyProcessor):
    """FaultyProcessor whose batches are noted."""

    puts: PutChecker

    def process_records(self, batch: Batch) -> Any:
        self.puts.consumed(batch.records)
        return super().process_records(batch)


class ProducedWorld(CheckedWorld):
    """CheckedWorld with programs that put. is_calm: their faults are over."""

    def _create_checkers(self) -> None:
        super()._create_checkers()
        self.puts = PutChecker(self.violations, self.numbers.shorten)
        for name in ("sent", "landed", "consumed", "taken", "gave_up", "_has_outcome"):
            # A producer goes on after an error, as a worker does.
            setattr(self.puts, name, self.simulation.insist(getattr(self.puts, name)))
        # Programs put more than workers with small pages read while a simulation lasts.
        self.options["max_records"] = 100
        self.is_calm = False
        self.takes_nothing_until = self.denies_until = 0.0
        self.standing_still = Freezes(lambda: self.simulation.now)
        self.resharding = chaos.Producer(self, self.faults.rng("F24.reshard"))

    def meets(self, fault: str, host: str) -> bool:
        """Return whether this fault happens now to a producer."""
        return not self.is_calm and self.faults.happens(fault, host)

    def land(self, stream: MemoryStream, records: Sequence[NewRecord]) -> list[PutAnswer]:
        """Let records arrive in the stream."""
        answers = stream.put(records)
        for record, answer in zip(records, answers, strict=True):
            assert answer.shard_id is not None, answer
            shard = self.record_log.shard(answer.shard_id)
            seen = self.puts.landed(
                record, answer.shard_id, answer.sequence_number, self.record_log.ranges[answer.shard_id]
            )
            short, now = int(self.numbers.shorten(answer.sequence_number)), self.kinesis_millis()
            for number in range(seen):
                shard.add((short, number), now)
            if not seen:
                shard.drop(short, now)
        return answers

    def _processor(self, name: str, stop: Callable[[], bool]) -> FaultyProcessor:
        processor = ConsumingProcessor(
            name, self.simulation, self.faults, self.delivery,
            by_hand=self.options["checkpoint_mode"] == "manual", inner=None, stop_worker=stop,
        )  # fmt: skip
        processor.puts = self.puts
        return processor


class FaultyPutStream:
    """An `interfaces.PutStream` for one program. A request has one fate."""

    def __init__(self, world: ProducedWorld, host: str) -> None:
        self._world, self._host = world, host
        self._runtime = world.simulation.runtime(host)
        self._inner = MemoryStream(world.kinesis, STREAM, self._runtime, world.simulation.switch)
        self._fates: dict[str, Callable[[Sequence[NewRecord]], list[PutAnswer]]] = {
            "F24.throttled": self._throttle,
            "F24.failed": self._fail_with_some,
            "F24.refused": self._refuse,
            "F24.lost": self._lose_the_answer,
            "F24.slow": self._answer_late,
            "F24.unsent": self._lose,
            "F24.late": self._let_arrive_late,
        }

    @property
    def name(self) -> str:
        return STREAM

    def describe(self) -> StreamDescription:
        self._refuse_while_down()
        return self._inner.describe()

    def list_shards(self) -> ShardListing:
        world = self._world
        self._refuse_while_down()
        listing = self._inner.list_shards()
        if world.meets("F24.stale", self._host):
            return world.listing_before(world.faults.rng("F24.stale").uniform(0.5, 5))
        if len(listing.shards) > 1 and world.meets("F24.part", self._host):
            return ShardListing(listing.shards[: len(listing.shards) // 2], complete=False)
        return listing

    def put(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        world = self._world
        world.simulation.switch()
        world.puts.sent(records)
        self._refuse_while_down()
        if world.simulation.now < world.denies_until and not world.is_calm:
            raise SetupError("AccessDeniedException: PutRecords is not allowed.")
        if world.meets("F24.reshard", self._host):
            world.resharding.reshard()
        for fault, fate in self._fates.items():
            if world.meets(fault, self._host):
                return fate(records)
        return self._land(records)

    def _land(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        return self._world.land(self._inner, records)

    def _wait(self, seconds: float) -> None:
        self._runtime.event().wait(seconds)

    def _refuse_while_down(self) -> None:
        world = self._world
        if world.simulation.now < world.takes_nothing_until and not world.is_calm:
            self._wait(world.faults.rng("F24.down").uniform(0, 1))
            raise TemporaryError("ServiceUnavailable")

    # -- fates of a request ----------------------------------------------------------------------------------------

    def _throttle(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        return self._refuse_some(records, "F24.throttled", "ProvisionedThroughputExceededException", 0.0)

    def _fail_with_some(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        return self._refuse_some(records, "F24.failed", "InternalFailure", 0.5)

    def _refuse_some(
        self, records: Sequence[NewRecord], fault: str, error: str, stored: float
    ) -> list[PutAnswer]:
        """Refuse some records. stored: share of these that are stored all the same."""
        rng = self._world.faults.rng(fault)
        is_refused = [rng.random() < 0.5 for _ in records]
        is_there = [not refused or rng.random() < stored for refused in is_refused]
        arrived = [record for record, there in zip(records, is_there, strict=True) if there]
        answers = iter(self._land(arrived) if arrived else ())
        found = [next(answers) if there else PutAnswer(None, error) for there in is_there]
        return [
            PutAnswer(None, error) if refused else answer
            for refused, answer in zip(is_refused, found, strict=True)
        ]

    def _refuse(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        raise self._world.faults.rng("F24.refused").choice([Throttled, TemporaryError])("refused")

    def _lose_the_answer(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        self._land(records)
        self._wait(self._world.faults.rng("F24.lost").choice([0, _TIMEOUT]))
        raise TemporaryError("ReadTimeout")

    def _answer_late(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        rng = self._world.faults.rng("F24.slow")
        before, behind = rng.uniform(0, _TIMEOUT / 2), rng.uniform(0, _TIMEOUT / 2)
        self._wait(before)
        answers = self._land(records)
        self._wait(behind)
        return answers

    def _lose(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        self._wait(_TIMEOUT)
        raise TemporaryError("ConnectTimeout")

    def _let_arrive_late(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        simulation = self._world.simulation
        after = self._world.faults.rng("F24.late").uniform(0, 2 * _TIMEOUT)

        def arrive() -> None:
            simulation.sleep(after)
            self._land(records)

        simulation.spawn("arriving", "network", arrive)
        self._wait(_TIMEOUT)
        raise TemporaryError("ReadTimeout")


@dataclass(frozen=True, slots=True)
class Habits:
    """Numbers that a program draws once. flushes: share of its bursts. close_timeout: while its faults last."""

    threads: int
    burst: int
    pause: float
    flushes: float
    close_timeout: float


class Putting:
    """A program with a producer in a process of its own."""

    def __init__(self, name: str, world: ProducedWorld) -> None:
        self.name, self._world = name, world
        rng = random.Random(f"{world.simulation.seed}/{name}")
        self._options: dict[str, Any] = {
            "ordered": rng.random() < 0.5,
            "aggregate": rng.random() < 0.75,
            "linger": rng.choice([0.0, 0.1, 1.0]),
            "max_pending_bytes": rng.choice([3000, 20_000, 200_000]),
            "on_full": rng.choice(["block", "block", "raise"]),
            "record_ttl": rng.choice([None, None, None, 4.0, 20.0]),
            "rate_limit": rng.choice([0.02, 1.0, 1.0]),
            "connections": rng.choice([1, 2, 8]),
        }
        self._habits = Habits(
            rng.randint(1, 3), rng.choice([1, 5, 20]), rng.choice([0.2, 2.0]), rng.choice([0.05, 0.5]),
            rng.choice([0.0, 1.0, 10.0]),
        )  # fmt: skip
        self._book = world.puts.programs[name] = Program(
            self._options["max_pending_bytes"], self._options["ordered"]
        )
        self._runtime = world.simulation.runtime(name)
        self._asked = self._runtime.event()
        self._producer = self._new_producer()
        self._main = world.simulation.spawn(f"{name}-main", name, self._run)

    @property
    def is_over(self) -> bool:
        return self._main.finished

    def ask_to_end(self) -> None:
        self._asked.set()

    def kill(self) -> None:
        """End the process; nobody hears of its records any more."""
        self._book.is_killed = True
        self._world.simulation.kill(self.name)

    def emit(self, event: Event) -> None:
        """Hear an event of the producer."""
        self._world.simulation.trace.add(self._world.simulation.now, f"{self.name}: {event}")

    def _new_producer(self) -> Producer:
        seams = ProducerSeams(
            runtime=self._runtime, stream=lambda: FaultyPutStream(self._world, self.name), events=self
        )
        return Producer._with(
            seams, STREAM, on_failure=lambda record, _: self._world.puts.gave_up(record), **self._options
        )

    def _run(self) -> None:
        while not self._has_started():
            if self._asked.wait(1.0):
                return
        spawn = self._world.simulation.spawn
        threads = [
            spawn(f"put-{number}", self.name, partial(self._put_many, number))
            for number in range(self._habits.threads)
        ]
        self._asked.wait()
        self._close()
        for thread in threads:
            thread.join()
        self._world.puts.check_reports(self.name)
        self._threads_end()
        delivery = self._producer._delivery
        # A second outcome of a future raises in the producer, which goes on; but it is counted twice.
        pending = 0 if delivery is None else delivery.pending
        self._world.violations.expect(
            not pending, Guarantee.PUT_DELIVERED, f"{self.name} was closed, and {pending} records are pending"
        )

    def _has_started(self) -> bool:
        try:
            self._producer.start()
        except TemporaryError:
            return False
        return True

    # -- records ---------------------------------------------------------------------------------------------------

    def _put_many(self, thread: int) -> None:
        """Put records until the producer is closed, which may be in the midst of a call."""
        habits, rng = self._habits, random.Random(f"{self._world.simulation.seed}/{self.name}/{thread}")
        count = 0
        while not self._producer.closed:
            for _ in range(rng.randint(1, habits.burst)):
                count += 1
                length = rng.choice(_LENGTHS)
                self._put(f"{self.name}.{thread}.{count}.{'x' * length}", thread, rng)
            if rng.random() < habits.flushes:
                self._flush(rng.choice([None, 1.0, 5.0]))
            self._runtime.event().wait(rng.uniform(0, habits.pause))

    def _put(self, data: str, thread: int, rng: random.Random) -> None:
        # Nobody can say in which order two threads put records of one key.
        key = f"{thread}.{rng.randrange(10)}"
        hash_key = int(key[-1]) << 124 if key[-1] in "02" else None
        put: Put = self._world.puts.begins(self.name, data.encode(), key)
        try:
            future = self._producer.put(data, key, hash_key, timeout=rng.choice([None, 0.5, 5.0]))
        except BufferFull:
            self._runtime.event().wait(rng.uniform(0, 1))
            return
        except PyKclError:
            self._world.violations.expect(
                self._producer.closed, Guarantee.PUT_DELIVERED, f"{self.name} cannot put"
            )
            return
        self._world.puts.taken(put, future)

    def _flush(self, timeout: float | None) -> None:
        waiting = self._world.puts.waiting(self.name)
        with suppress(FlushTimedOut):
            if self._fails(partial(self._producer.flush, timeout)):
                return
            self._world.puts.flushed(waiting)

    def _fails(self, call: Callable[[], None]) -> bool:
        """Call, and count the records that it reports as given up; return whether there are any."""
        try:
            call()
        except PutFailed as failed:
            self._book.reported += failed.count
            self._producer.resume()
            return True
        return False

    # -- the end ---------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """PUT_BOUNDED. A close with a limit is over in time."""
        world, now = self._world, self._world.simulation.now
        timeout = None if world.is_calm else self._habits.close_timeout
        self._fails(partial(self._producer.close, timeout))
        if timeout is None:
            return
        seconds = world.simulation.now - now - world.standing_still.seconds_since(self.name, now)
        world.violations.expect(
            seconds <= timeout + min(1.0, max(0.1, timeout / 4)) + _CLOSES_LATE,
            Guarantee.PUT_BOUNDED,
            f"{self.name} took {seconds:.1f} s to close, {timeout} s were given",
        )

    def _threads_end(self) -> None:
        """PUT_BOUNDED. No thread is left once the last request has ended."""
        for _ in range(int(_THREADS_END)):
            if not self._threads():
                return
            # Counted by waits, since a process that stands still ends nothing.
            self._runtime.event().wait(1.0)
        self._world.violations.expect(
            False, Guarantee.PUT_BOUNDED, f"{self.name} was closed, and has {self._threads()}"
        )

    def _threads(self) -> list[str]:
        tasks = self._world.simulation.unfinished(self.name)
        return [task.name for task in tasks if task.name.startswith("pykcl-")]


class ProducedChaos(FleetChaos):
    """FleetChaos with programs that put."""

    _world: ProducedWorld

    def __init__(
        self, world: CheckedWorld, fleet: CheckedFleet, producer: chaos.Producer, rng: random.Random
    ) -> None:
        super().__init__(world, fleet, producer, rng)
        self.programs: list[Putting] = []

    def actions(self) -> dict[str, Callable[[random.Random], bool]]:
        return {
            **super().actions(),
            "F24.killed": self._kill_program,
            "F24.paused": self._pause_program,
            "F24.closed": self._close_program,
            "F24.down": self._take_nothing,
            "F24.denied": self._deny,
        }

    def step(self) -> None:
        if len(self._running()) < _MOST_PROGRAMS and (not self._running() or self._rng.random() < 0.2):
            self.programs.append(Putting(f"p{len(self._world.puts.programs) + 1}", self._world))
        super().step()

    def _running(self) -> list[Putting]:
        frozen = self._world.simulation.is_frozen
        return [one for one in self.programs if not one.is_over and not frozen(one.name)]

    def _some(self, rng: random.Random) -> Putting | None:
        running = self._running()
        return rng.choice(running) if running else None

    def _kill_program(self, rng: random.Random) -> bool:
        program = self._some(rng)
        if program is None:
            return False
        program.kill()
        self.programs.remove(program)
        return True

    def _pause_program(self, rng: random.Random) -> bool:
        program = self._some(rng)
        if program is None:
            return False
        seconds = rng.choice([2.0, 20.0])
        self._world.standing_still.add(program.name, seconds)
        self._world.simulation.freeze(program.name, seconds)
        return True

    def _close_program(self, rng: random.Random) -> bool:
        program = self._some(rng)
        if program is not None:
            program.ask_to_end()
        return program is not None

    def _take_nothing(self, rng: random.Random) -> bool:
        self._world.takes_nothing_until = self._world.simulation.now + rng.choice([5.0, 40.0])
        return True

    def _deny(self, rng: random.Random) -> bool:
        self._world.denies_until = self._world.simulation.now + rng.choice([5.0, 20.0])
        return True

    def end_programs(self) -> None:
        """Let all that is left be put, with no fault between, and close the producers."""
        world, simulation = self._world, self._world.simulation
        world.is_calm = True
        for program in self.programs:
            program.ask_to_end()
        until = simulation.now + _CLOSED
        while not all(one.is_over for one in self.programs) or simulation.unfinished("network"):
            if simulation.now > until:
                left = [one.name for one in self.programs if not one.is_over]
                world.violations.expect(False, Guarantee.PUT_DELIVERED, f"not closed: {left}")
            world.violations.check()
            simulation.sleep(0.5)


class ProducedQuiescence(FleetQuiescence):
    """The rest of a fleet of which only that it delivers everything is to be shown."""

    _world: ProducedWorld

    def run(self) -> None:
        self._heal()
        self._everything_is_delivered()
        self._everybody_stops()
        self._world.puts.check()
