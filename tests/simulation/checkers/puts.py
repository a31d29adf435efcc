"""The outcomes that a producer gives for its records, against what is in the stream and what consumers get of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pykcl.errors import NotDelivered
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.new_record import NewRecord
from pykcl.model.record import Record
from pykcl.model.shard import HashRange
from pykcl.producer.accumulator import PutResult
from pykcl.producer.delivery import RECORD_OVERHEAD
from pykcl.runtime import Future
from pykcl.testing.simulation.guarantees import Guarantee, Violations

Place = tuple[str, int, int]
"""(shard, sequence number, sub-sequence number); the sequence number as the workers of the simulation see it."""


@dataclass(slots=True, eq=False)
class Put:
    """One call of `put`. number: of the call in its program. sent: requests that its record was in.

    copies: in the stream, also those in aggregates that consumers drop. seen_at: rank of the first copy that consumers
    get. outcomes: of its future. given_up: calls of on_failure.
    """

    program: str
    number: int
    data: bytes
    key: str
    is_taken: bool = False
    sent: int = 0
    copies: int = 0
    seen_at: int | None = None
    outcomes: int = 0
    result: PutResult | None = None
    error: BaseException | None = None
    given_up: int = 0

    @property
    def size(self) -> int:
        """Bytes that it counts in max_pending_bytes."""
        return len(self.data) + len(self.key) + RECORD_OVERHEAD


@dataclass(slots=True)
class Program:
    """A process that puts. waiting: records without an outcome. reported: records that PutFailed counted."""

    max_pending_bytes: int
    is_ordered: bool
    waiting: set[Put] = field(default_factory=set)
    reported: int = 0
    is_killed: bool = False
    puts: list[Put] = field(default_factory=list)


class PutChecker:
    """shorten: the sequence number that workers see. Every payload is put once."""

    def __init__(self, violations: Violations, shorten: Callable[[str], str]) -> None:
        self._expect, self._shorten = violations.expect, shorten
        self.programs: dict[str, Program] = {}
        self._puts: dict[bytes, Put] = {}
        self._at: dict[Place, bytes] = {}
        self._consumed: dict[Place, bytes] = {}

    # -- what a program does and hears -----------------------------------------------------------------------------

    def begins(self, program: str, data: bytes, key: str) -> Put:
        """Note a call of `put`."""
        puts = self.programs[program].puts
        put = self._puts[data] = Put(program, len(puts), data, key)
        puts.append(put)
        return put

    def taken(self, put: Put, future: Future[PutResult]) -> None:
        """PUT_BOUNDED. The call has returned."""
        program = self.programs[put.program]
        put.is_taken = True
        program.waiting.add(put)
        future.add_done_callback(lambda done: self._has_outcome(put, done))
        sizes = sorted(one.size for one in program.waiting)
        self._expect(
            sum(sizes[:-1]) <= program.max_pending_bytes,
            Guarantee.PUT_BOUNDED,
            f"{put.program}: {program.max_pending_bytes} bytes may wait, and records of {sizes} bytes do",
        )

    def _has_outcome(self, put: Put, future: Future[PutResult]) -> None:
        self.programs[put.program].waiting.discard(put)
        put.outcomes += 1
        put.error = future.exception()
        if put.error is not None:
            return
        result = put.result = future.result()
        found = self._at.get(self._place(result))
        self._expect(
            found == put.data, Guarantee.PUT_DELIVERED, f"{put.data[:20]!r}: {result}, and there is {found!r}"
        )
        self._expect(
            result.attempts == put.sent,
            Guarantee.PUT_COUNTED,
            f"{put.data[:20]!r}: {result} after {put.sent} requests",
        )

    def waiting(self, program: str) -> list[Put]:
        """Return the records that were taken and have no outcome yet."""
        return list(self.programs[program].waiting)

    def flushed(self, waiting: Iterable[Put]) -> None:
        """PUT_DELIVERED. A flush has returned: what waited before has an outcome."""
        for put in waiting:
            self._expect(put.outcomes > 0, Guarantee.PUT_DELIVERED, f"{put.data[:20]!r} waits behind a flush")

    def gave_up(self, record: NewRecord) -> None:
        """Note a call of on_failure."""
        self._puts[record.data].given_up += 1

    def _place(self, result: PutResult) -> Place:
        return result.shard_id, int(self._shorten(result.sequence_number)), result.sub_sequence_number

    # -- what Kinesis does -----------------------------------------------------------------------------------------

    def sent(self, records: Iterable[NewRecord]) -> None:
        """Note a request."""
        for record in records:
            for data in _opened(record, None):
                self._puts[data].sent += 1

    def landed(self, record: NewRecord, shard_id: str, sequence_number: str, keys: HashRange) -> int:
        """Note a record that is in the stream now; return the number of its records that consumers get."""
        for data in _opened(record, None):
            self._puts[data].copies += 1
        seen = _opened(record, keys)
        for number, data in enumerate(seen):
            put = self._puts[data]
            put.seen_at = len(self._at) if put.seen_at is None else put.seen_at
            self._at[shard_id, int(self._shorten(sequence_number)), number] = data
        return len(seen)

    def consumed(self, records: Iterable[Record]) -> None:
        """Note a batch that a worker gave to its processor."""
        for record in records:
            place = (record.shard_id, int(record.sequence_number), record.sub_sequence_number)
            self._consumed[place] = bytes(record.data)

    # -- the end ---------------------------------------------------------------------------------------------------

    def check_reports(self, name: str) -> None:
        """PUT_DELIVERED. A program that was closed was informed of each record that was given up."""
        program = self.programs[name]
        failed = sum(put.error is not None for put in program.puts)
        self._expect(
            program.reported == failed,
            Guarantee.PUT_DELIVERED,
            f"{name}: PutFailed counted {program.reported} of {failed} records that were given up",
        )

    def check(self) -> None:
        """Check all records, once everything in the stream was consumed."""
        for program in self.programs.values():
            for put in program.puts:
                self._check_copies(put)
                if not program.is_killed:
                    self._check_outcome(put)
            if program.is_ordered:
                self._check_order(program.puts)

    def _check_copies(self, put: Put) -> None:
        about = f"{put.data[:20]!r} is {put.copies} times in the stream"
        self._expect(
            put.copies <= put.sent, Guarantee.PUT_COUNTED, f"{about}, and was in {put.sent} requests"
        )
        if put.result is not None:
            marked = put.copies <= 1 or put.result.perhaps_twice
            self._expect(marked, Guarantee.PUT_COUNTED, f"{about}: {put.result}")
        if put.error is not None:
            # An error of another kind says that the record is not there.
            marked = not put.copies or (isinstance(put.error, NotDelivered) and put.error.perhaps_put)
            self._expect(marked, Guarantee.PUT_COUNTED, f"{about}: {put.error}")

    def _check_outcome(self, put: Put) -> None:
        about = f"{put.data[:20]!r} of {put.program}"
        if not put.is_taken:
            self._expect(not put.sent, Guarantee.PUT_DELIVERED, f"{about} was not taken, and was sent")
            return
        self._expect(put.outcomes == 1, Guarantee.PUT_DELIVERED, f"{about} has {put.outcomes} outcomes")
        self._expect(
            put.given_up == (put.error is not None),
            Guarantee.PUT_DELIVERED,
            f"{about}: on_failure was called {put.given_up} times, its future has {put.error or put.result}",
        )
        if put.result is not None:
            found = self._consumed.get(self._place(put.result))
            self._expect(
                found == put.data,
                Guarantee.PUT_DELIVERED,
                f"{about}: {put.result}, and consumers got {found!r}",
            )

    def _check_order(self, puts: Sequence[Put]) -> None:
        """PUT_IN_ORDER. A record that was given up may still arrive, behind later ones: it does not count."""
        by_key: dict[str, list[tuple[int, Put]]] = defaultdict(list)
        for put in puts:
            if put.seen_at is not None and put.error is None:
                by_key[put.key].append((put.seen_at, put))
        for found in by_key.values():
            in_stream = [put.number for _, put in sorted(found, key=lambda one: one[0])]
            self._expect(
                in_stream == sorted(in_stream),
                Guarantee.PUT_IN_ORDER,
                f"{found[0][1].program}: calls {in_stream} of one key",
            )

    def figures(self) -> Counter[str]:
        """Return the number of records by outcome."""
        counted: Counter[str] = Counter()
        for put in self._puts.values():
            counted["put"] += put.result is not None
            counted["given up"] += put.error is not None
            counted["not taken"] += not put.is_taken
            counted["twice"] += put.copies > 1
        return counted


def _opened(record: NewRecord, keys: HashRange | None) -> list[bytes]:
    """Return the payloads that consumers get of a record in a shard with these hash keys; None: in any."""
    one = Record(record.data, record.partition_key, "0", 0, "", "")
    return [bytes(found.data) for found in deaggregate_batch([one], keys)]
