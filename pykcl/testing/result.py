"""The result of a run of a processor, and assertions about it whose failures name the record and the reason."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from pykcl.errors import ConfigError
from pykcl.events import Event, ShardEndNotCheckpointed
from pykcl.model.dead_letter import DeadLetter
from pykcl.model.record import Record
from pykcl.testing.recorder import Call, Recorder, id_of

_PACKAGE = Path(__file__).parents[1]
_LIBRARY_HOMES = (_PACKAGE, Path(traceback.__file__).parent)
_SHOWN_REASONS = 5
_EXAMINED_RECORDS = 1000
_SHOWN_BYTES = 60

By = Callable[[Record], Any]


class RunFailed(AssertionError):
    """The processor did not get to the end that was asked for. result: what happened until then."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class Result:
    """Everything that happened to a processor in one run.

    seconds: simulated, or real ones of a run in real time, which has no seed. error: ProcessorFailed where
    `on_error="raise"` stopped the worker, else None.
    """

    def __init__(
        self, recorder: Recorder, *, seconds: float, error: Exception | None, seed: int | None
    ) -> None:
        self._recorder = recorder
        self.seconds = seconds
        self.error = error
        self.seed = seed

    @property
    def records(self) -> list[Record]:
        """Every record that was put, in order, as a processor is given it."""
        delivered = {id_of(record): record for batch in self.batches for record in batch}
        return [delivered.get(id_of(record), record) for record in self._recorder.records]

    @property
    def calls(self) -> list[Call]:
        """Every call of the processor's methods, in order."""
        return self._recorder.calls

    @property
    def batches(self) -> list[tuple[Record, ...]]:
        """The records of every call of `process_records`, in order, with those that came again."""
        return [call.records for call in self.calls if call.method == "process_records"]

    @property
    def delivered(self) -> list[Record]:
        """The records of every batch from which `process_records` returned, in order."""
        return self._recorder.delivered

    @property
    def checkpoints(self) -> list[str]:
        """Every checkpoint that was written, in order: "sequence number:sub-sequence number" or "SHARD_END"."""
        return [str(checkpoint) for _, checkpoint in self._recorder.checkpoints]

    @property
    def checkpointed(self) -> list[Record]:
        """The records up to the last checkpoint of their shards: a restart starts after them."""
        return [record for record in self.records if self._recorder.is_checkpointed(record)]

    @property
    def skipped(self) -> list[Record]:
        """The records of batches that were given up as `on_error="skip"` says."""
        return [record for record in self.records if self._recorder.is_skipped(record)]

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Every dead letter that its destination has kept, in order, with those that were sent again."""
        return self._recorder.dead_letters

    @property
    def lost(self) -> int:
        """The number of records that the checkpoint has passed, and that nobody has processed, skipped or given up."""
        recorder = self._recorder
        return sum(
            not recorder.is_done(each) and not recorder.is_given_up(each) for each in self.checkpointed
        )

    @property
    def duplicates(self) -> int:
        """The number of deliveries beyond the first one of each record."""
        return len(self.delivered) - len(set(map(id_of, self.delivered)))

    @property
    def unsettled(self) -> list[Record]:
        """The records that are neither processed nor skipped nor dead-lettered nor checkpointed."""
        return [record for record in self.records if not self._recorder.is_settled(record)]

    @property
    def events(self) -> list[Event]:
        """Every event of the workers, in order."""
        return self._recorder.events

    def __repr__(self) -> str:
        error = f", error={type(self.error).__name__}" if self.error is not None else ""
        letters = f", {len(self.dead_letters)} dead letters" if self.dead_letters else ""
        return (
            f"<Result of {len(self._recorder.records)} records: {len(set(map(id_of, self.delivered)))} delivered in "
            f"{len(self.batches)} batches, {len(self.checkpointed)} checkpointed, {self.lost} lost, "
            f"{self.duplicates} duplicates, {len(self.skipped)} skipped{letters}, {self.seconds:.1f} s, "
            f"seed={self.seed}{error}>"
        )


def assert_at_least_once(result: Result, done: Iterable[Any] | None = None, *, by: By | None = None) -> None:
    """Fail unless every record was processed.

    done: what the processor has produced, such as the list it appends to; by default the records of batches from
    which it returned. by: gives the value in it that stands for a record, by default the data; records that share a
    value count as one.
    """
    __tracebackhide__ = True
    _refuse(result, "Not processed", lambda record: True, done, by)


def assert_no_loss(result: Result, done: Iterable[Any] | None = None, *, by: By | None = None) -> None:
    """Fail if the checkpoint has passed a record that was not processed, so that no restart brings it back.

    done, by: as in `assert_at_least_once`. Records that `on_error="skip"` gave up count as processed, and so do
    dead letters.
    """
    __tracebackhide__ = True
    recorder = result._recorder
    _refuse(result, "Lost", lambda r: recorder.is_checkpointed(r) and not recorder.is_given_up(r), done, by)


def assert_in_order(
    result: Result, done: Iterable[Any] | None = None, *, per: str = "shard", by: By | None = None
) -> None:
    """Fail unless the records of each shard, or of each partition key, were first processed in their order.

    done, by: as in `assert_at_least_once`. Records that come again after their first time do not count.
    """
    __tracebackhide__ = True
    if per not in ("shard", "key"):
        raise ConfigError(
            f'per={per!r} is not an order that Kinesis keeps. Do: say per="shard" or per="key".'
        )
    standing_for = {_value(record, by): record for record in reversed(result.records)}
    numbers = _numbers(result)
    last: dict[str, Record] = {}
    seen = set()
    for value in result.delivered if done is None else done:
        record = value if isinstance(value, Record) else standing_for.get(_hashable(value))
        if record is None or id_of(record) not in numbers or id_of(record) in seen:
            continue
        seen.add(id_of(record))
        group = record.shard_id if per == "shard" else record.partition_key
        before = last.setdefault(group, record)
        if numbers[id_of(before)] > numbers[id_of(record)]:
            raise AssertionError(
                f"The order of {per} {group!r} was not kept. {_replay(result)}\n"
                f"  record {numbers[id_of(record)]} ({_shown(record)}) was processed after "
                f"record {numbers[id_of(before)]} ({_shown(before)})"
            )
        last[group] = record


def refuse_unfinished(result: Result, why: str, *, missing: Sequence[Record]) -> NoReturn:
    """Raise RunFailed for a run that has not come to its end. missing: records that are still to be processed."""
    __tracebackhide__ = True
    failed = [call for call in result.calls if call.error is not None]
    lines = [f"{why}. {_replay(result)}".rstrip(), *_listed(result, missing)]
    cause = failed[-1].error if failed else None
    if cause is not None:
        method = failed[-1].method
        times = sum(call.method == method for call in failed)
        lines.insert(1, f"  {method} raised {times} times, last {shown_error(cause)}")
        lines.append(
            '  Do: correct the processor, or decide with on_error="skip" or "raise" about batches that raise.'
        )
    if not missing and any(isinstance(event, ShardEndNotCheckpointed) for event in result.events):
        lines.append(
            "  shard_ended returned without a checkpoint, so that the shard does not end. "
            "Do: call end.checkpointer.checkpoint() in it, or leave that method out."
        )
    error = RunFailed("\n".join(lines), result)
    raise error from (None if cause is None else from_user_code(cause))


def _refuse(
    result: Result, what: str, counts: Callable[[Record], bool], done: Iterable[Any] | None, by: By | None
) -> None:
    """Fail for the records that count and are not done."""
    __tracebackhide__ = True
    values = None if done is None else list(done)
    if values is None:
        is_done = result._recorder.is_done
    else:
        ids = {id_of(value) for value in values if isinstance(value, Record)}
        others = {_hashable(value) for value in values if not isinstance(value, Record)}
        is_done = lambda record: id_of(record) in ids or _value(record, by) in others  # noqa: E731
    missing = [record for record in result.records if counts(record) and not is_done(record)]
    if not missing:
        return
    lines = [f"{what}: {len(missing)} of {len(result.records)} records. {_replay(result)}".rstrip()]
    lines += _listed(result, missing)
    if values and len(missing) == len(result.records) and not isinstance(values[0], Record):
        wanted = by(missing[0]) if by else missing[0].data
        lines.append(
            f"  `done` holds values such as {values[0]!r:.60}; searched for {wanted!r:.60}. "
            "Do: give by=, the function from a record to the value that stands for it."
        )
    raise AssertionError("\n".join(lines))


def _value(record: Record, by: By | None) -> Hashable:
    return _hashable(by(record) if by else record.data)


def _hashable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    found: Hashable = value
    return found


def _numbers(result: Result) -> dict[tuple[str, str, int], int]:
    return {id_of(record): number for number, record in enumerate(result.records, start=1)}


def _listed(result: Result, records: Sequence[Record]) -> list[str]:
    """Return a line for each reason, in the order of the records; records in a row with one reason share a line."""
    numbers = _numbers(result)
    lines: list[str] = []
    left = len(records)
    for reason, group in groupby(records[:_EXAMINED_RECORDS], lambda record: _reason(result, record)):
        if len(lines) == _SHOWN_REASONS:
            break
        first, *rest = group
        more = f" and {len(rest)} more" if rest else ""
        lines.append(f"  record {numbers[id_of(first)]} of {len(numbers)} ({_shown(first)}){more}: {reason}")
        left -= 1 + len(rest)
    return [*lines, f"  and {left} more records"] if left > 0 else lines


def _reason(result: Result, record: Record) -> str:
    recorder = result._recorder
    failure = recorder.failure_of(record)
    raised = (
        failure
        and failure.error
        and f"the batch at which process_records raised {shown_error(failure.error)}"
    )
    if recorder.is_done(record):
        reason = "process_records returned or checkpointed, but the record is not in `done`"
    elif raised:
        reason = f"in {raised}" + ('; skipped as on_error="skip" says' if recorder.is_skipped(record) else "")
    elif id_of(record) in recorder.handed:
        reason = "the worker was interrupted while it had this record, which did not come again"
    else:
        reason = "it was never handed to the processor"
    passed = recorder.is_checkpointed(record) and not recorder.is_skipped(record)
    return f"{reason}; the checkpoint is past it, so that no restart brings it back" if passed else reason


def shown_error(error: BaseException) -> str:
    """Describe the error with its line in user code, also where that called a library which raised it."""
    frames = [
        (Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [(file, line) for file, line in frames if not _is_library(file)]
    place = f" at {own[-1][0].name}:{own[-1][1]}" if own else ""
    return f"{type(error).__name__}{place}: {str(error) or '(no text)':.200}"


def _is_library(file: Path) -> bool:
    return any(file.is_relative_to(home) for home in _LIBRARY_HOMES) or "site-packages" in file.parts


def from_user_code(error: BaseException) -> BaseException:
    """Return the error with a traceback that starts in user code."""
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename).is_relative_to(_PACKAGE):
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


def _shown(record: Record) -> str:
    data = record.data if len(record.data) <= _SHOWN_BYTES else record.data[:_SHOWN_BYTES] + b"..."
    return f"{data!r}, key {record.partition_key!r}, {record.shard_id}"


def _replay(result: Result) -> str:
    return "" if result.seed is None else f"The same run again: seed={result.seed}."
