"""What the tests of the judges share: broken storms, judges over made-up shards, and rows."""

from storm_seeds import FINE_WEATHER

from pykcl.testing.storm import PromiseBroken, run_storm
from pykcl.testing.storm.delivery_judge import DeliveryJudge
from pykcl.testing.storm.judge import Verdict
from pykcl.testing.storm.ledger import Ledger


def broken_by(verdict):
    """The promise of which the verdict says that it was broken; None: none."""
    try:
        verdict.check()
    except PromiseBroken as broken:
        return broken.promise
    return None


def storm_verdict(seed=3, off=FINE_WEATHER):
    outcome = run_storm(seed, off=off)
    assert outcome.broken is None or isinstance(outcome.broken, PromiseBroken), outcome.broken
    return outcome.broken.promise if outcome.broken is not None else None


def delivery_judge():
    """A judge over one shard with records 1 to 4 and its child with record 9; `verdict` is beside it."""
    ledger, verdict = Ledger(lambda: 0), Verdict()
    ledger.parents.update(parent=(), child=("parent",))
    for number in (1, 2, 3, 4):
        ledger.shard("parent").add((number, 0), 0)
    ledger.shard("child").add((9, 0), 0)
    judge = DeliveryJudge(ledger, verdict)
    judge.verdict = verdict
    return judge


def given(judge, owning, *numbers):
    places = [(number, 0) for number in numbers]
    with owning.call(judge, "process_records"):
        judge.called(owning, "process_records")
        judge.batch_begins(owning, places)
        judge.delivered(owning, places)


def row(place="TRIM_HORIZON", counter=1, **more):
    row = {
        "leaseKey": {"S": "parent"}, "leaseCounter": {"N": str(counter)}, "leaseOwner": {"S": "w1"},
        "checkpoint": {"S": place}, "checkpointSubSequenceNumber": {"N": "0"},
    }  # fmt: skip
    return row | more
