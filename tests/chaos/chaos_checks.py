"""The verdict over a run: pure functions from `Evidence` to checks. Nothing here knows a clock, a process or a file.

A check says what it examined. One that examined nothing proves nothing, and is shown as NOT EXERCISED.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable

from fleet_checks import (
    Check,
    check_of,
    no_strangers,
    nothing_lost,
    one_life,
    order_without_gaps,
    parents_first,
)
from fleet_duplicates import repeats
from fleet_evidence import Evidence, Item, Process
from fleet_ownership import ownerships
from fleet_rows import RowWrite, shown

FORCED_EXIT = 70
ACTIONS = ("kill", "freeze", "terminate", "force", "split", "merge", "update shard count", "rolling restart")
OWNERS_WRITES = ("renew", "checkpoint", "end", "release")


def all_checks(evidence: Evidence) -> list[Check]:
    """Every check, in the order of the table."""
    return [check(evidence) for check in CHECKS]


# -- checkpoints -----------------------------------------------------------------------------------------------


def starts_at_checkpoint(evidence: Evidence) -> Check:
    """A processor starts at the checkpoint its row had when its worker took the lease, and gets nothing at or below."""
    problems = []
    owned = {(own.shard, own.token): own for own in ownerships(evidence)}
    for life in evidence.lives:
        own = owned.get((life.shard, life.token))
        if own is None or own.worker != life.worker:
            problems.append(f"{life} began without an ownership in the table")
            continue
        if life.start != own.checkpoint:
            problems.append(f"{life} began at {shown(life.start)}, its row stood at {shown(own.checkpoint)}")
        again = [item for _, batch in life.given for item in batch if item.at <= own.checkpoint]
        problems += [f"{life} got {item} again, which was checkpointed when it began" for item in again[:1]]
    return check_of(
        "start at the durable checkpoint", f"{len(evidence.lives)} starts", problems, len(evidence.lives)
    )


def checkpoint_behind_work(evidence: Evidence) -> Check:
    """When a checkpoint is written, every record at or below it has been finished before."""
    done: dict[str, dict[Item, int]] = {}
    for life in evidence.lives:
        for t, item in life.done:
            times = done.setdefault(life.shard, {})
            times[item] = min(t, times.get(item, t))
    problems: list[str] = []
    count = 0
    places = {shard: [item.at for item in items] for shard, items in evidence.records.items()}
    for write in evidence.writes:
        before, after = write.before, write.after
        if not write.applied or after is None or before is None or after.checkpoint == before.checkpoint:
            continue
        count += 1
        if after.checkpoint < before.checkpoint:
            problems.append(
                f"{write.key} went back from {shown(before.checkpoint)} to {shown(after.checkpoint)}"
            )
        items, of = evidence.records.get(write.key, []), places.get(write.key, [])
        times = done.get(write.key, {})
        for item in items[bisect_right(of, before.checkpoint) : bisect_right(of, after.checkpoint)]:
            if times.get(item, write.t + 1) > write.t:
                problems.append(
                    f"{write.writer} wrote the checkpoint {shown(after.checkpoint)} of {write.key} before {item} was finished"
                )
                break
    return check_of("checkpoints behind the work", f"{count} checkpoints moved", problems, count)


def confirmed_is_durable(evidence: Evidence) -> Check:
    """A checkpoint that the processor was told is written stands in the table."""
    problems, count = [], 0
    reached: dict[str, list[RowWrite]] = {}
    for write in evidence.writes:
        if write.applied and write.after is not None and write.kind != "create":
            reached.setdefault(write.key, []).append(write)
    for life in evidence.lives:
        written = [w for w in reached.get(life.shard, ()) if w.writer == life.worker]
        for t, at in life.confirmed:
            count += 1
            if not any(w.t <= t and w.after and w.after.checkpoint >= at for w in written):
                problems.append(
                    f"{life} was told that {shown(at)} is written, and the table never had it by then"
                )
    return check_of("confirmed means durable", f"{count} confirmations", problems, count)


# -- duplicates ------------------------------------------------------------------------------------------------


def none_after_release(evidence: Evidence) -> Check:
    """Whoever follows a clean release, or an ended shard, repeats nothing of that owner."""
    clean = [own for own in ownerships(evidence) if own.how == "D0" and own.closed]
    problems = [
        f"{repeat.items[0]} and {len(repeat.items) - 1} more of {repeat.first.shard} were repeated by "
        f"{repeat.second.worker} though {repeat.first.worker} had released the lease"
        for repeat in repeats(evidence)
        if repeat.kind == "D0"
    ]
    return check_of(
        "no duplicates on clean stop", f"{len(clean)} releases and shard ends", problems, len(clean)
    )


def within_one_batch(evidence: Evidence) -> Check:
    """Duplicates come from the batch that was running: everything before it had been checkpointed."""
    problems, pairs = [], repeats(evidence)
    for repeat in pairs:
        repeated = set(repeat.items)
        batches = [batch for _, batch in repeat.first.given if repeated & set(batch)]
        if len(batches) > 1:
            problems.append(
                f"{repeat.second} repeated {len(repeated)} records from {len(batches)} batches of {repeat.first}"
            )
    unfinished = sum(own.how != "D0" for own in ownerships(evidence))
    examined = f"{unfinished} ownerships that broke off"
    return check_of("duplicates within one batch", examined, problems, unfinished)


# -- the table -------------------------------------------------------------------------------------------------


def counters(evidence: Evidence) -> Check:
    """Every write moves the counter by exactly one; a new row begins at 0, and no row is made a second time."""
    applied = [write for write in evidence.writes if write.applied and write.after is not None]
    problems = [
        f"{write.kind} of {write.key} by {write.writer} moved the counter from "
        f"{write.before.counter if write.before else 'nothing'} to {write.after.counter}"
        for write in applied
        if write.after and write.after.counter != (write.before.counter + 1 if write.before else 0)
    ]
    made = Counter(write.key for write in applied if write.kind == "create")
    problems += [f"the row of {key} was made {count} times" for key, count in made.items() if count > 1]
    return check_of("lease counters grow by one", f"{len(applied)} writes applied", problems, len(applied))


def conditions(evidence: Evidence) -> Check:
    """Every write says which counter and owner it believes in; none is of an unknown kind."""
    problems = []
    for write in evidence.writes:
        if write.kind == "create":
            good = write.condition == "attribute_not_exists(leaseKey)"
        else:
            good = "leaseCounter = :seenCounter" in write.condition and "leaseOwner" in write.condition
        if not good or write.kind == "other":
            problems.append(
                f"{write.kind} of {write.key} by {write.writer} had the condition {write.condition!r}"
            )
    refused = sum(write.refused for write in evidence.writes)
    examined = f"{len(evidence.writes)} writes, {refused} of them refused"
    return check_of("every write conditional", examined, problems, len(evidence.writes))


def only_owners_write(evidence: Evidence) -> Check:
    """Heartbeats, checkpoints, ends and releases that were applied came from whom the row named."""
    written = [w for w in evidence.writes if w.applied and w.kind in OWNERS_WRITES]
    problems = [
        f"{write.kind} of {write.key} by {write.writer} was applied while the row named "
        f"{write.before.owner if write.before else 'nobody'}"
        for write in written
        if write.before is None or write.writer is None or write.before.owner != write.writer
    ]
    return check_of("only owners write", f"{len(written)} writes of owners", problems, len(written))


def zombies(evidence: Evidence) -> Check:
    """Who was frozen for longer than its lease writes nothing to what others have taken, and begins no new batch.

    One batch may begin: the one it was about to begin when it froze, behind its last look at the lease.
    """
    problems = []
    taken = [own for own in ownerships(evidence) if own.how == "D3"]
    lives = {(life.shard, life.token): life for life in evidence.lives}
    for own in taken:
        life = lives.get((own.shard, own.token))
        begun = [t for t, _ in life.given if t > own.until] if life else []
        if len(begun) > 1:
            problems.append(f"{life} began {len(begun)} batches after {own.successor} had taken the lease")
    since = {own.worker: own.until for own in taken}
    refused = sum(w.refused and w.writer in since and w.t > since[w.writer] for w in evidence.writes)
    for own in taken:
        problems += [
            f"{write.kind} of {write.key} by {write.writer} was applied after {own.successor} had taken it"
            for write in evidence.writes
            if write.applied and write.key == own.shard and write.writer == own.worker and write.kind != "take"
            and own.closing < write.index < own.next_by_same
        ]  # fmt: skip
    examined = f"{len(taken)} leases taken from frozen workers, {refused} of their writes refused"
    return check_of("zombies write nothing", examined, problems, len(taken))


def nothing_owned_after_stop(evidence: Evidence) -> Check:
    """A worker that stopped cleanly owns nothing, but what it said itself it could not release or had lost."""
    problems, count, takes = [], 0, 0
    owned = ownerships(evidence)
    for process in evidence.processes.values():
        if process.code != 0 or process.exited is None:
            continue
        count += 1
        takes += len(process.takes)
        for own in owned:
            held = own.worker == process.worker and own.until > process.exited
            # A take whose answer it never saw is not its to release, nor is what it knows to be lost.
            if held and (own.shard, own.token) in process.takes and own.shard not in process.excused:
                problems.append(f"{process.worker} stopped with exit code 0 and still owned {own.shard}")
    return check_of("nothing owned after clean stop", f"{count} clean stops, {takes} leases", problems, takes)


# -- processes -------------------------------------------------------------------------------------------------


def exit_codes(evidence: Evidence) -> Check:
    """0 after SIGTERM, 70 after a forced stop, -9 after SIGKILL; nobody ends by itself."""
    problems = []
    ends: Counter[str] = Counter()
    for process in evidence.processes.values():
        how, expected = _expected_code(process)
        ends[how] += 1
        if process.code != expected:
            words = f": {process.last_words}" if process.last_words else ""
            problems.append(
                f"{process.worker} ({how}) ended with {process.code} instead of {expected}{words}"
            )
    examined = ", ".join(f"{count} {how}" for how, count in sorted(ends.items()))
    return check_of("exit codes", examined or "none", problems, len(ends))


def _expected_code(process: Process) -> tuple[str, int | None]:
    if process.killed is not None:
        return "SIGKILL", -9
    if process.forced is not None:
        return "forced", FORCED_EXIT
    return ("SIGTERM", 0) if process.terminated is not None else ("unasked", None)


def no_crash(evidence: Evidence) -> Check:
    problems = [f"{p.worker} printed a traceback" for p in evidence.processes.values() if p.crashed]
    return check_of("no traceback", f"{len(evidence.processes)} logs", problems, len(evidence.processes))


def came_to_rest(evidence: Evidence) -> Check:
    """With the faults off the fleet got everything done that was left."""
    return check_of("all work done in the end", f"{len(evidence.parents)} shards", evidence.unsettled, 1)


# -- what the run was --------------------------------------------------------------------------------------------


def _all_happened(name: str, counts: dict[str, int]) -> Check:
    examined = ", ".join(f"{count} {what}" for what, count in counts.items())
    return Check(name, examined, (), all(counts.values()))


def everything_was_done(evidence: Evidence) -> Check:
    return _all_happened("done to the fleet", {action: evidence.actions[action] for action in ACTIONS})


def every_fault_injected(evidence: Evidence) -> Check:
    return _all_happened("faults injected", evidence.faults)


CHECKS: tuple[Callable[[Evidence], Check], ...] = (
    nothing_lost, no_strangers, order_without_gaps, one_life, parents_first, starts_at_checkpoint,
    checkpoint_behind_work, confirmed_is_durable, none_after_release, within_one_batch, counters, conditions,
    only_owners_write, zombies, nothing_owned_after_stop, exit_codes, no_crash, came_to_rest, everything_was_done,
    every_fault_injected,
)  # fmt: skip
