"""Bugs in the writes to the lease table and in what their answers are taken to mean."""

from __future__ import annotations

from dataclasses import replace

from pykcl.aws import lease_table as lease_table_module
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.errors import TableGone, TemporaryError
from pykcl.interfaces import Applied, Rejected
from pykcl.model.absence import Absence
from pykcl.model.checkpoint import Checkpoint
from pykcl.model.lease import Lease
from pykcl.model.lease_item import to_item
from pykcl.model.lease_writes import LeaseWrite
from pykcl.testing.simulation import Guarantee
from pykcl.worker.held_leases import HeldLease
from tests.mutants.mutant import Function, Mutant, Patch

_COUNTER = "leaseCounter = :seenCounter"


def create_without_a_condition(patch: Patch) -> None:
    def make(request: Function) -> Function:
        def unconditional(self):
            operation, params = request(self)
            if self.kind == "create":
                params = {name: params[name] for name in ("Item",)}
            return operation, params

        return unconditional

    patch.replace(LeaseWrite, "request", make)


def create_under_a_condition_that_always_holds(patch: Patch) -> None:
    def make(request: Function) -> Function:
        def any_row(self):
            operation, params = request(self)
            if self.kind == "create":
                params["ConditionExpression"] = "attribute_not_exists(nothing)"
            return operation, params

        return any_row

    patch.replace(LeaseWrite, "request", make)


def _without_counter(patch: Patch, kinds: tuple[str, ...], instead: str) -> None:
    def make(condition: Function) -> Function:
        def no_counter(self):
            text, values = condition(self)
            if self.kind in kinds:
                text = text.replace(_COUNTER, instead)
                if ":seenCounter" not in text:
                    del values[":seenCounter"]
            return text, values

        return no_counter

    patch.replace(LeaseWrite, "_condition", make)


def take_by_owner_alone(patch: Patch) -> None:
    _without_counter(patch, ("take",), "attribute_exists(leaseCounter)")


def take_whatever_the_counter_became(patch: Patch) -> None:
    _without_counter(patch, ("take",), "leaseCounter >= :seenCounter")


def checkpoint_puts_the_whole_row(patch: Patch) -> None:
    def make(request: Function) -> Function:
        def put(self):
            operation, params = request(self)
            if self.kind in ("checkpoint", "end"):
                return "put_item", {"Item": to_item(self.after)}
            return operation, params

        return put

    patch.replace(LeaseWrite, "request", make)


def checkpoint_by_anybody(patch: Patch) -> None:
    def make(condition: Function) -> Function:
        def anybody(self):
            if self.kind == "checkpoint":
                return "attribute_exists(leaseCounter)", {}
            return condition(self)

        return anybody

    patch.replace(LeaseWrite, "_condition", make)


def sub_sequence_number_not_written(patch: Patch) -> None:
    def make(update: Function) -> Function:
        def whole_records(self):
            text, values = update(self)
            if self.kind == "checkpoint":
                values[":checkpointSubSequenceNumber"] = {"N": "0"}
            return text, values

        return whole_records

    patch.replace(LeaseWrite, "_update", make)


def sub_sequence_numbers_compared_the_wrong_way(patch: Patch) -> None:
    def make(order: Function) -> Function:
        def backwards(self):
            group, number, sub = order(self)
            return group, number, -sub

        return backwards

    patch.replace(Checkpoint, "_order", make)


def sequence_numbers_compared_as_text(patch: Patch) -> None:
    def make(order: Function) -> Function:
        def as_text(self):
            group, number, sub = order(self)
            return group, str(number), sub

        return as_text

    patch.replace(Checkpoint, "_order", make)


def refused_heartbeat_ignored(patch: Patch) -> None:
    def make(write: Function) -> Function:
        def ignoring(self, what, *, until):
            answer = write(self, what, until=until)
            return Applied(what.seen) if what.kind == "renew" and isinstance(answer, Rejected) else answer

        return ignoring

    patch.replace(DynamoDBLeaseTable, "write", make)


def refused_heartbeat_taken_for_a_loss(patch: Patch) -> None:
    def make(resolve_conflict: Function) -> Function:
        def without_looking(write, row):
            return "rejected" if write.kind == "renew" else resolve_conflict(write, row)

        return without_looking

    patch.replace(lease_table_module, "resolve_conflict", make)


def unanswered_take_believed(patch: Patch) -> None:
    def make(send: Function) -> Function:
        def hopeful(self, sending):
            try:
                return send(self, sending)
            except TemporaryError:
                if sending.write.kind == "take":
                    return Applied(sending.write.after)
                raise

        return hopeful

    patch.replace(DynamoDBLeaseTable, "_send", make)


def table_loss_taken_for_an_outage(patch: Patch) -> None:
    def make(sorted_: Function) -> Function:
        def temporary(self, error, doing):
            found = sorted_(self, error, doing)
            # Not when it looks whether there is a table to start with.
            is_loss = isinstance(found, TableGone) and not doing.startswith("describing")
            return TemporaryError(str(found)) if is_loss else found

        return temporary

    patch.replace(DynamoDBLeaseTable, "_sorted", make)


def unknown_attributes_removed(patch: Patch) -> None:
    def make(update: Function) -> Function:
        def only_known(self):
            text, values = update(self)
            foreign = sorted(name for name in self.seen.extra if name.isalpha())
            if foreign:
                text += (", " if " REMOVE " in text else " REMOVE ") + ", ".join(foreign)
            return text, values

        return only_known

    # A take adds a number behind its REMOVE clause, so only the others are spoilt.
    def make_for_writes(update: Function) -> Function:
        spoilt = make(update)
        return lambda self: update(self) if self.kind == "take" else spoilt(self)

    patch.replace(LeaseWrite, "_update", make_for_writes)


def namesakes_trusted(patch: Patch) -> None:
    patch.replace(lease_table_module, "resolve_conflict", _namesakes_kept)


def _namesakes_kept(resolve_conflict: Function) -> Function:
    def by_name_alone(write, row):
        if isinstance(row, Lease) and row.metadata is not None:
            row = row.with_(metadata=replace(row.metadata, process_token=None))
        return resolve_conflict(write, row)

    return by_name_alone


def one_denial_believed(patch: Patch) -> None:
    patch.replace(Absence, "is_proven", lambda _: lambda self, *times: True)
    patch.replace(DynamoDBLeaseTable, "_ask_for_table", _nothing_found)


def _nothing_found(ask: Function) -> Function:
    def once_denied(self):
        # Without it nobody could start: only what a request was told counts, and DescribeTable is not asked for that.
        return None if self._table_id else ask(self)

    return once_denied


def checkpoint_of_others_adopted(patch: Patch) -> None:
    def make(condition: Function) -> Function:
        def by_counter_and_owner(self):
            text, values = condition(self)
            values.pop(":seenCheckpoint", None)
            return text.replace(" AND checkpoint = :seenCheckpoint", ""), values

        return by_counter_and_owner

    patch.replace(LeaseWrite, "_condition", make)
    patch.replace(HeldLease, "_with_own_checkpoint", lambda _: lambda self, write, row: row)


ROWS = (
    Mutant("B1", "a lease is created without a condition", "Disney (Rust)",
            (Guarantee.CONDITIONAL,), create_without_a_condition),
    Mutant("B1b", "… under a condition that always holds", "-",
            (Guarantee.CONDITIONAL,), create_under_a_condition_that_always_holds),
    Mutant("B2", "a take-over checks the owner but not the counter", "Disney (Rust)",
            (Guarantee.ONE_OWNER, Guarantee.COUNTER_BY_ONE), take_by_owner_alone),
    Mutant("B2b", "… takes whatever the counter became", "-",
            (Guarantee.COUNTER_BY_ONE, Guarantee.ONE_OWNER), take_whatever_the_counter_became),
    Mutant("B3", "a checkpoint puts the whole row, without a condition", "vmware-go-kcl",
            (Guarantee.CONDITIONAL,), checkpoint_puts_the_whole_row),
    Mutant("B3b", "… under a condition that always holds", "-",
            (Guarantee.COUNTER_BY_ONE, Guarantee.CHECKPOINT_FORWARD), checkpoint_by_anybody),
    Mutant("B4", "the sub-sequence number is not written", "Disney (Rust)",
            (Guarantee.NO_DUPLICATES, Guarantee.CHECKPOINT_FORWARD, Guarantee.NO_FALSE_ALARM),
            sub_sequence_number_not_written),
    Mutant("B4b", "sub-sequence numbers are compared the wrong way", "Disney (Rust)",
            (Guarantee.CHECKPOINT_FORWARD, Guarantee.NO_GAP, Guarantee.NO_DUPLICATES, Guarantee.CHECKPOINT_AFTER_DELIVERY),
            sub_sequence_numbers_compared_the_wrong_way),
    Mutant("B7", "a refused heartbeat is ignored", "harlow/kinesis-consumer, async-kinesis",
            (Guarantee.ONE_OWNER, Guarantee.SILENT_AFTER_LOSS), refused_heartbeat_ignored),
    Mutant("B8", "a refused heartbeat is a lost lease, without reading the row", "boto3 with its defaults",
            (Guarantee.NO_CHURN,), refused_heartbeat_taken_for_a_loss),
    Mutant("B13", "sequence numbers are compared as text", "common",
            (Guarantee.CHECKPOINT_FORWARD, Guarantee.NO_GAP, Guarantee.NO_DUPLICATES, Guarantee.LIFE_CYCLE),
            sequence_numbers_compared_as_text),
    Mutant("M15", "a take without an answer is believed to have landed", "-",
            (Guarantee.ONE_OWNER, Guarantee.NO_FALSE_ALARM), unanswered_take_believed),
    Mutant("M16", "the loss of the lease table passes for an outage", "-",
            (Guarantee.NO_FALSE_ALARM, Guarantee.SILENT_AFTER_LOSS), table_loss_taken_for_an_outage,
            full=True, only=frozenset({"F13.deleted"})),
    Mutant("M17", "attributes nobody here knows are removed", "-",
            (Guarantee.FOREIGN_KEPT,), unknown_attributes_removed),
    Mutant("M18", "another process under one's own identifier passes for oneself", "-",
            (Guarantee.ONE_OWNER, Guarantee.NO_FALSE_ALARM), namesakes_trusted),
    Mutant("M96", "one answer that the lease table does not exist is believed", "pykcl before 0.1",
            (Guarantee.NO_FALSE_ALARM,), one_denial_believed, full=True, only=frozenset({"F5.absent"})),
    Mutant("M97", "an owner takes the checkpoint that an operator writes for its own", "here",
            (Guarantee.CHECKPOINT_AFTER_DELIVERY, Guarantee.CHECKPOINT_FORWARD), checkpoint_of_others_adopted,
            only=frozenset({"F15.checkpoint"})),
)  # fmt: skip
