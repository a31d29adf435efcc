"""Redrive: the records of dead letters go to a processor or into a stream, and then the letters are settled.

A letter is settled after all its records are, never before. The end of the process between the two redrives it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Protocol

from pykcl.aws.kinesis import LARGEST_LIMIT
from pykcl.errors import CheckpointRefused, PositionRefused, PyKclError, ShardGone, TemporaryError
from pykcl.interfaces import Fetched, Stream
from pykcl.model.checkpoint import Checkpoint, ReadFrom
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.letter_json import MAX_LETTER_BYTES, KeptLetter, NotALetter
from pykcl.model.new_record import NewRecord
from pykcl.model.record import Record
from pykcl.operate.dead_letters.sources import Found, LetterSource
from pykcl.operate.streams.writer import StreamWriter
from pykcl.processor import Batch, InitializationInput, ProcessorFactory, ShutdownRequestedInput
from pykcl.runtime import Runtime
from pykcl.worker.processor_calls import reported
from pykcl.worker.processor_factory import must_have_run
from pykcl.worker.window_delivery import windows_of

MAX_HASH_KEY = 2**128 - 1
_TRIES = 20
_PAUSE = 0.25
_MAX_EMPTY_PAGES = 10


class NotRedriven(Exception):
    """A letter that is left in its source; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The letters that a command is about. ids: all, if empty. since: epoch milliseconds. application: as the letter
    names it."""

    ids: frozenset[str] = frozenset()
    since: int | None = None
    application: str | None = None

    def takes(self, letter: KeptLetter) -> bool:
        if self.ids and letter.id not in self.ids:
            return False
        if self.application is not None and letter.application not in ("", self.application):
            return False
        return self.since is None or letter.created_at is None or letter.created_at >= self.since


@dataclass(slots=True)
class Outcome:
    """One letter. copies: of it in the source. problem: why it is left there, or would be; "" for a redriven one."""

    found: Found
    copies: list[Found]
    problem: str = ""


class Receiver(Protocol):
    """Takes the records of letters. May raise PyKclError: then no letter is settled."""

    def redrive(self, letters: Sequence[tuple[KeptLetter, Sequence[Record]]]) -> Sequence[str]:
        """Settle the records; return for each letter why that failed, "" for those whose records are all settled."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Opens the stream of a letter. only: name or ARN of the one stream that letters may be of; None for any."""

    open: Callable[[str], Stream]
    only: str | None = None
    _opened: dict[str, Stream] = field(default_factory=dict)

    def of(self, letter: KeptLetter) -> Stream:
        if letter.stream_arn not in self._opened:
            self._opened[letter.stream_arn] = self.open(letter.stream_arn)
        return self._opened[letter.stream_arn]


def redrive(
    source: LetterSource, selection: Selection, streams: Streams, runtime: Runtime, receiver: Receiver | None
) -> Iterator[Outcome]:
    """Redrive the selected letters; without a receiver only say which could be. Raises as the receiver and the source.

    What is no letter is in the outcome as well, with its problem.
    """
    settled: set[bytes] = set()
    for chunk in source.chunks(alone=receiver is not None):
        outcomes: dict[bytes, Outcome] = {}
        for found in chunk:
            if found.letter is None:
                if not selection.ids:
                    yield Outcome(found, [found], found.problem)
            elif selection.takes(found.letter):
                outcomes.setdefault(_identity(found.letter), Outcome(found, [])).copies.append(found)
        if receiver is not None:
            for identity in settled & outcomes.keys():
                source.settle(outcomes.pop(identity).copies)
        ready = [
            (outcome, records)
            for outcome in outcomes.values()
            if (records := _records(outcome, streams, runtime))
        ]
        if receiver is not None and ready:
            letters = [(letter, records) for outcome, records in ready if (letter := outcome.found.letter)]
            for (outcome, _), problem in zip(ready, receiver.redrive(letters), strict=True):
                outcome.problem = problem
                if not problem:
                    source.settle(outcome.copies)
        settled |= {identity for identity, outcome in outcomes.items() if not outcome.problem}
        yield from outcomes.values()


def _identity(letter: KeptLetter) -> bytes:
    """Return what only copies of the same letter share. The identifier alone is what anybody may have written."""
    parts = (
        letter.id,
        letter.stream_arn,
        letter.shard_id,
        str(letter.first),
        str(letter.last),
        letter.payload or "",
    )
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).digest()


def _records(outcome: Outcome, streams: Streams, runtime: Runtime) -> Sequence[Record]:
    letter = outcome.found.letter
    if letter is None:
        return ()
    try:
        _refuse_another_stream(letter, streams)
        records = (
            letter.records() if letter.payload is not None else fetched(letter, streams.of(letter), runtime)
        )
    except (NotALetter, NotRedriven, PyKclError) as error:
        outcome.problem = str(error)
        return ()
    outcome.problem = "" if records else "its aggregates have no records"
    return records


def _refuse_another_stream(letter: KeptLetter, streams: Streams) -> None:
    if streams.only is None:
        return
    if streams.only not in (letter.stream, letter.stream_arn):
        raise NotRedriven(f"it is of stream {letter.stream}, not of {streams.only}")
    _refuse_another_incarnation(letter, streams.of(letter))


def _refuse_another_incarnation(letter: KeptLetter, stream: Stream) -> None:
    created_at = stream.describe().created_at
    before = letter.stream_created_at
    # Lambda's letters do not say when the stream was created, but its records arrived after that.
    is_another = (
        before != created_at if before is not None else (letter.last_arrived_at or created_at) < created_at
    )
    if is_another:
        raise NotRedriven(
            f"stream {letter.stream} was deleted and created again since: its records are gone, and their positions "
            "mean nothing in the stream of today"
        )


def fetched(letter: KeptLetter, stream: Stream, runtime: Runtime) -> Sequence[Record]:
    """Return the user records of a letter without a payload, from its shard.

    Raises NotRedriven where they are not all there any more, TemporaryError, SetupError.
    """
    _refuse_another_incarnation(letter, stream)
    first, last = letter.first.sequence_number, int(letter.last.sequence_number)
    gone = NotRedriven(
        f"its records are not all in {letter.shard_id} any more: they are older than the retention of the stream"
    )
    found: list[Record] = []
    size = empty = 0
    try:
        iterator: str | None = stream.open(
            letter.shard_id, ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=first)
        )
        while iterator is not None and not (found and int(found[-1].sequence_number) >= last):
            page = _page(stream, letter.shard_id, iterator, runtime)
            empty = 0 if page.records else empty + 1
            if empty == _MAX_EMPTY_PAGES:
                break
            found += page.records
            size += page.body_bytes
            if found and found[0].sequence_number != first:
                raise gone
            if size > 2 * MAX_LETTER_BYTES:
                raise NotRedriven("it claims more records than a letter holds")
            iterator = page.next_iterator
    except ShardGone:
        raise gone from None
    except PositionRefused:
        raise NotRedriven(f"its first position is none of {letter.shard_id}") from None
    raw = [record for record in found if int(record.sequence_number) <= last]
    if len(raw) != letter.count or int(raw[-1].sequence_number) != last:
        raise gone
    return tuple(deaggregate_batch(raw, None))


def _page(stream: Stream, shard_id: str, iterator: str, runtime: Runtime) -> Fetched:
    """Read a page, with pauses while the shard refuses it: it is shared with the fleet."""
    pause = runtime.event()
    for _ in range(_TRIES - 1):
        try:
            return stream.fetch(shard_id, iterator, LARGEST_LIMIT)
        except TemporaryError:
            pause.wait(_PAUSE)
    return stream.fetch(shard_id, iterator, LARGEST_LIMIT)


# -- to a processor --------------------------------------------------------------------------------------------


class ToHandler:
    """A new processor for each shard of a chunk, given its letters in order, each as one batch.

    There is no lease: a checkpoint is only noted. A letter is settled when process_records has returned for it and then
    shutdown_requested has, and, of a processor that checkpoints by itself, when it has checkpointed its last record.
    """

    def __init__(self, create: ProcessorFactory) -> None:
        self._create = create

    def redrive(self, letters: Sequence[tuple[KeptLetter, Sequence[Record]]]) -> Sequence[str]:
        problems = [""] * len(letters)
        shards: dict[tuple[str, str], list[int]] = {}
        for number, (letter, _) in enumerate(letters):
            shards.setdefault((letter.stream_arn, letter.shard_id), []).append(number)
        for numbers in shards.values():
            numbers.sort(key=lambda number: letters[number][0].first)
            self._redrive_shard([letters[number] for number in numbers], numbers, problems)
        return problems

    def _redrive_shard(
        self,
        letters: Sequence[tuple[KeptLetter, Sequence[Record]]],
        numbers: Sequence[int],
        problems: list[str],
    ) -> None:
        letter = letters[0][0]
        shard_id, stream, checkpointer = letter.shard_id, letter.stream, _NotedCheckpoints(letter.first)
        processor = self._create()
        begin = InitializationInput(
            shard_id, stream, letter.first, None, 0, checkpointer, letter.application, letter.stream_arn
        )
        failed = _failure("initialize", partial(processor.initialize, begin))
        if not failed and windows_of(processor) is not None:
            failed = "the handler has windows, and a letter is in none of them: use --to-stream"
        for number, (_, records) in zip(numbers, letters, strict=True):
            checkpointer.delivered = records[-1].position
            batch = Batch(records, checkpointer, None, shard_id, stream)
            process_records = partial(processor.process_records, batch)
            problems[number] = failed or _failure("process_records", process_records)
        if not failed:
            end = ShutdownRequestedInput(shard_id, stream, checkpointer)
            failed = _failure("shutdown_requested", partial(processor.shutdown_requested, end))
        for number, (_, records) in zip(numbers, letters, strict=True):
            is_done = not checkpointer.is_used or checkpointer.covers(records[-1].position)
            left = (
                ""
                if is_done
                else "the processor checkpoints by itself, and did not checkpoint its last record"
            )
            problems[number] = problems[number] or failed or left


def _failure(method: str, call: Callable[[], object]) -> str:
    """Call a method of the processor; return a sentence on what it raised, without its message, else ""."""
    try:
        must_have_run(method, call())
    except (Exception, SystemExit) as raised:  # noqa: BLE001 - the application's own code
        error = reported(raised)
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        where = (
            f"{PurePath(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
            if traceback
            else "-"
        )
        return f"{method} raised {type(error).__name__} at {where}"
    return ""


class _NotedCheckpoints:
    """A checkpointer that writes nothing. is_used: the processor checkpoints by itself, whatever came of it."""

    def __init__(self, first: Checkpoint) -> None:
        self.delivered = first
        self.is_used = False
        self._noted: Checkpoint | None = None

    def covers(self, position: Checkpoint) -> bool:
        """Return True if that position is checkpointed."""
        return self._noted is not None and position <= self._noted

    def checkpoint(self, at: Record | Checkpoint | str | None = None, sub_sequence_number: int = 0) -> None:
        self._noted = self._position(at, sub_sequence_number)

    def prepare_checkpoint(
        self,
        at: Record | Checkpoint | str | None = None,
        sub_sequence_number: int = 0,
        *,
        state: bytes | None = None,
    ) -> _NotedPrepared:
        return _NotedPrepared(self, self._position(at, sub_sequence_number))

    def _position(self, at: Record | Checkpoint | str | None, sub_sequence_number: int) -> Checkpoint:
        self.is_used = True
        if at is None:
            return self.delivered
        try:
            position = at.position if isinstance(at, Record) else at
            position = (
                position if isinstance(position, Checkpoint) else Checkpoint(position, sub_sequence_number)
            )
        except (TypeError, ValueError) as error:
            raise CheckpointRefused(f"Cannot checkpoint: {error}.") from None
        if position > self.delivered:
            raise CheckpointRefused(
                f"Cannot checkpoint {position}: the last record that was redriven is at {self.delivered}."
            )
        return position


@dataclass(frozen=True, slots=True)
class _NotedPrepared:
    checkpointer: _NotedCheckpoints
    position: Checkpoint

    def checkpoint(self) -> None:
        self.checkpointer.checkpoint(self.position)


# -- into a stream ---------------------------------------------------------------------------------------------


class ToStream:
    """Puts the records into a stream, with their partition keys and explicit hash keys.

    largest_record: of the stream, bytes. Their order among the records that are there already is lost.
    """

    def __init__(self, writer: StreamWriter, largest_record: int) -> None:
        self._writer = writer
        self._largest_record = largest_record
        self._line = 0

    def redrive(self, letters: Sequence[tuple[KeptLetter, Sequence[Record]]]) -> Sequence[str]:
        problems = []
        for _, records in letters:
            try:
                new = [self._new(record) for record in records]
            except NotRedriven as error:
                problems.append(str(error))
                continue
            problems.append("")
            for record in new:
                self._line += 1
                self._writer.take(self._line, record)
        self._writer.flush()
        return problems

    def _new(self, record: Record) -> NewRecord:
        hash_key = record.explicit_hash_key
        if hash_key is not None:
            # Producers may have written a sign and zeros before the digits, which Kinesis refuses.
            if not 0 <= int(hash_key) <= MAX_HASH_KEY:
                raise NotRedriven("the explicit hash key of a record is outside of what Kinesis takes")
            hash_key = str(int(hash_key))
        new = NewRecord(record.data, record.partition_key, hash_key)
        if not 1 <= len(record.partition_key) <= 256:
            raise NotRedriven("the partition key of a record has no length that Kinesis takes")
        if new.size > self._largest_record:
            raise NotRedriven(
                f"a record has {new.size:,} bytes, and the stream takes {self._largest_record:,}"
            )
        return new
