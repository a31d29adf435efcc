"""Records of numbered lines into one stream: grouped if wanted, paced, sent, and accounted for line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from itertools import count

from pykcl.aws.stream_admin import NewRecord, PutAnswer
from pykcl.errors import TemporaryError
from pykcl.model.shard import Shard
from pykcl.operate.streams.grouping import Aggregate, Grouping
from pykcl.operate.streams.sending import GivenUp, Parcel, Sender, Tally, most_bytes_for
from pykcl.runtime import Event, Runtime

LINGER = 0.2
"""Seconds a record waits for company."""
_BURST = 0.1
_LISTING_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Outlet:
    """One stream to put into. shards: lists it, open and closed shards. largest_record: bytes."""

    put: Callable[[Sequence[NewRecord]], list[PutAnswer]]
    shards: Callable[[], Sequence[Shard]]
    largest_record: int


class Putting:
    """rate: user records per second, at most. stop: no waiting for the pace any more. give_up: no sending again.

    Every method may raise SetupError and GivenUp; `complete_through` then still tells the truth.
    """

    def __init__(
        self,
        outlet: Outlet,
        runtime: Runtime,
        *,
        stop: Event,
        give_up: Event,
        on_notice: Callable[[str], None],
        aggregate: bool = False,
        rate: float | None = None,
    ) -> None:
        self._outlet = outlet
        self._runtime = runtime
        self._stop = stop
        self._give_up = give_up
        self._on_notice = on_notice
        self._rate = rate
        self._begun = runtime.monotonic()
        self._taken = 0
        self._last_line = 0
        self._waiting_since: float | None = None
        self._misplaced: list[tuple[Parcel, str]] = []
        self._sender = Sender(
            outlet.put,
            runtime,
            give_up=give_up,
            on_put=self._is_in,
            on_notice=on_notice,
            most_bytes=most_bytes_for(outlet.largest_record),
        )
        self._grouping = Grouping(self._listing()) if aggregate else None

    @property
    def tally(self) -> Tally:
        return self._sender.tally

    @property
    def complete_through(self) -> int:
        """The last line up to which every line that was taken is in; 0 when none is."""
        unsure = [parcel.lines[0] for parcel in self._sender.waiting]
        unsure += [parcel.lines[0] for parcel, _ in self._misplaced]
        if self._grouping is not None:
            unsure += self._grouping.first_lines()
        return min(unsure) - 1 if unsure else self._last_line

    def pass_over(self, line: int) -> None:
        """A line that holds no record."""
        self._last_line = line

    def take(self, line: int, record: NewRecord) -> None:
        """One more, no sooner than the rate allows."""
        self._pace()
        if self._waiting_since is None:
            self._waiting_since = self._runtime.monotonic()
        self._taken += 1
        if self._grouping is None:
            self._last_line = line
            self._sender.add(Parcel(record, (line, line)))
            return
        parcels = self._grouping.add(line, record)
        self._last_line = line
        self._send(parcels)

    def breathe(self) -> None:
        """Call now and then: sends what has waited for company long enough."""
        since = self._waiting_since
        if since is not None and self._runtime.monotonic() - since >= LINGER:
            self.flush()

    def flush(self) -> None:
        """Everything that was taken is in when this returns."""
        while True:
            if self._grouping is not None:
                self._send(self._grouping.close())
            self._sender.flush()
            if not self._misplaced:
                break
            self._place_again()
        self._waiting_since = None

    def _send(self, parcels: Sequence[Parcel]) -> None:
        for at, parcel in enumerate(parcels):
            try:
                self._sender.add(parcel)
            except Exception:
                # What was taken out of the groups must not be forgotten in `complete_through`.
                self._misplaced += [(one, "") for one in parcels[at:]]
                raise

    def _is_in(self, parcel: Parcel, shard_id: str) -> bool:
        if self._grouping is None or self._grouping.is_seen_in(parcel, shard_id):
            return True
        self._misplaced.append((parcel, shard_id))
        return False

    def _place_again(self) -> None:
        """The stream was resharded meanwhile: group by the new shards what consumers would drop."""
        grouping = self._grouping
        if grouping is None:
            return
        parcels = grouping.place_again(self._listing({shard_id for _, shard_id in self._misplaced} - {""}))
        misplaced, self._misplaced = self._misplaced, []
        for parcel, shard_id in misplaced:
            if grouping.is_seen_in(parcel, shard_id):
                self._sender.count(parcel)
                continue
            if not isinstance(parcel, Aggregate):
                parcels.append(parcel)
                continue
            self.tally.sent_again += parcel.count
            for line, record in parcel.users:
                parcels += grouping.add(line, record)
        self._send(parcels)

    def _listing(self, landed_in: Set[str] = frozenset()) -> Sequence[Shard]:
        """The shards, those that records landed in among them.

        ListShards may lag behind a reshard: 1) a shard is split; 2) an aggregate lands in one of the new ones; 3) the
        listing still shows the shards of before. Grouped by it, the same aggregate would be put again, and land there
        again, until the listing changes.
        """
        for attempt in count():
            try:
                shards = self._outlet.shards()
                if landed_in <= {shard.shard_id for shard in shards}:
                    break
                trouble = "ListShards does not show all shards yet."
            except TemporaryError as error:
                trouble = str(error)
            if self._give_up.is_set():
                raise GivenUp(f"The shards of the stream could not be listed ({trouble})")
            # The first time it is as usual after a reshard.
            if attempt:
                self._on_notice(f"{trouble} Listing again.")
            self._give_up.wait(_LISTING_PAUSE)
        return shards

    def _pace(self) -> None:
        if self._rate is None or self._stop.is_set():
            return
        due = self._begun + self._taken / self._rate
        now = self._runtime.monotonic()
        if due - now > _BURST:
            self.flush()
            self._stop.wait(due - self._runtime.monotonic())
        elif now - due > 1:
            # Sending was slower than that: do not make up for it with a flood.
            self._begun += now - due
