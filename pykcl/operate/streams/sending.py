"""Puts records in batches until each one is in: what Kinesis refused is sent again, with back-off, and counted.

PutRecords may put some records of a request and refuse others, and an answer may be lost on its way. A record whose
request got no answer is sent again, too, so that it is in at least once; those that may be in twice are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pykcl.aws.stream_admin import NewRecord, PutAnswer
from pykcl.errors import PyKclError, TemporaryError, Throttled
from pykcl.runtime import Event, Runtime

MOST_RECORDS = 500
"""Records of one PutRecords request (Kinesis quota)."""
MOST_BYTES = 5 * 1024 * 1024
"""Bytes of one PutRecords request, payloads and partition keys, where records have at most 1 MiB."""
MOST_BYTES_OF_LARGE_RECORDS = 10 * 1024 * 1024
ONE_MIB = 1024 * 1024
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_NOTICE_EVERY = 10.0


class GivenUp(PyKclError):
    """Somebody asked to end while records were still being refused."""


class Puts(Protocol):
    """As `StreamAdmin.put` of one stream."""

    def __call__(self, records: Sequence[NewRecord], /) -> list[PutAnswer]: ...


@dataclass(frozen=True)
class Parcel:
    """What is sent as one Kinesis record. lines: the first and the last line of input in it. count: user records."""

    record: NewRecord
    lines: tuple[int, int]
    count: int = 1


@dataclass(slots=True)
class Tally:
    """put: user records that are in, each counted once. sent_again: refused and sent again. perhaps_twice: sent again
    after a request whose outcome nobody knows. requests: PutRecords calls."""

    put: int = 0
    bytes: int = 0
    requests: int = 0
    sent_again: int = 0
    perhaps_twice: int = 0


class Sender:
    """Not for several threads. most_bytes: of one request. give_up: once set, nothing is sent a second time.

    on_put: hears each parcel that is in, with the id of the shard it is in; False: it does not count yet. on_notice:
    hears what takes long. Neither may raise.
    """

    def __init__(
        self,
        put: Puts,
        runtime: Runtime,
        *,
        give_up: Event,
        on_put: Callable[[Parcel, str], bool],
        on_notice: Callable[[str], None],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._put = put
        self._runtime = runtime
        self._give_up = give_up
        self._on_put = on_put
        self._on_notice = on_notice
        self._most_bytes = most_bytes
        self._batch: list[Parcel] = []
        self._bytes = 0
        self.tally = Tally()

    @property
    def waiting(self) -> Sequence[Parcel]:
        """What was handed over and is not known to be in."""
        return tuple(self._batch)

    def add(self, parcel: Parcel) -> None:
        """Take one; when the batch is full, send what was there before. Raises as `flush`."""
        size = parcel.record.size
        if self._batch and (len(self._batch) >= MOST_RECORDS or self._bytes + size > self._most_bytes):
            self.flush()
        self._batch.append(parcel)
        self._bytes += size

    def count(self, parcel: Parcel) -> None:
        """It is in, for whoever reads it."""
        self.tally.put += parcel.count
        self.tally.bytes += parcel.record.size

    def flush(self) -> None:
        """Send the batch until all of it is in.

        Raises SetupError when AWS will not take it however often it is sent, and GivenUp; `waiting` then holds what is
        not known to be in.
        """
        pause, told_at = _FIRST_PAUSE, self._runtime.monotonic()
        while self._batch:
            trouble = self._attempt()
            if not self._batch:
                break
            if self._give_up.is_set():
                raise GivenUp(f"{len(self._batch)} records were still being refused ({trouble}).")
            now = self._runtime.monotonic()
            if now - told_at >= _NOTICE_EVERY:
                told_at = now
                self._on_notice(f"{len(self._batch)} records are not in yet ({trouble}). Sending them again.")
            # Half of it by chance, so that many producers do not come back at once.
            self._give_up.wait(pause * (0.5 + self._runtime.random().random() / 2))
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _attempt(self) -> str:
        """One request; what is not in stays in the batch. Returns why something is not."""
        tally = self.tally
        tally.requests += 1
        try:
            answers = self._put([parcel.record for parcel in self._batch])
        except Throttled as error:
            # Refused as a whole, before anything of it was put.
            tally.sent_again += _users(self._batch)
            return type(error).__name__
        except TemporaryError as error:
            tally.perhaps_twice += _users(self._batch)
            tally.sent_again += _users(self._batch)
            return str(error)
        sent, self._batch = self._batch, []
        trouble = ""
        for parcel, answer in zip(sent, answers, strict=True):
            if answer.shard_id is None:
                self._batch.append(parcel)
                trouble = answer.error or "refused"
        self._bytes = sum(parcel.record.size for parcel in self._batch)
        tally.sent_again += _users(self._batch)
        for parcel, answer in zip(sent, answers, strict=True):
            if answer.shard_id is not None and self._on_put(parcel, answer.shard_id):
                self.count(parcel)
        return trouble


def most_bytes_for(largest_record: int) -> int:
    """Of one request to a stream that takes records of so many bytes."""
    return MOST_BYTES if largest_record <= ONE_MIB else MOST_BYTES_OF_LARGE_RECORDS


def _users(parcels: Sequence[Parcel]) -> int:
    return sum(parcel.count for parcel in parcels)
