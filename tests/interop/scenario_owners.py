"""Scenarios 1 to 12 with real Java workers: what shows each, as functions from what a story left to problems in words.

A function that found nothing to look at says so: a scenario that did not happen is not passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from fleet_evidence import TABLE
from fleet_ownership import ownership_of, ownerships
from fleet_rows import RowWrite, by_java, sender, shown
from scenario_log import Told, is_pykcl

# -- 1 to 3: who comes first ---------------------------------------------------------------------------------------


def moved_once(told: Told, joined: str, until: str) -> list[str]:
    """Until a worker was stopped, the one that joined took leases from a living owner, up to its share, and nobody took
    anything else a second time."""
    end = told.evidence.processes[until].terminated or 0
    keys = sorted(told.evidence.parents)
    owners = {
        key: [
            str(one.write.writer)
            for one in told.applied(key)
            if one.write.kind == "take" and one.write.t < end
        ]
        for key in keys
    }
    moved = [key for key, names in owners.items() if names == [until, joined]]
    expected = ([until], [until, joined])
    problems = [
        f"{key} went to {' and then '.join(names)}" for key, names in owners.items() if names not in expected
    ]
    if not -(-len(keys) // 2) - 1 <= len(moved) <= -(-len(keys) // 2) + 1:
        problems.append(f"{joined} took {len(moved)} of {len(keys)}")
    return problems


def made_once(told: Told) -> list[str]:
    """Both kinds asked for the table and for rows; there is one table, all shards have a row, and each was put once."""
    problems = []
    for operation in ("CreateTable", "PutItem"):
        askers = {by_java(line) for line in told.lines if line["operation"] == operation}
        problems += [] if askers == {True, False} else [f"not both kinds sent {operation}"]
    tables = [line for line in told.lines if line["operation"] == "CreateTable" and line["status"] == 200]
    names = [line["parameters"]["TableName"] for line in tables]
    problems += [] if names == [TABLE] else [f"tables made: {names}"]
    for key in told.evidence.parents:
        kinds = [one.write.kind for one in told.applied(key)]
        # Once more for each time that an operator deleted it.
        count = kinds.count("create") - kinds.count("delete")
        problems += [] if count == 1 else [f"{key} was put {kinds.count('create')} times"]
    return problems


# -- 6 to 12: whose lease it is --------------------------------------------------------------------------------------


def fenced_off(told: Told, loser: str) -> list[str]:
    """What a Java worker, alive, sends for a lease that pykcl has stolen is refused: renewals, and checkpoints too."""
    problems, refused = [], set()
    for steal, theirs in _after_steals(told, loser, pykcl_takes=True):
        problems += [
            f"{loser} wrote to {steal.key} after {steal.writer} stole it" for one in theirs if one.applied
        ]
        refused |= {one.kind for one in theirs if one.refused}
    problems += [f"no {kind} was refused" for kind in ("renew", "checkpoint") if kind not in refused]
    return problems


def fenced_refusals(writes: Iterable[RowWrite]) -> set[str]:
    """Which of a Java worker's renewals and checkpoints were refused so far."""
    return {write.kind for write in writes if write.by_java and write.refused} & {"renew", "checkpoint"}


def gave_up(told: Told, loser: str) -> list[str]:
    """A pykcl worker, alive and at work, from which Java has stolen its first lease: it sends one more heartbeat at most,
    every write is refused, the processor's checkpoint too; from that on nothing is delivered, and the processor is told."""
    steal, theirs = next(iter(_after_steals(told, loser, pykcl_takes=False)), (None, []))
    if steal is None:
        return [f"nothing was stolen from {loser}"]
    problems = [f"{loser} wrote to {steal.key} after it was stolen" for one in theirs if one.applied]
    if not any(one.refused for one in theirs):
        problems.append(f"{loser} was refused nothing on {steal.key}")
    beats = sum(one.kind == "renew" for one in theirs)
    if beats > 1:
        problems.append(f"{loser} sent {beats} heartbeats for {steal.key} after it was stolen")
    words = _said_under(told, loser, steal)
    if "refused" not in words:
        problems.append(f"no checkpoint of {steal.key} by the processor was refused")
    elif "given" in words[words.index("refused") :]:
        problems.append(f"{steal.key} was delivered to {loser} after its checkpoint was refused")
    return problems + ([] if "lost" in words else [f"the processor of {steal.key} was not told"])


def _said_under(told: Told, loser: str, steal: RowWrite) -> list[str]:
    """By the processor that the loser had then; without checkpoints that failed for a while only."""
    token = max((life.token for life in told.lives_of(loser, steal.key) if life.t <= steal.t), default=None)
    return [
        line["what"] for line in told.said[loser]
        if (line.get("shard"), line.get("token")) == (steal.key, token) and line.get("error") != "TemporaryError"
    ]  # fmt: skip


def _after_steals(told: Told, loser: str, *, pykcl_takes: bool) -> Iterable[tuple[RowWrite, list[RowWrite]]]:
    """Each take of the loser's leases while it ran, and what the loser sent for that row until it took it again itself."""
    alive = _left(told, loser)
    for number, one in enumerate(told.sent):
        steal = one.write
        if not _is_take_from(steal, loser) or steal.t >= alive or is_pykcl(one.sender) != pykcl_takes:
            continue
        theirs = []
        for later in told.sent[number + 1 :]:
            if later.write.key != steal.key or later.sender != loser:
                continue
            if later.write.kind == "take" and later.write.applied:
                break
            theirs.append(later.write)
        yield steal, theirs


def _is_take_from(write: RowWrite, owner: str) -> bool:
    return (
        write.kind == "take"
        and write.applied
        and write.before is not None
        and write.before.owner == owner != write.writer
    )


def _left(told: Told, worker: str) -> int:
    """When it was told to go, or killed, or froze first; for ever if never."""
    process = told.evidence.processes[worker]
    ends = [process.killed, process.terminated, *(begin for begin, _ in process.freezes)]
    return min((t for t in ends if t is not None), default=1 << 62)


def wrote_nothing_frozen(told: Told, frozen: str) -> list[str]:
    """After Java took the leases of a frozen pykcl worker, no write of that worker reached them, neither when it woke; and
    it delivered nothing before its processor was told."""
    problems, taken = [], 0
    for begin, end in told.evidence.processes[frozen].freezes:
        for one in told.sent:
            take = one.write
            if not _is_take_from(take, frozen) or is_pykcl(one.sender) or not begin <= take.t <= end:
                continue
            taken += 1
            # A row that somebody deleted may be made again by anybody: that is no write of an owner.
            later = [
                own.write.kind for own in told.applied(take.key)
                if own.sender == frozen and own.write.index > take.index and own.write.kind != "create"
            ]  # fmt: skip
            if later[:1] not in ([], ["take"]):
                problems.append(f"{frozen} wrote ({later[0]}) to {take.key} after Java took it")
            # From the take on, and not from the thaw, which is noted when it may have said something already.
            said = [
                line["what"] for line in told.said[frozen] if line.get("shard") == take.key and line["t"] > take.t
            ]  # fmt: skip
            until_told = said[: said.index("lost")] if "lost" in said else ["nothing"]
            if {"nothing", "given", "checkpoint"} & set(until_told):
                problems.append(f"{frozen} said {until_told} of {take.key} before it knew")
    return problems or ([] if taken else [f"Java took nothing from {frozen} while it was frozen"])


def taken_over(told: Told, gone: str, heir: str, *, rounds: int, apart_seconds: float) -> list[str]:
    """All leases that a pykcl worker had at its end went to one Java worker, within so many of its looks at the table,
    and are begun exactly where they were left.

    apart_seconds: between two looks of Java's lease taker. Scans for other purposes come nearer to each other.
    """
    process = told.evidence.processes[gone]
    at = process.killed or process.terminated or 0
    owned = ownerships(told.evidence)
    left = [own for own in owned if own.worker == gone and own.since <= at < own.until]
    problems = [] if left else [f"{gone} had no leases when it went"]
    for own in left:
        writes = told.applied(own.shard)
        take = next((one.write for one in writes if one.write.t >= at and one.write.kind == "take"), None)
        if take is None or take.writer != heir:
            problems.append(f"{own.shard} went to {take.writer if take else 'nobody'}")
            continue
        last = [one.write for one in writes if one.sender == gone and one.write.index < take.index][-1]
        looks = _looks(told, heir, last.t, take.t, apart_seconds)
        problems += [f"{heir} looked {looks} times before it took {own.shard}"] if looks > rounds else []
        if process.killed is None and not _is_release(last):
            problems.append(f"{gone} left {own.shard} by {last.kind}")
        problems += _begun_exactly(told, heir, take)
    return problems


def _is_release(write: RowWrite) -> bool:
    before, after = write.before, write.after
    if write.kind != "release" or before is None or after is None:
        return False
    return after.owner is None and after.counter == before.counter + 1


def _looks(told: Told, worker: str, since: int, until: int, apart_seconds: float) -> int:
    """From the worker's first scan on, so that each look of its lease taker counts once, whoever else scans."""
    looks = [float("-inf")]
    for line in told.lines:
        if line["operation"] != "Scan" or "Limit" in line["parameters"] or sender(line) != worker:
            continue
        if line["at_millis"] - looks[-1] >= apart_seconds * 1000:
            looks.append(line["at_millis"])
    return sum(since < t <= until for t in looks)


def _begun_exactly(told: Told, worker: str, take: RowWrite) -> list[str]:
    owned = ownerships(told.evidence)
    stood = take.after.checkpoint if take.after else None
    for life in told.lives_of(worker, take.key):
        own = ownership_of(life, owned)
        if own is not None and own.since == take.t:
            return (
                [] if life.start == stood else [f"{life} began at {shown(life.start)}, not where it was left"]
            )
    return [f"{worker} never began {take.key}"]


def waited_for_expiry(told: Told, stopped: str, failover_seconds: float) -> list[str]:
    """A Java worker that was stopped keeps its leases in the table; pykcl took each no sooner than the failover time after
    the last write of its owner."""
    at = told.evidence.processes[stopped].terminated or 0
    problems, seen = [], 0
    for key in told.evidence.parents:
        writes = told.applied(key)
        for earlier, later in pairwise(writes):
            before = earlier.write.after
            if before is None or before.owner != stopped or later.write.t < at or later.sender == stopped:
                continue
            seen += 1
            waited = (later.write.t - earlier.write.t) / 1000
            if not is_pykcl(later.sender) or later.write.kind != "take":
                problems.append(f"{key} went by {later.write.kind} of {later.sender}")
            elif waited < failover_seconds:
                problems.append(f"{later.sender} took {key} after {waited:.1f} s")
            break
    problems += [
        f"{stopped} gave {one.write.key} back" for one in told.sent
        if one.sender == stopped and one.write.kind == "release" and one.write.t >= at
    ]  # fmt: skip
    return problems or ([] if seen else [f"nobody took over from {stopped}"])
