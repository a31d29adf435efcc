"""Verdict of the demo: a pure function of the records put, the records delivered, and the actions on the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pykcl.demo.record_log import Delivery


@dataclass(frozen=True, slots=True)
class Kill:
    """State of a worker just before its kill -9, read while it was suspended.

    leases: those it owned in the lease table. undelivered: Kinesis records of those shards that the server counted
    and that no worker had delivered. in_progress: user records inside a running process_records.
    """

    worker: str
    leases: tuple[str, ...]
    undelivered: int
    in_progress: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it was kept. records: their user record ids, None for one that the producer did not put."""

    id: str
    records: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Poison:
    """records: the ids of the poison records that were put. letters: all that were kept, copies too.

    redriven: deliveries by the redrive.
    """

    records: frozenset[int]
    letters: Sequence[Letter]
    redriven: Sequence[Delivery]


@dataclass(frozen=True, slots=True)
class Evidence:
    """produced: user record id -> shard it was put to. acknowledged: Kinesis records the producer put.
    put_counts: Kinesis records per shard as the server counts them. parents: of every shard.
    deliveries: by the workers. java: the Java worker's name, if there was one. poison: None for a run without any.
    problems: other failures, as texts.
    """

    produced: Mapping[int, str]
    acknowledged: int
    put_counts: Mapping[str, int]
    deliveries: Sequence[Delivery]
    parents: Mapping[str, tuple[str, ...]]
    kills: Sequence[Kill]
    split_children: tuple[str, ...]
    merge_children: tuple[str, ...]
    terminated: str | None
    java: str | None = None
    poison: Poison | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the demo. reasons: for a failure; empty for a pass."""

    produced: int
    kinesis_records: int
    processed: int
    duplicates: int
    lost: int
    out_of_order: int
    reasons: tuple[str, ...]
    dead_letters: int = 0
    redriven: int = 0

    @property
    def passed(self) -> bool:
        return not self.reasons


def evaluate(evidence: Evidence) -> Verdict:
    """Pass if no record was lost or out of order, and the evidence shows that every action really took place."""
    poison = evidence.poison or Poison(frozenset(), (), ())
    # The order is that of the workers: a redrive comes when it comes, and no child waits for it.
    everything = [*evidence.deliveries, *poison.redriven]
    delivered = [delivery for delivery in everything if delivery.id is not None]
    distinct = {delivery.id for delivery in delivered}
    lost = sorted(evidence.produced.keys() - distinct)
    disorder = count_out_of_order(evidence.deliveries) + count_children_before_parents(
        evidence.deliveries, evidence.parents
    )
    reasons = [
        *_lost(lost, evidence.produced),
        *([f"{disorder} deliveries were out of order"] if disorder else []),
        *_counts(evidence, everything),
        *(_poison(poison, evidence.deliveries) if evidence.poison else []),
        *_preconditions(evidence),
        *evidence.problems,
    ]
    return Verdict(
        produced=len(evidence.produced),
        kinesis_records=sum(evidence.put_counts.values()),
        processed=len(evidence.produced.keys() & distinct),
        duplicates=len(delivered) - len(distinct),
        lost=len(lost),
        out_of_order=disorder,
        reasons=tuple(reasons),
        dead_letters=len({letter.id for letter in poison.letters}),
        redriven=len({delivery.id for delivery in poison.redriven}),
    )


def count_out_of_order(deliveries: Iterable[Delivery]) -> int:
    """Count deliveries at or before the previous one, within one ownership of a shard by one worker process.

    Across ownerships a step back is allowed: the next owner starts at the checkpoint.
    """
    last: dict[tuple[str, str, int], tuple[int, int]] = {}
    count = 0
    for delivery in deliveries:
        key = (delivery.worker, delivery.shard, delivery.run)
        position = (int(delivery.sequence), delivery.sub)
        count += key in last and position <= last[key]
        last[key] = position
    return count


def count_children_before_parents(
    deliveries: Sequence[Delivery], parents: Mapping[str, tuple[str, ...]]
) -> int:
    """Count deliveries from a shard that came before each record of its parents had been delivered once."""
    first: dict[tuple[str, str, int], int] = {}
    for delivery in deliveries:
        key = (delivery.shard, delivery.sequence, delivery.sub)
        first[key] = min(delivery.at, first.get(key, delivery.at))
    done: dict[str, int] = {}
    for (shard, _, _), at in first.items():
        done[shard] = max(at, done.get(shard, 0))
    ready = {shard: max((done.get(parent, 0) for parent in of), default=0) for shard, of in parents.items()}
    return sum(delivery.at < ready.get(delivery.shard, 0) for delivery in deliveries)


def _lost(lost: Sequence[int], produced: Mapping[int, str]) -> list[str]:
    if not lost:
        return []
    where = Counter(produced[number] for number in lost)
    shown = ", ".join(f"{count} of {shard}" for shard, count in sorted(where.items()))
    return [f"{len(lost)} user records were lost: {shown}"]


def _counts(evidence: Evidence, deliveries: Sequence[Delivery]) -> list[str]:
    """Compare with the counts of the server, which are independent of the ids of producer and workers.

    deliveries: by the workers and by the redrive.
    """
    reasons = []
    count = sum(evidence.put_counts.values())
    if not evidence.produced:
        reasons.append("nothing was produced")
    if count != evidence.acknowledged:
        reasons.append(
            f"the server counted {count} Kinesis records, the producer put {evidence.acknowledged}"
        )
    seen: dict[str, set[str]] = {}
    for delivery in deliveries:
        seen.setdefault(delivery.shard, set()).add(delivery.sequence)
    for shard in sorted(evidence.put_counts.keys() | seen.keys()):
        put, read = evidence.put_counts.get(shard, 0), len(seen.get(shard, ()))
        if put != read:
            reasons.append(f"{shard}: the server counted {put} Kinesis records, {read} were delivered")
    unknown = sum(delivery.id is None or delivery.id not in evidence.produced for delivery in deliveries)
    if unknown:
        reasons.append(f"{unknown} delivered records were never produced")
    return reasons


def _poison(poison: Poison, deliveries: Sequence[Delivery]) -> list[str]:
    """Exactly the poison is in the dead letters, each record in one letter, and is processed by the redrive alone.

    The same letter may be kept more than once: a worker that was killed in between sends it again.
    """
    reasons = [] if poison.records else ["no poison record was put"]
    letters: dict[int | None, set[str]] = {}
    for letter in poison.letters:
        for number in letter.records:
            letters.setdefault(number, set()).add(letter.id)
    redriven = {delivery.id for delivery in poison.redriven}
    for number in sorted(poison.records):
        count = len(letters.get(number, ()))
        if count != 1:
            reasons.append(f"poison record {number} is in {count} dead letters instead of 1")
        if number not in redriven:
            reasons.append(f"poison record {number} was not redriven")
    if others := len(letters.keys() - poison.records):
        reasons.append(f"{others} records in the dead letters are not poison")
    if others := len(redriven - letters.keys()):
        reasons.append(f"{others} redriven records were in no dead letter")
    if processed := sum(delivery.id in poison.records for delivery in deliveries):
        reasons.append(f"the workers processed poison records {processed} times")
    return reasons


def _kills(evidence: Evidence) -> list[str]:
    killed = {kill.worker for kill in evidence.kills}
    reasons = [] if killed - {evidence.java} else ["no Python worker was killed"]
    if evidence.java is not None:
        if evidence.java not in killed:
            reasons.append(f"{evidence.java} was not killed")
        if all(delivery.worker != evidence.java for delivery in evidence.deliveries):
            reasons.append(f"{evidence.java} delivered nothing")
    for kill in evidence.kills:
        if not kill.leases:
            reasons.append(f"{kill.worker} owned no lease when it was killed")
        elif not kill.undelivered:
            reasons.append(f"{kill.worker} had no undelivered records when it was killed")
    return reasons


def _preconditions(evidence: Evidence) -> list[str]:
    reasons = _kills(evidence)
    if evidence.terminated is None:
        reasons.append("no worker was stopped by SIGTERM")
    delivering = {delivery.shard for delivery in evidence.deliveries}
    for what, children, wanted in (
        ("split", evidence.split_children, 2),
        ("merge", evidence.merge_children, 1),
    ):
        if len(children) != wanted:
            reasons.append(f"the {what} created {len(children)} shards instead of {wanted}")
        reasons.extend(
            f"{child}, child of the {what}, delivered nothing"
            for child in children
            if child not in delivering
        )
    return reasons
