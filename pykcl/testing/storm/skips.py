"""What `on_error="skip"` gives up: the batch that raised, and nothing else."""

from __future__ import annotations

from pykcl.events import BatchSkipped
from pykcl.testing.storm.delivery_judge import DeliveryJudge
from pykcl.testing.storm.ownership import Ownership
from pykcl.testing.storm.places import Place, place_in
from pykcl.testing.storm.promises import Promise


class Skips:
    """NO_GAP, where a worker says that it skipped something. skipped: how many records were, as was promised."""

    def __init__(self, judge: DeliveryJudge) -> None:
        self._judge = judge
        self._raised: dict[tuple[str, str], tuple[Ownership, list[Place]]] = {}
        self.skipped = 0

    def raises(self, owning: Ownership, places: list[Place]) -> None:
        """The processor is about to raise for this batch."""
        self._raised[(owning.host, owning.shard_id)] = (owning, places)

    def heard(self, host: str, event: BatchSkipped) -> None:
        """The worker skipped a batch: it must be the very one that raised last. From then on nobody owes it."""
        owning, places = self._raised.pop((host, event.shard), (None, []))
        first = place_in(event.first)
        # What the processor has checkpointed of the batch before it raised is not skipped.
        rest = [place for place in places if place >= first]
        done = set(places) - set(rest)
        fits = bool(rest) and (len(rest), rest[0], rest[-1]) == (event.records, first, place_in(event.last))
        if owning is None or not fits or not done <= self._judge.ledger.shards[event.shard].delivered:
            what = f"{host} skipped {event.records} records of {event.shard} up to {event.last}, which did not raise"
            self._judge.expect(False, Promise.NO_GAP, what)
            return
        self.skipped += len(rest)
        owning.after = places[-1]
        self._judge.ledger.shards[event.shard].delivered.update(places)
        self._judge.on_skipped(owning)
