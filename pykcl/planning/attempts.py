"""Attempts of one batch: which of its records are tried next, together or apart, and which of them are given up.

Rule: the parts of a batch are worked off from the left. So everything before the first part is settled, and a
checkpoint may pass it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from pykcl.model.checkpoint import Checkpoint
from pykcl.model.dead_letter import Condition
from pykcl.model.record import Record
from pykcl.planning.read_schedule import backoff


class Failure(Enum):
    """The kind of a call that did not return."""

    ERROR = "error"
    FAILED_AT = "failed at"  # everything before a record is done; that record and those after it are not
    REJECTED = "rejected"  # a record can never be processed
    NOT_COUNTED = "not counted"  # says nothing about the records: an error of AWS, or of the process


class Verdict(Enum):
    """The consequence of a call that did not return."""

    RETRY = "retry"  # after a pause
    SPLIT = "split"  # at once, in parts
    GIVE_UP_RECORDS = (
        "give up records"  # those of the part with a condition, which is the first or the next one
    )
    HAND_BACK = "hand back"  # the lease


@dataclass(frozen=True, slots=True)
class Policy:
    """max_attempts: counted calls, after which records are given up; None: never. max_age: milliseconds, or None.

    retry_timeout: seconds for which calls may fail in a way that gives up no records.
    """

    max_attempts: int | None = None
    bisect: bool = False
    max_age: float | None = None
    retry_timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class Cause:
    """A failed call, for a dead letter: class name, "file.py:12" and text of its exception, reason of a Reject."""

    error: str = ""
    where: str = ""
    message: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """Records `start` to `stop` of the batch, to be processed in one call; given up if there is a condition.

    attempts: failed calls that count. tries: failed calls in a row of exactly these records, for the pause.
    failing_since: start of the first of the failed calls that retry_timeout limits, monotonic seconds.
    first_failed_at: epoch milliseconds. cause: of the last failure.
    """

    start: int
    stop: int
    condition: Condition | None = None
    attempts: int = 0
    tries: int = 0
    failing_since: float | None = None
    first_failed_at: int | None = None
    cause: Cause = Cause()

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Decision:
    """part: the failed records, as they stand now. pause: seconds before the next attempt."""

    verdict: Verdict
    part: Part
    pause: float = 0.0


class WorkList:
    """The parts of one batch that are not settled yet, in order. Used by one thread.

    `next` is the first part. Call it and report the end by `returned` or `failed`; or, if it has a condition, keep its
    records as a dead letter and report that by `gave_up`.
    """

    def __init__(self, records: int, policy: Policy) -> None:
        self._policy = policy
        # The first part is the last entry: parts are taken from there and put back.
        self._parts = [Part(0, records)] if records else []

    def next(self) -> Part | None:
        return self._parts[-1] if self._parts else None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, in order."""
        return tuple(reversed(self._parts))

    def returned(self) -> None:
        """The first part is settled."""
        self._parts.pop()

    def gave_up(self, part: Part) -> None:
        """Note that a part is settled, wherever it stands."""
        self._parts.remove(part)

    def settled(self, stop: int) -> None:
        """All records before index `stop` are settled. What is left of a part has not failed yet."""
        while self._parts and self._parts[-1].stop <= stop:
            self._parts.pop()
        if self._parts and self._parts[-1].start < stop:
            part = self._parts[-1]
            self._parts[-1] = replace(part, start=stop) if part.condition else Part(stop, part.stop)

    def expire(self, now: float, arrivals: Sequence[float]) -> bool:
        """Give up the records of the first part that are too old. Return True if there are any.

        now: of Kinesis' clock, epoch milliseconds. arrivals: of the records of the part; 0 where unknown.
        """
        part = self._parts[-1]
        if self._policy.max_age is None or part.condition is not None:
            return False
        oldest = now - self._policy.max_age
        is_old = [0 < arrived < oldest for arrived in arrivals]
        if True not in is_old:
            return False
        starts = [0, *(at for at in range(1, len(part)) if is_old[at] != is_old[at - 1])]
        runs = [
            replace(
                part,
                start=part.start + start,
                stop=part.start + stop,
                condition=Condition.RECORD_AGE_EXPIRED if is_old[start] else None,
            )
            for start, stop in zip(starts, [*starts[1:], len(part)], strict=True)
        ]
        self._parts[-1:] = reversed(runs)
        return True

    def failed(
        self,
        failure: Failure,
        *,
        began: float,
        now: float,
        rng: Random,
        at: int | None = None,
        condition: Condition = Condition.REJECTED,
        now_millis: int | None = None,
        cause: Cause = Cause(),
    ) -> Decision:
        """The call of the first part failed. began, now: its start and its end, monotonic seconds.

        at: index of the record that FAILED_AT and REJECTED name; one outside of the part makes it an ordinary error.
        condition: of the record that REJECTED names. now_millis: epoch milliseconds.
        """
        part = self._parts[-1]
        size = len(part)
        if failure is Failure.REJECTED and at is None and size == 1:
            at = part.start
        if at is None or not part.start <= at < part.stop:
            failure = Failure.NOT_COUNTED if failure is Failure.NOT_COUNTED else Failure.ERROR
        elif failure is Failure.FAILED_AT and at > part.start:
            self.settled(at)
            part = self._parts[-1]
        first = now_millis if part.first_failed_at is None else part.first_failed_at
        part = self._parts[-1] = replace(part, cause=cause, first_failed_at=first)
        if failure is Failure.NOT_COUNTED:
            return self._retry(part, began, now, rng)
        if failure is Failure.REJECTED and at is not None:
            # Data that could not be decoded was in no call of the handler.
            attempts = part.attempts + (condition is not Condition.DECODE_FAILED)
            rejected = replace(part, attempts=attempts, condition=condition)
            return self._cut(part, at, at + 1, Verdict.GIVE_UP_RECORDS, rejected)
        if self._policy.bisect and size > 1:
            middle = part.start + (len(part) + 1) // 2
            stop = part.start + 1 if failure is Failure.FAILED_AT else middle
            fresh = replace(part, attempts=0, tries=0, failing_since=None)
            return self._cut(fresh, part.start, stop, Verdict.SPLIT, fresh)
        part = replace(part, attempts=part.attempts + 1)
        if self._policy.max_attempts is None or part.attempts < self._policy.max_attempts:
            return self._retry(part, began, now, rng, counted=True)
        given_up = replace(part, condition=Condition.RETRY_ATTEMPTS_EXHAUSTED)
        # A handler that names the record that failed has not failed at those after it.
        stop = part.start + 1 if failure is Failure.FAILED_AT else part.stop
        rest = Part(part.start, part.stop)
        return self._cut(rest, part.start, stop, Verdict.GIVE_UP_RECORDS, given_up)

    def _retry(self, part: Part, began: float, now: float, rng: Random, *, counted: bool = False) -> Decision:
        tries = part.tries + 1
        pause = backoff(tries, rng)
        since: float | None = began if part.failing_since is None else part.failing_since
        is_limited = not counted or self._policy.max_attempts is None
        if not is_limited:
            # Its end is max_attempts; errors that do not count begin anew behind it.
            since = None
        part = self._parts[-1] = replace(part, tries=tries, failing_since=since)
        if since is not None and now - since + pause > self._policy.retry_timeout:
            return Decision(Verdict.HAND_BACK, part)
        return Decision(Verdict.RETRY, part, pause)

    def _cut(self, part: Part, start: int, stop: int, verdict: Verdict, chosen: Part) -> Decision:
        """Replace the first part: what is before `start`, `chosen` from there to `stop`, and what is behind it."""
        parts = [
            replace(part, stop=start),
            replace(chosen, start=start, stop=stop),
            replace(part, start=stop),
        ]
        self._parts[-1:] = [each for each in reversed(parts) if len(each)]
        return Decision(verdict, parts[1])


class InARow:
    """Records of one shard that exhausted their attempts with no call that returned between them.

    limit: so many of them mean that the world is broken, not the records; 0: no number does. count: of them, by now.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def worked(self) -> None:
        self.count = 0

    def exhausted(self, records: int = 1) -> bool:
        """Count the records of one more part. Return True if the limit is reached."""
        self.count += records
        return 0 < self.limit <= self.count


class Successes:
    """Records of one batch that were done in lanes, by the round of their calls.

    Lanes fail at the same time, so in a row are records by their position and not by the time of their calls. A success
    is between two records if its position is, and if it was not before the first attempt of both: else the successes
    before a database went down would hide for the rest of the batch that it is down.
    """

    def __init__(self) -> None:
        self._rounds: list[Sequence[Record]] = []
        self._last: tuple[Checkpoint, int] | None = None

    @property
    def rounds(self) -> int:
        return len(self._rounds)

    def add(self, done: Sequence[Record]) -> None:
        """Note what was done in one more round, in order."""
        self._rounds.append(done)

    def are_before(self, position: Checkpoint, since: int) -> bool:
        """Return True if there is one between the record that was given up last, and this one that is given up now.

        since: number of rounds before its first attempt.
        """
        before, self._last = self._last, (position, since)
        if before is None:
            return self._is_one(0, None, position)
        low, high = sorted((before[0], position))
        return self._is_one(min(before[1], since), low, high)

    def are_behind(self) -> bool:
        """Return True if there is one behind the record that was given up last. For the end of a batch."""
        last, since = self._last or (None, 0)
        return self._is_one(since, last, None)

    def _is_one(self, since: int, low: Checkpoint | None, high: Checkpoint | None) -> bool:
        for done in self._rounds[since:]:
            at = 0 if low is None else bisect_right(done, low, key=lambda record: record.position)
            if at < len(done) and (high is None or done[at].position < high):
                return True
        return False
