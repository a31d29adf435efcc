"""Bugs of a follower in a fleet that a leader of KCL 3.x runs: what it reports, takes, hands over and leaves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from pykcl.model import fleet_rows, lease_writes
from pykcl.planning import assignment_decider
from pykcl.planning.leader_lock import HeldLock, LeaderWatch
from pykcl.testing.simulation import Guarantee
from pykcl.worker import leadership
from pykcl.worker.held_leases import HeldLease
from pykcl.worker.leadership import Leadership
from pykcl.worker.lease_manager import LeaseManager
from pykcl.worker.lease_worker import LeaseWorker
from pykcl.worker.membership import Membership
from tests.mutants.mutant import Function, Mutant, Patch
from tests.simulation.course import Mode


def metrics_before_the_first_query(patch: Patch) -> None:
    def make(assigned: Function) -> Function:
        def late(self, now, busy):
            self.report_if_due(now)
            return assigned(self, now, busy)

        return late

    patch.replace(Membership, "assigned", make)


def asked_for_and_not_handed_over(patch: Patch) -> None:
    patch.replace(HeldLease, "next_owner", lambda _: lambda self: None)
    patch.replace(LeaseWorker, "hand_over_if_late", lambda _: lambda self, now: None)


class _ByTheHost:
    """A Context whose stream shows the time of the host."""

    def __init__(self, context):
        self._context = context
        self.stream = SimpleNamespace(server_time_millis=lambda **_: context.runtime.utcnow_millis())

    def __getattr__(self, name):
        return getattr(self._context, name)


def report_by_the_clock_of_the_host(patch: Patch) -> None:
    def make(report: Function) -> Function:
        def by_the_host(self, now):
            context, self._context = self._context, _ByTheHost(self._context)
            try:
                report(self, now)
            finally:
                self._context = context

        return by_the_host

    patch.replace(Membership, "report_if_due", make)


def ended_lease_without_owner(patch: Patch) -> None:
    def make(end_shard: Function) -> Function:
        def disowned(held, children, *, keeps_owner=False):
            del keeps_owner
            return end_shard(held, children)

        return disowned

    patch.replace(lease_writes, "end_shard", make)


def rescue_under_a_leader(patch: Patch) -> None:
    patch.replace(LeaderWatch, "is_absent", lambda _: lambda self: True)


def leases_taken_as_in_2x(patch: Patch) -> None:
    def make(follow: Function) -> Function:
        def takes(self, *, has_scanned):
            if has_scanned and not self._sync.must_finish_the_start:
                self._acquire()
            follow(self, has_scanned=has_scanned)

        return takes

    patch.replace(LeaseManager, "_follow", make)


def released_before_the_report_is_withdrawn(patch: Patch) -> None:
    patch.replace(Membership, "leave", lambda _: lambda self: None)


def report_without_a_condition(patch: Patch) -> None:
    def make(write: Function) -> Function:
        def unfenced(metrics, method, condition, values, **more):
            return write(metrics, method, f"{condition} OR attribute_exists(leaseKey)", values, **more)

        return unfenced

    patch.replace(fleet_rows, "_write", make)


def rescue_by_the_same_view_again(patch: Patch) -> None:
    patch.replace(
        LeaseManager, "_follow", lambda follow: lambda self, *, has_scanned: follow(self, has_scanned=True)
    )


def lock_believed_too_long(patch: Patch) -> None:
    patch.replace(
        HeldLock, "believed_until", lambda _: lambda self: self.sent_at + 2 * self.lock.lease_seconds
    )


def lock_taken_before_its_duration(patch: Patch) -> None:
    def make(may_be_taken: Function) -> Function:
        def hasty(self, eligibility):
            soon = eligibility == "equal" and self.unchanged_for >= _HASTE
            return soon or may_be_taken(self, eligibility)

        return hasty

    patch.replace(LeaderWatch, "may_be_taken", make)


def heartbeat_of_the_lock_under_any_version(patch: Patch) -> None:
    def make(change_lock: Function) -> Function:
        def unfenced(held, update, values):
            write = change_lock(held, update, values)
            request = dict(write.request)
            request["ConditionExpression"] = "attribute_exists(leaseKey)"
            request["ExpressionAttributeValues"] = dict(values)
            return replace(write, request=request)

        return unfenced

    patch.replace(fleet_rows, "_change_lock", make)


def expired_lease_assigned_under_any_counter(patch: Patch) -> None:
    def make(assign: Function) -> Function:
        return lambda seen, new_owner, *, stands_still: assign(seen, new_owner, stands_still=False)

    patch.replace(assignment_decider, "assign", make)


def lock_not_released_at_the_stop(patch: Patch) -> None:
    patch.replace(Leadership, "resign", lambda _: lambda self: None)


def leases_moved_for_what_comes_by_chance(patch: Patch) -> None:
    def make(decide: Function) -> Function:
        return lambda *given, settings, **more: decide(
            *given, settings=replace(settings, steady=False), **more
        )

    patch.replace(leadership, "decide", make)


_HASTE = 10.0

NATIVE = (
    Mutant("M70", "metrics are reported before the first query of the index of owners", "-",
            (Guarantee.FOLLOWS_LEADER,), metrics_before_the_first_query, mode=Mode.NATIVE),
    Mutant("M71", "a lease that the leader asks for is not handed over", "-",
            (Guarantee.FOLLOWS_LEADER, Guarantee.NO_CHURN), asked_for_and_not_handed_over, mode=Mode.NATIVE),
    Mutant("M72", "metrics are reported by the clock of the host", "-",
            (Guarantee.FOLLOWS_LEADER,), report_by_the_clock_of_the_host, mode=Mode.NATIVE),
    Mutant("M73", "an ended lease loses its owner", "-",
            (Guarantee.FOLLOWS_LEADER,), ended_lease_without_owner, mode=Mode.NATIVE),
    Mutant("M74", "a lease that stands still is rescued though there is a leader", "-",
            (Guarantee.FOLLOWS_LEADER,), rescue_under_a_leader, mode=Mode.NATIVE),
    Mutant("M75", "a follower takes leases as in KCL 2.x", "-",
            (Guarantee.FOLLOWS_LEADER,), leases_taken_as_in_2x, mode=Mode.NATIVE),
    Mutant("M76", "leases are released before the metrics are withdrawn", "-",
            (Guarantee.FOLLOWS_LEADER,), released_before_the_report_is_withdrawn, mode=Mode.NATIVE),
    Mutant("M77", "metrics are reported without a condition", "Java KCL 3.x",
            (Guarantee.CONDITIONAL,), report_without_a_condition, mode=Mode.NATIVE),
    Mutant("M78", "a rescue that was refused is tried again by the same view", "here",
            (Guarantee.BUDGETS,), rescue_by_the_same_view_again, mode=Mode.NATIVE),
    Mutant("M79", "a leader believes in its lock for twice its duration", "-",
            (Guarantee.LEADS_ALONE,), lock_believed_too_long, mode=Mode.NATIVE),
    Mutant("M80", "the lock is taken before its duration has passed", "-",
            (Guarantee.LEADS_ALONE,), lock_taken_before_its_duration, mode=Mode.NATIVE),
    Mutant("M81", "the lock is kept and released whatever its version", "-",
            (Guarantee.CONDITIONAL, Guarantee.LEADS_ALONE), heartbeat_of_the_lock_under_any_version, mode=Mode.NATIVE),
    Mutant("M82", "an expired lease is assigned though its counter has moved", "Java KCL 3.x",
            (Guarantee.LEADS_ALONE,), expired_lease_assigned_under_any_counter, mode=Mode.NATIVE),
    Mutant("M83", "a leader that stops keeps the lock", "-",
            (Guarantee.LEADS_ALONE,), lock_not_released_at_the_stop, mode=Mode.NATIVE),
    Mutant("M104", "a leader moves leases for differences that come by chance", "Java KCL 3.5.1",
            (Guarantee.NO_CHURN,), leases_moved_for_what_comes_by_chance, mode=Mode.NATIVE),
)  # fmt: skip
