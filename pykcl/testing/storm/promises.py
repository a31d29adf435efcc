"""What is promised, by the names under which a judge reports that it was broken."""

from __future__ import annotations

from enum import Enum


class Promise(Enum):
    """The names of the values are I1-I10 (safety) and L1-L5 (liveness) of docs/guarantees.md."""

    CHECKPOINT_AFTER_DELIVERY = "I1: no checkpoint passes a record that was not delivered"
    ALL_DELIVERED = "I2, L4: once the faults end, every record is delivered"
    LOSS_REPORTED = (
        "I2: each gap that retention tore is reported once by whoever reads across it, and nothing else is"
    )
    CHECKPOINT_FORWARD = "I3: no checkpoint moves back, leaves SHARD_END, or is one the format does not know"
    PARENTS_FIRST = "I4: no record is delivered before all records of the ancestors of its shard"
    ONE_OWNER = "I5: no two workers believe in one lease, except for a moment after a steal"
    SILENT_AFTER_LOSS = "I5: who lost a lease is called no more, and writes no more"
    NO_GAP = "I6: an owner is given every record after its checkpoint, in order"
    LIFE_CYCLE = "I6: a processor is called by one thread at a time, in the order of its life, and to its end"
    CONDITIONAL = (
        "I7: every write has a condition, none creates a row by update or overwrites one by creation"
    )
    COUNTER_BY_ONE = (
        "I7: every write raises the lease counter by exactly one, or only adds a missing hash range"
    )
    FOREIGN_KEPT = "I7: rows and attributes that are not pykcl's stay as they are"
    DELETION_BY_EVIDENCE = (
        "I8: a row is deleted only after SHARD_END with children begun, or when its shard is gone"
    )
    THREADS = "I9: at most one reader of a lease in a process, and none is left after a stop"
    BUDGETS = (
        "I10: at most five reads a second of a shard, and no request more often than there is a reason for it"
    )
    BALANCE = "L1: leases are spread evenly"
    NO_CHURN = "L2: leases stay where they are when nothing happens"
    FAILOVER = "L3: the leases of a dead worker are read again in time"
    STOP = "L5: a stop ends in time and leaves nothing owned"
    NO_DUPLICATES = (
        "D0: nothing comes twice because of a clean stop, and in calm weather no more than the running batch"
    )
    NO_FALSE_ALARM = "no worker fails without a reason, or tells what is not so"


class PromiseBroken(AssertionError):
    """promise: the first that was broken."""

    def __init__(self, promise: Promise, what: str) -> None:
        super().__init__(f"{promise.name} ({promise.value}): {what}")
        self.promise = promise
