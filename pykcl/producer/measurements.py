"""Metrics of a producer: a few values for each request and for the records that it settles, none for a record alone."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from pykcl.errors import NotDelivered, PyKclError
from pykcl.metrics import catalog
from pykcl.metrics.meter import Meter
from pykcl.model.new_record import PutAnswer
from pykcl.producer.accumulator import Outcome, Parcel, PendingRecord, PutResult, Request
from pykcl.producer.shard_map import ShardMap
from pykcl.status import Activity

log = logging.getLogger("pykcl.producer")


class ProducerMeasures:
    """Used by all threads of a producer; never under its lock. by_shard: each shard has values of its own."""

    def __init__(self, meter: Meter, *, by_shard: bool) -> None:
        self._meter, self._by_shard = meter, by_shard
        # The shards that have values of their own, and the newest listing.
        self._shown: set[str] = set()
        self._map: ShardMap | None = None

    @property
    def is_on(self) -> bool:
        return self._meter.is_on

    def clock(self) -> float:
        """Monotonic seconds, to be given to `requested`."""
        return self._meter.clock()

    def listed(self, shards: ShardMap) -> None:
        """Let what was measured of shards leave that have ended, by a new listing. Called by one thread at a time.

        A shard that the listing lacks has ended if the one before had it. If not, it is newer than the listing.
        """
        before, self._map = self._map, shards
        for shard in self._shown - shards.open_shards:
            if shards.knows(shard) or (before is not None and before.knows(shard)):
                self._shown.discard(shard)
                self._meter.forget(shard)

    def requested(
        self, request: Request, answers: Sequence[PutAnswer], failure: PyKclError | None, began: float
    ) -> None:
        """Measure a request that has ended. failure: of the whole request, which then has no answers."""
        if not self.is_on:
            return
        self._meter.measure(
            "",
            (catalog.REQUEST_TIME, self._meter.since(began)),
            (catalog.KINESIS_RECORDS_PER_REQUEST, float(len(request))),
            (catalog.USER_RECORDS_PER_REQUEST, float(sum(len(parcel.users) for parcel in request))),
        )
        waits: dict[str, float] = {}
        for parcel in request:
            first = parcel.users[0]
            if first.attempts <= 1:
                shard = self._label(parcel.queue.shard_id)
                waits[shard] = max(waits.get(shard, 0.0), began - first.added_at)
        for shard, seconds in waits.items():
            self._meter.measure(shard, (catalog.BUFFERING_TIME, seconds * 1000.0))
        if failure is not None:
            answers = [PutAnswer(None, type(failure).__name__)] * len(request)
        put: dict[str, list[Parcel]] = defaultdict(list)
        refused: Counter[str] = Counter()
        for parcel, answer in zip(request, answers, strict=True):
            if answer.shard_id is None:
                refused[self._label(parcel.queue.shard_id)] += 1
            else:
                put[self._label(answer.shard_id)].append(parcel)
        for shard, parcels in put.items():
            self._put(shard, parcels)
        self._errors(refused, Counter(one.error or "Unknown" for one in answers if one.shard_id is None))

    def settled(self, outcomes: Sequence[Outcome]) -> None:
        """Measure records that have an outcome."""
        if not self.is_on:
            return
        put: dict[str, list[PendingRecord]] = defaultdict(list)
        given_up: list[PendingRecord] = []
        for pending, outcome in outcomes:
            if isinstance(outcome, PutResult):
                put[self._label(outcome.shard_id)].append(pending)
            else:
                given_up.append(pending)
        for shard, records in put.items():
            self._meter.measure(
                shard,
                (catalog.USER_RECORDS_PUT, float(len(records))),
                (catalog.USER_RECORDS_DATA_PUT, float(sum(len(one.record.data) for one in records))),
                (catalog.RETRIES_PER_RECORD, _retries(records)),
            )
        if given_up:
            # Whatever its error is: an alarm on this code learns of each loss.
            self._errors({"": len(given_up)}, {NotDelivered.__name__: len(given_up)})
            self._meter.measure("", (catalog.RETRIES_PER_RECORD, _retries(given_up)))

    def sampled(self, received: int, pending: int) -> None:
        """Measure the number of records taken since the last sample, and of those without an outcome."""
        self._meter.measure(
            "",
            (catalog.USER_RECORDS_RECEIVED, float(received)),
            (catalog.USER_RECORDS_PENDING, float(pending)),
        )

    def _put(self, shard: str, parcels: Sequence[Parcel]) -> None:
        users = sum(len(parcel.users) for parcel in parcels)
        self._meter.measure(
            shard,
            (catalog.KINESIS_RECORDS_PUT, float(len(parcels))),
            (catalog.KINESIS_RECORDS_DATA_PUT, float(sum(len(one.record.data) for one in parcels))),
            (catalog.USER_RECORDS_PER_KINESIS_RECORD, users / len(parcels)),
        )

    def _errors(self, by_shard: Mapping[str, int], by_code: Mapping[str, int]) -> None:
        for shard, count in by_shard.items():
            self._meter.measure(shard, (catalog.ALL_ERRORS, float(count)))
        for code, count in by_code.items():
            self._meter.measure(code, (catalog.ERRORS_BY_CODE, float(count)))

    def _label(self, shard_id: str) -> str:
        if not (self._by_shard and shard_id):
            return ""
        self._shown.add(shard_id)
        return shard_id


def _retries(records: Sequence[PendingRecord]) -> float:
    """Return the requests besides the first one, on average of the records; 0 of one that was in none."""
    return sum(max(0, record.attempts - 1) for record in records) / len(records)


class PublishingFailures:
    """Logs the first failure of a row to publish metrics, and its end. Used by the thread that publishes."""

    def __init__(self) -> None:
        self._fails = False

    def failed(self, what: Activity, error: Exception, /) -> None:
        if not self._fails:
            log.warning("%s fails error=%s", what, error)
        self._fails = True

    def worked(self, what: Activity, /) -> None:
        if self._fails:
            log.info("%s works again", what)
        self._fails = False
