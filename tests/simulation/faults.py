"""Kinds of faults of the project's own simulations: of the lease table, foreign rows, operators, Java peers and, where
workers have processing policies, bad records and dead letters."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any

from pykcl.testing.simulation import faults
from pykcl.testing.simulation.faults import PER_STEP, Faults, Kind

_OF_FLEETS = (
    Kind("F13.deleted", "the lease table is deleted, and restored", (0.3,)),
    Kind("F13.recreated", "the lease table is deleted and made anew, and restored", (0.3,)),
    Kind("F13.foreign", "a worker is started on a table that is not its own", PER_STEP),
    Kind("F15", "foreign rows of every kind lie in the lease table", (0.5, 1.0)),
    Kind("F15.deleted", "an operator deletes the row of a lease that is being read", PER_STEP),
    Kind("F15.counter", "another library takes a lease and puts its counter back", PER_STEP),
    Kind(
        "F15.checkpoint",
        "somebody moves the checkpoint of a held lease, and leaves its counter",
        (0.01, 0.03),
    ),
    Kind("F15.reset", "somebody moves the checkpoint of a held lease, and its counter", (0.01, 0.03)),
    Kind(
        "F15.ranges",
        "rows lack the hash range of their shard, as those of old versions do",
        (0.03, 0.06, 0.1),
    ),
    Kind("F20", "Java KCL 2.x workers share the lease table", (0.4, 0.8)),
    Kind("F25", "shards of a worker are paused for up to a minute, or all of them", PER_STEP),
    Kind("F6.adopt", "a lease that a leader assigned was adopted, the answer is lost", (0.02, 0.1, 0.3)),
    Kind("F6.hand_over", "a lease was handed over, the answer is lost", (0.02, 0.1, 0.3)),
    Kind("F6.report", "metrics were reported, the answer is lost", (0.02, 0.1, 0.3)),
    Kind("F6.lock", "the leader's lock was taken, kept or released, the answer is lost", (0.02, 0.1, 0.3)),
    Kind("F6.assign", "a leader has assigned a lease, the answer is lost", (0.02, 0.1, 0.3)),
    Kind("F21.poison", "a record makes every attempt raise", (0.02, 0.1, 0.3)),
    Kind("F21.flaky", "a record raises the first time or two", (0.02, 0.1, 0.3)),
    Kind("F21.down", "the destination of dead letters is down for up to a minute", (0.05, 0.2)),
    Kind("F21.unanswered", "a dead letter is kept, the answer is lost", (0.1, 0.3)),
    Kind("F22.java", "a Java KCL 3.x worker joins", PER_STEP),
    Kind("F22.leader", "the leader is killed", (0.01, 0.03)),
    Kind("F22.stopped", "the leader is stopped", (0.01, 0.02)),
    Kind("F22.paused", "the leader stands still, at times until another may lead", (0.005, 0.01)),
    Kind("F22.refused", "requests for the leader's lock are refused for up to two minutes", (0.005, 0.02)),
    Kind("F22.hand_off", "the leader asks for a lease whose worker is alive", PER_STEP),
    Kind("F22.lag", "the index of owners shows leases as they were up to 2 s ago", (0.1, 0.5, 1.0)),
    Kind("F22.late", "the index of owners lags by up to a minute for a while", (0.01, 0.03)),
    Kind("F22.query", "queries of the index of owners are throttled for up to two minutes", (0.01, 0.03)),
    Kind("F22.report", "metrics are refused for up to two minutes", (0.01, 0.03)),
    Kind("F22.lock", "the row of the leader's lock is half written or foreign for a while", (0.01, 0.02)),
    Kind("F22.rows", "rows of metrics are half written or foreign", PER_STEP),
    Kind("F22.identifier", "a worker is called as a lease", PER_STEP),
    Kind("F22.clock", "the clock of a worker's host is five minutes off", (0.5, 1.0), is_harmless=True),
    Kind("F22.flip", "the fleet is upgraded from KCL 2.x in mid-run", (0.02, 0.05)),
    Kind("F22.rollback", "the fleet is rolled back to KCL 2.x, and upgraded again", (0.01, 0.02)),
    Kind("F23.late", "a record is acked up to 20 s after its delivery", (0.05, 0.2)),
    Kind("F23.never", "a record is not acked while faults happen", (0.005, 0.02)),
    Kind("F23.twice", "a record is acked twice", (0.1, 0.3)),
    Kind("F23.rejects", "a record is rejected in vain, and acked up to 10 s later", (0.05, 0.2)),
    Kind("F23.swallows", "a call that is cancelled swallows that, and returns, at once or late", (0.5, 1.0)),
    Kind("F23.drops", "a call whose lease is lost returns late, with its work not done", (0.3, 1.0)),
    Kind("F23.bad", "a record makes every call of its lane raise", (0.02, 0.1, 0.3)),
    Kind("F23.outage", "what all handlers need is down for up to a minute", (0.002, 0.01)),
)


def family(name: str) -> int:
    """Return the number of the family of a kind: 6 of "F6.take"."""
    return int(name[1:].partition(".")[0])


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in sorted((*faults.KINDS.values(), *_OF_FLEETS), key=lambda kind: family(kind.name))
}


class FleetFaults(Faults):
    """The faults of one simulation of the project's own, of all kinds."""

    kinds = KINDS

    @property
    def has_java(self) -> bool:
        """Return whether Java workers read the stream, too."""
        return self.has("F20")

    def exclusive(self, *, everything: bool) -> Sequence[tuple[set[str], set[str]]]:
        return [
            # Java 2.x cannot read a table with foreign rows in it.
            *([({"F15"}, {"F20"})] if everything else []),
            *super().exclusive(everything=everything),
            # Two processes of one identifier differ by the counter alone: not guaranteed where it starts again.
            ({"F15.deleted", "F15.counter"}, {"F19.same"}),
            # Without a listing a worker cannot recognize an aggregate of another shard where the row lacks the range.
            ({"F15.ranges"}, {"F16"}),
        ]


_LOST_ANSWERS = ("F6.adopt", "F6.hand_over", "F6.report", "F6.lock", "F6.assign")
IN_NATIVE_FLEETS = frozenset(name for name in KINDS if family(name) == 22 or name in _LOST_ANSWERS)
"""Kinds that happen only in a fleet of KCL 3.x's own mode."""
NOT_IN_NATIVE_FLEETS = frozenset({"F13.deleted", "F13.recreated", "F20"})


class Leaders(Enum):
    """The workers that may lead a simulated fleet.

    MIXED: each pykcl worker draws its option, beside Java workers. EQUAL: every worker, as soon as the lock is free.
    FIGHT: at least two of either kind, whose leaders die all the time. PYKCL: there is no Java worker.
    """

    MIXED = auto()
    EQUAL = auto()
    FIGHT = auto()
    PYKCL = auto()

    @staticmethod
    def of(seed: int) -> Leaders:
        """Return what the seed says; by a generator of its own."""
        rng = random.Random(f"{seed}/leaders")
        return rng.choice([Leaders.MIXED, Leaders.MIXED, Leaders.EQUAL, Leaders.FIGHT, Leaders.PYKCL])


class NativeFaults(FleetFaults):
    """The faults of a simulation of a fleet in KCL 3.x's own mode. leaders: who may lead it."""

    def __init__(self, seed: int, *, off: frozenset[str] = frozenset(), **options: Any) -> None:
        self.leaders = Leaders.of(seed)
        if self.leaders is Leaders.FIGHT:
            self.always = frozenset({"F6.lock", "F22.leader"})
        super().__init__(seed, off=off | NOT_IN_NATIVE_FLEETS, **options)

    @property
    def has_java(self) -> bool:
        return self.leaders is not Leaders.PYKCL

    def exclusive(self, *, everything: bool) -> Sequence[tuple[set[str], set[str]]]:
        return [*super().exclusive(everything=everything), ({"F22.flip"}, {"F22.rollback"})]


NOT_WITH_ACKS = frozenset({"F12", "F12.lowered"})


class AckFaults(FleetFaults):
    """The faults of a simulation of acks, without those of retention.

    1) A shard expires, and its owner waits for the acks of its last records, with heartbeats; 2) another worker deletes
    the row, as Java does, because Kinesis knows the shard no more; 3) the row of its parent is still there, and
    somebody creates it again and takes it. A call that runs for long has the same effect, but seldom takes so long.
    """

    always = frozenset(name for name in KINDS if family(name) == 23)

    def __init__(self, seed: int, *, off: frozenset[str] = frozenset(), **options: Any) -> None:
        super().__init__(seed, off=off | NOT_WITH_ACKS, **options)


NOT_WITH_WINDOWS = NOT_WITH_ACKS | {
    "F13.deleted", "F13.recreated", "F15.deleted", "F15.counter", "F15.checkpoint", "F15.reset", "F20",
}  # fmt: skip


class WindowFaults(FleetFaults):
    """The faults of a simulation of windows, without those that let a reader begin in the middle of a window: retention,
    a table or a row that is restored or made anew, and Java workers, which have no windows."""

    def __init__(self, seed: int, *, off: frozenset[str] = frozenset(), **options: Any) -> None:
        super().__init__(seed, off=off | NOT_WITH_WINDOWS, **options)


NOT_UNTIL = frozenset({"F15", "F15.counter", "F20"})


class UntilFaults(FleetFaults):
    """The faults of a simulation of a run with an end, without those that it refuses: foreign rows in its table, and
    owners that are no workers of pykcl."""

    def __init__(self, seed: int, *, off: frozenset[str] = frozenset(), **options: Any) -> None:
        super().__init__(seed, off=off | NOT_UNTIL, **options)


_PER_PUT = (0.02, 0.1)
OF_PRODUCERS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "F24.throttled", "Kinesis refuses some records of a request for the rate of their shard", _PER_PUT
        ),
        Kind("F24.failed", "Kinesis fails with some records of a request, stored or not", _PER_PUT),
        Kind("F24.refused", "a request to put is refused as a whole", _PER_PUT),
        Kind("F24.lost", "records were put, the answer is lost", _PER_PUT),
        Kind("F24.slow", "a request to put is answered after up to 8 s", _PER_PUT),
        Kind("F24.unsent", "a request to put never arrives", _PER_PUT),
        Kind("F24.late", "a request to put arrives after its sender gave up", _PER_PUT),
        Kind("F24.reshard", "a shard is split or merged just before records arrive", _PER_PUT),
        Kind("F24.stale", "a producer is shown the shards of up to 5 s ago", (0.3, 0.7)),
        Kind("F24.part", "a producer is shown a part of the shards", (0.1, 0.3)),
        Kind("F24.killed", "the process of a producer is killed", PER_STEP),
        Kind("F24.paused", "the process of a producer stands still for up to 20 s", PER_STEP),
        Kind("F24.closed", "a producer is closed, with little time or none", PER_STEP),
        Kind("F24.down", "the stream takes no records for up to 40 s", PER_STEP),
        Kind(
            "F24.denied", "putting is denied for up to 20 s; after 10 a producer gives records up", PER_STEP
        ),
    )
}
"""Kinds that happen to producers alone; no other simulation has any."""
PRODUCED: Mapping[str, Kind] = {
    **{name: KINDS[name] for name in ("F1", "F5.kinesis", "F10.expired", "F11", "F18.stop")},
    **OF_PRODUCERS,
}


class ProducerFaults(FleetFaults):
    """The faults of a simulation of producers: their own, and a few of the workers that read what they put."""

    kinds: Mapping[str, Kind] = {**KINDS, **OF_PRODUCERS}

    def __init__(self, seed: int, *, off: frozenset[str] = frozenset(), **options: Any) -> None:
        super().__init__(seed, off=off | (self.kinds.keys() - PRODUCED.keys()), **options)


class PolicyFaults(FleetFaults):
    """The faults of a simulation of processing policies. Without bad records it would show nothing."""

    always = frozenset(name for name in KINDS if family(name) == 21)
