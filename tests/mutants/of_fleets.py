"""Bugs in what a worker makes of the table and of the list of shards, and in how it stops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pykcl.planning import lease_assignment, lease_deletion
from pykcl.testing.simulation import Guarantee
from pykcl.worker import shard_end
from pykcl.worker.shard_sync import LeaseCleaner
from pykcl.worker.stream_identity import ExpiredShardCheck
from pykcl.worker.worker import Worker
from tests.mutants.mutant import Function, Mutant, Patch


def unlisted_shard_taken_for_gone(patch: Patch) -> None:
    patch.replace(LeaseCleaner, "_ask", lambda _: lambda self, candidates: set(candidates))


def unlisted_parent_taken_for_gone(patch: Patch) -> None:
    patch.replace(ExpiredShardCheck, "confirm", lambda _: lambda self, shard_ids, stopping=None: None)


def parent_deleted_before_its_child_began(patch: Patch) -> None:
    def make(_: Function) -> Function:
        def has_children(lease, tree, leases, unreadable):
            children = tree.children_of(lease.key)
            return lease.is_ended and bool(children) and all(child in leases for child in children)

        return has_children

    patch.replace(lease_deletion, "_is_completed", make)


def other_side_of_a_merge_forgotten(patch: Patch) -> None:
    def make(leases_before_end: Function) -> Function:
        def child_alone(child, *surroundings):
            return [one for one in leases_before_end(child, *surroundings) if one.lease.key == child.shard_id]

        return child_alone

    patch.replace(shard_end, "leases_before_end", make)


def stop_does_not_wait_for_the_manager(patch: Patch) -> None:
    def make(join: Function) -> Function:
        def without_manager(self, tasks, deadline, *, any_signals=False):
            manager = self._manager.tasks if self._manager else ()
            others = [task for task in tasks if task not in manager]
            return join(self, others, deadline, any_signals=any_signals)

        return without_manager

    patch.replace(Worker, "_join", make)


def never_steals(patch: Patch) -> None:
    patch.replace(lease_assignment.Fleet, "_steal", lambda _: lambda self, max_steal, rng: [])


def steals_from_who_has_one_more(patch: Patch) -> None:
    def make(steal: Function) -> Function:
        def greedy(self, max_steal, rng):
            # As if this worker had one lease less than it has.
            modest = replace(self, load=Counter(self.load) - Counter({self.worker: 1}))
            return steal(modest, min(max_steal, 1), rng)

        return greedy

    patch.replace(lease_assignment.Fleet, "_steal", make)


def all_processes_have_one_name(patch: Patch) -> None:
    """As where the name is made with the program, which a server loads before it forks its processes."""
    names: list[str] = []

    def make(belong: Function) -> Function:
        def of_the_program(self):
            belong(self)
            names.append(self.worker_id)
            self.worker_id = names[0]

        return of_the_program

    patch.replace(Worker, "_belong_to_this_process", make)


FLEETS = (
    Mutant("B5", "a shard that one listing lacks: its lease is deleted", "vmware-go-kcl, kinsumer, Disney (Rust)",
            (Guarantee.DELETION_BY_EVIDENCE, Guarantee.LOSS_REPORTED), unlisted_shard_taken_for_gone),
    Mutant("M40", "a parent that one listing lacks passes for read", "here",
            (Guarantee.ALL_DELIVERED, Guarantee.PARENTS_FIRST, Guarantee.LOSS_REPORTED), unlisted_parent_taken_for_gone,
            full=True, only=frozenset({"F1", "F9.missing", "F9.stale", "F11", "F18.stop"})),
    Mutant("M42", "a parent's lease is deleted before its child has begun", "-",
            (Guarantee.DELETION_BY_EVIDENCE,), parent_deleted_before_its_child_began),
    Mutant("M43", "only the child of a merge gets a lease, not the shards on its other side", "-",
            (Guarantee.ALL_DELIVERED, Guarantee.PARENTS_FIRST), other_side_of_a_merge_forgotten),
    Mutant("M45", "a stop does not wait for the thread that starts readers", "here",
            (Guarantee.THREADS, Guarantee.STOP, Guarantee.SILENT_AFTER_LOSS), stop_does_not_wait_for_the_manager,
            full=True),
    Mutant("M46", "nobody steals: who comes late gets nothing", "-",
            (Guarantee.BALANCE,), never_steals),
    Mutant("M47", "a lease is stolen from whoever has one more", "-",
            (Guarantee.NO_CHURN, Guarantee.BALANCE), steals_from_who_has_one_more),
    Mutant("M103", "all processes of a server have the name that was made before the fork", "here",
            (Guarantee.BALANCE, Guarantee.SILENT_AFTER_LOSS), all_processes_have_one_name),
)  # fmt: skip
