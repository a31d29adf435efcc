"""A worker without a lease survives what a worker with leases survives; one that never could work stops."""

import pytest

from pykcl.errors import SetupError
from pykcl.events import FailureResolved, FailureStarted, RetriesExhausted
from pykcl.stores.expressions import aws_error
from pykcl.testing.memory.dynamodb import Fault

REFUSALS = ["AccessDeniedException", "UnrecognizedClientException"]


def _fleet_with_a_spare(new_fleet, **options):
    """w1 reads the only shard; w2 has joined, and there is nothing for it to take."""
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(3))
    spare = fleet.start("w2", **options)
    fleet.wait(lambda: spare.status().initialized, what="the spare worker")
    fleet.simulation.sleep(5)
    assert spare.leases == ()
    return fleet, spare


@pytest.mark.parametrize("code", REFUSALS)
def test_a_spare_worker_rides_out_what_is_refused_to_all_for_a_while(new_fleet, code):
    fleet, spare = _fleet_with_a_spare(new_fleet)
    fleet.dynamodb.fault = lambda operation, params: (
        Fault(before=aws_error(code, "no", operation)) if operation == "Scan" else None
    )
    fleet.wait(lambda: fleet.happened(FailureStarted), what="trouble with the lease table")
    fleet.simulation.sleep(20)
    fleet.dynamodb.fault = None
    assert {name: worker.failure for name, worker in fleet.workers.items()} == {"w1": None, "w2": None}
    fleet.simulation.kill("w1")
    fleet.wait_delivered(fleet.put(3))
    assert spare.leases


@pytest.mark.parametrize("code", REFUSALS)
def test_a_spare_worker_whose_first_take_is_refused_takes_the_lease_later(new_fleet, code):
    fleet, spare = _fleet_with_a_spare(new_fleet)
    refused = []

    def fault(operation, params):
        if operation != "UpdateItem":
            return None
        refused.append(params)
        return Fault(before=aws_error(code, "no", operation))

    fleet.simulation.kill("w1")
    fleet.dynamodb.fault = fault
    fleet.wait(lambda: len(refused) > 2, what="takes that are refused")
    fleet.dynamodb.fault = None
    fleet.wait_delivered(fleet.put(3))
    assert spare.failure is None
    assert [event.what for event in fleet.happened(FailureResolved)] == ["taking"]


def test_a_spare_worker_whose_first_read_is_refused_hands_the_lease_back_and_takes_it_later(new_fleet):
    fleet, spare = _fleet_with_a_spare(new_fleet, retry_timeout=20.0)
    fleet.simulation.kill("w1")

    def fault(operation, stream, shard):
        if operation in ("GetRecords", "GetShardIterator"):
            raise SetupError("the stream's KMS key cannot be used")

    fleet.kinesis.fault = fault
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the lease to be handed back")
    assert set(fleet.owners().values()) == {None}
    fleet.kinesis.fault = None
    fleet.wait_delivered(fleet.put(3))
    assert spare.failure is None


@pytest.mark.parametrize(
    "forbidden", ["Scan", "PutItem", "UpdateItem", "ListShards", "GetShardIterator", "GetRecords"]
)
def test_a_worker_that_was_never_permitted_to_work_stops(new_fleet, forbidden):
    fleet = new_fleet(shards=2)

    def refuse(operation, params):
        # The first scans are those of the start, which would refuse to start.
        return (
            Fault(before=aws_error("AccessDeniedException", "no", operation))
            if operation == forbidden
            else None
        )

    def refuse_of_kinesis(operation, stream, shard):
        if operation == forbidden:
            raise SetupError(f"{operation} is not permitted")

    fleet.dynamodb.fault = refuse if forbidden != "Scan" else None
    fleet.kinesis.fault = refuse_of_kinesis
    worker = fleet.start("w1")
    fleet.dynamodb.fault = refuse
    fleet.wait(lambda: worker.failure is not None, 30, "the end of the worker")
    assert isinstance(worker.failure, SetupError)
