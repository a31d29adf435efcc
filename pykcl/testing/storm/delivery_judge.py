"""Judges every call of a processor: gaps, order, parents first, life cycle; and counts what came twice, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from pykcl.testing.storm.judge import Verdict
from pykcl.testing.storm.ledger import Ledger
from pykcl.testing.storm.ownership import Ownership
from pykcl.testing.storm.places import AT_LATEST, AT_TRIM_HORIZON, Place
from pykcl.testing.storm.promises import Promise


class DeliveryJudge:
    """fates: how a host's last time with its leases ended, by host: "crash", "clean stop", "pause" or nothing known.

    believes: whether a host believes in a lease, or cannot know better because it stood still until this moment.
    owns: whether it is the last who took the lease, as the row tells.
    is_calm: whether a robbed owner must have noticed before its thief begins.
    released: (host, shard) of which the row says that the host let go in order. reader: who last had records of it.
    on_begins, on_batch, on_returned, on_repeated: other judges that hear of it: of a batch also whether records that
    retention took are missing before it, of a repetition the owner before and why.
    """

    def __init__(self, ledger: Ledger, verdict: Verdict) -> None:
        self.ledger = ledger
        self._verdict = verdict
        self.fates: dict[str, str] = {}
        self.stolen: set[str] = set()
        self.duplicates: Counter[str] = Counter()
        self.most_duplicates: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.released: set[tuple[str, str]] = set()
        self.reader: dict[str, str] = {}
        self.batches = 0
        self._ended: set[tuple[str, str]] = set()
        self.last: dict[str, Ownership] = {}
        self._owning: dict[str, Ownership] = {}
        self.believes: Callable[[str, str], bool] = lambda host, shard_id: True
        self.owns: Callable[[str, str], bool] = lambda host, shard_id: False
        self.is_made_by_pykcl: Callable[[str], bool] = lambda shard_id: True
        self.is_calm = False
        self.on_begins: Callable[[Ownership], None] = lambda owning: None
        self.on_batch: Callable[[Ownership, bool], None] = lambda owning, lacks: None
        self.on_returned: Callable[[Ownership], None] = lambda owning: None
        self.on_skipped: Callable[[Ownership], None] = lambda owning: None
        self.on_repeated: Callable[[Ownership, list[Place], str], None] = lambda last, repeated, cause: None

    def expect(self, holds: bool, promise: Promise, what: str) -> None:
        self._verdict.expect(holds, promise, what)

    def ownership_begins(self, host: str, shard_id: str, position: Place) -> Ownership:
        shard = self.ledger.shard(shard_id)
        repeated = [place for place in shard.after(position) if place in shard.delivered]
        if repeated:
            self._judge_repetition(host, shard_id, repeated)
        self.stolen.discard(shard_id)
        self.released.discard((host, shard_id))
        owning = self.last[shard_id] = Ownership(host, shard_id, position)
        # One that begins late, and has lost the lease again already, robs nobody.
        if self.owns(host, shard_id):
            if shard_id in self._owning:
                self._owning[shard_id].is_robbed = True
            self._owning[shard_id] = owning
        self.on_begins(owning)
        return owning

    def _judge_repetition(self, host: str, shard_id: str, repeated: list[Place]) -> None:
        cause = self._cause(shard_id, repeated)
        self.duplicates[cause] += len(repeated)
        self.most_duplicates[cause] = max(self.most_duplicates[cause], len(repeated))
        self.expect(
            cause != "clean stop",
            Promise.NO_DUPLICATES,
            f"{len(repeated)} records of {shard_id} come again to {host} after a clean stop",
        )
        if shard_id in self.last:
            self.on_repeated(self.last[shard_id], repeated, cause)

    def _cause(self, shard_id: str, repeated: list[Place]) -> str:
        last = self.last.get(shard_id)
        if shard_id in self.stolen or last is None:
            return "steal" if last is not None else "other"
        fate = self.fates.get(last.host, "other")
        if fate != "clean stop":
            return fate
        # Clean only for what it released, and only it had: what an earlier owner left undone is not its fault.
        own = (last.host, shard_id) in self.released and not last.delivered.isdisjoint(repeated)
        return fate if own else "other"

    def called(self, owning: Ownership, method: str) -> None:
        """LIFE_CYCLE: initialized, batches, shard_ended perhaps again, shutdown_requested once, or lease_lost once and
        nothing more."""
        allowed = {
            "process_records": ("initialized",),
            "shard_ended": ("initialized", "ended"),
            "shutdown_requested": ("initialized", "ended"),
            "lease_lost": ("initialized", "ended", "shut down"),
        }[method]
        promise = Promise.SILENT_AFTER_LOSS if owning.state == "lost" else Promise.LIFE_CYCLE
        where = f"{owning.host} {owning.shard_id}"
        self.expect(owning.state in allowed, promise, f"{where}: {method} when {owning.state}")
        if method == "shutdown_requested":
            owning.state = "shut down"

    def batch_begins(self, owning: Ownership, given: list[Place]) -> None:
        """NO_GAP, PARENTS_FIRST, and that the host may deliver at all."""
        self.reader[owning.shard_id] = owning.host
        self.batches += 1
        owning.goes_on_with(given)
        where = f"{owning.host} {owning.shard_id} after {owning.after}"
        believed = self.believes(owning.host, owning.shard_id)
        self.expect(believed, Promise.SILENT_AFTER_LOSS, f"{where}: a batch without belief in the lease")
        robbed = self.is_calm and owning.is_robbed
        self.expect(not robbed, Promise.ONE_OWNER, f"{where}: a batch after its thief had begun")
        owning.in_calm = self.is_calm
        self.on_batch(owning, self._lacks(owning, given, where))
        owning.running = given
        self._judge_parents(owning.shard_id, where)

    def _lacks(self, owning: Ownership, given: list[Place], where: str) -> bool:
        """NO_GAP. Whether records are missing that retention took; others were just fetched before they went."""
        shard = self.ledger.shard(owning.shard_id)
        ahead = iter(shard.after(owning.after))
        lacks = False
        # Who reads the whole shard is given also what was put before the start.
        unasked = shard.before if owning.after == AT_TRIM_HORIZON else set()
        for place in (place for place in given if place not in unasked):
            wanted = next(ahead, None)
            while wanted != place and wanted in shard.trimmed:
                lacks, wanted = True, next(ahead, None)
            if wanted != place:
                self.expect(False, Promise.NO_GAP, f"{where}: wanted {wanted}, given {place}")
                break
        return lacks

    def _judge_parents(self, shard_id: str, where: str) -> None:
        for ancestor in sorted(self.ledger.ancestors(shard_id)):
            owed = self.ledger.shard(ancestor).first_owed()
            self.expect(owed is None, Promise.PARENTS_FIRST, f"{where}: {ancestor} still owes {owed}")

    def java_delivers(self, name: str, shard_id: str, places: list[Place]) -> None:
        """A Java worker gives these records to its application: pykcl may have made their shard known too early.

        What Java itself made of a list of shards that lacked one is not for us to judge.
        """
        if self.is_made_by_pykcl(shard_id):
            self._judge_parents(shard_id, f"{name} {shard_id}")
        self.last.pop(shard_id, None)
        self.ledger.delivered(shard_id, places)

    def delivered(self, owning: Ownership, places: list[Place]) -> None:
        self.ledger.delivered(owning.shard_id, places)
        owning.delivered.update(places)
        owning.after = places[-1]
        self.on_returned(owning)

    def refused(self, host: str, shard_id: str, error: Exception) -> None:
        """The application's own thread was told that its checkpoint did not come about."""
        self.refusals[type(error).__name__] += 1

    def shard_ends(self, owning: Ownership) -> None:
        owed = self.ledger.shard(owning.shard_id).first_owed()
        where = f"{owning.host} {owning.shard_id}"
        self.expect(owed is None, Promise.NO_GAP, f"{where}: shard_ended, but {owed} is owed")
        shard = self.ledger.shard(owning.shard_id)
        rest = shard.after(owning.after)
        # Who begins at LATEST is behind all that was delivered under a lease of the shard that is no more.
        had = shard.delivered if owning.after == AT_LATEST else set()
        left_out = next((place for place in rest if place not in shard.trimmed and place not in had), None)
        self.expect(
            left_out is None, Promise.NO_GAP, f"{where}: shard_ended, and it was not given {left_out}"
        )
        if owning.state == "initialized":
            self.on_batch(owning, bool(rest))
        owning.state = "ended"
        self._ended.add((owning.host, owning.shard_id))

    def has_ended(self, host: str, shard_id: str) -> bool:
        """Whether a processor that this host had for the shard was called with its end."""
        return (host, shard_id) in self._ended

    def ownership_lost(self, owning: Ownership) -> None:
        owning.state = "lost"
