"""What the tests of the checkers share: broken simulations, checkers over made-up shards, and rows."""

from pykcl.testing.simulation import GuaranteeBroken
from pykcl.testing.simulation.delivery import DeliveryChecker, RecordLog
from pykcl.testing.simulation.guarantees import Violations
from tests.simulation.course import run_simulation
from tests.simulation.seeds import NO_FAULTS


def broken_by(violations):
    """The guarantee of which the violations says that it was broken; None: none."""
    try:
        violations.check()
    except GuaranteeBroken as broken:
        return broken.guarantee
    return None


def broken_in_simulation(seed=3, off=NO_FAULTS):
    outcome = run_simulation(seed, off=off)
    assert outcome.broken is None or isinstance(outcome.broken, GuaranteeBroken), outcome.broken
    return outcome.broken.guarantee if outcome.broken is not None else None


def delivery_checker():
    """A checker over one shard with records 1 to 4 and its child with record 9; `violations` is beside it."""
    record_log, violations = RecordLog(lambda: 0), Violations()
    record_log.parents.update(parent=(), child=("parent",))
    for number in (1, 2, 3, 4):
        record_log.shard("parent").add((number, 0), 0)
    record_log.shard("child").add((9, 0), 0)
    checker = DeliveryChecker(record_log, violations)
    checker.violations = violations
    return checker


def given(checker, owning, *numbers):
    positions = [(number, 0) for number in numbers]
    with owning.call(checker, "process_records"):
        checker.called(owning, "process_records")
        checker.batch_starts(owning, positions)
        checker.delivered(owning, positions)


def row(place="TRIM_HORIZON", counter=1, **more):
    row = {
        "leaseKey": {"S": "parent"}, "leaseCounter": {"N": str(counter)}, "leaseOwner": {"S": "w1"},
        "checkpoint": {"S": place}, "checkpointSubSequenceNumber": {"N": "0"},
    }  # fmt: skip
    return row | more
