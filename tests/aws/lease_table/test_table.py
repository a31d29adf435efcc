"""Preparing, scanning and reading the lease table, and what happens when AWS does not want to."""

import pytest

from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.errors import AnswerRefused, SetupError, TemporaryError, Throttled
from pykcl.interfaces import Applied, Rejected, Unknown
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, UnreadableRow
from pykcl.model.lease_writes import parse_row
from pykcl.testing.memory.dynamodb import (
    Fault,
    MemoryDynamoDB,
    denied,
    failing,
    throttled,
    timed_out,
    unreachable,
)

KEY = "shardId-000000000000"
LEASE = Lease(KEY, Checkpoint("10"), counter=1, owner="me")


def table_over(client, service, **options):
    return DynamoDBLeaseTable(client, "leases", service.runtime, **options)


# -- prepare ------------------------------------------------------------------------------------------------------


def test_a_table_that_is_creating_is_temporary_and_asking_again_still_tells_who_created_it(memory_backend):
    client = MemoryDynamoDB(describes_until_active=2)
    table = table_over(client, memory_backend)
    for _ in range(2):
        with pytest.raises(TemporaryError, match="CREATING"):
            table.prepare(create=True)
    assert table.prepare(create=True) is True


def test_an_updating_table_is_usable_at_once(memory_backend, memory):
    memory.tables["leases"].status = "UPDATING"
    assert table_over(memory, memory_backend).prepare(create=True) is False


def test_a_table_being_deleted_is_refused(memory_backend, memory):
    memory.tables["leases"].status = "DELETING"
    with pytest.raises(SetupError, match="DELETING"):
        table_over(memory, memory_backend).prepare(create=True)


def test_no_permission_to_describe_or_create_names_the_permission(memory_backend):
    for operation in ("DescribeTable", "CreateTable"):
        client = MemoryDynamoDB(
            fault=lambda asked, _, operation=operation: (
                Fault(before=denied(operation)) if asked == operation else None
            )
        )
        with pytest.raises(SetupError, match=f"dynamodb:{operation}"):
            table_over(client, memory_backend).prepare(create=True)


# -- scan and read ------------------------------------------------------------------------------------------------


def test_a_scan_walks_every_page_and_adds_up_the_cost(memory_backend):
    client = MemoryDynamoDB(page_bytes=1000)
    table = table_over(client, memory_backend)
    table.prepare(create=True)
    for number in range(100):
        assert isinstance(
            table.write(lease_writes.create(Lease(f"shardId-{number:012d}", AT_TRIM_HORIZON)), until=1e9),
            Applied,
        )
    scan = table.scan()
    pages = [operation for operation, _ in client.requests].count("Scan")
    assert pages > 5
    assert len({row.key for row in scan.rows}) == len(scan.rows) == 100
    assert scan.read_units == pages * 0.5
    assert all("ConsistentRead" not in params for operation, params in client.requests if operation == "Scan")
    client.requests.clear()
    consistent = table.scan(consistent=True)
    assert (consistent.rows, consistent.read_units) == (scan.rows, pages * 1.0)
    asked = [params for operation, params in client.requests if operation == "Scan"]
    assert len(asked) == pages
    assert all(params["ConsistentRead"] is True for params in asked)


@pytest.mark.parametrize("error", [throttled("Scan"), failing("Scan"), timed_out(), unreachable()])
def test_a_page_that_fails_now_and_then_is_asked_for_again(memory_backend, error):
    memory_backend.put(LEASE)
    memory_backend.client.faults.extend([error, error])
    assert memory_backend.table.scan().rows == (LEASE,)


def test_a_scan_that_fails_half_way_raises_and_never_returns_a_part(memory_backend):
    client = MemoryDynamoDB(page_bytes=1)
    table = table_over(client, memory_backend)
    table.prepare(create=True)
    for number in range(3):
        table.write(lease_writes.create(Lease(f"s{number}", AT_TRIM_HORIZON)), until=1e9)
    client.fault = lambda operation, params: (
        Fault(before=timed_out()) if "ExclusiveStartKey" in params else None
    )
    with pytest.raises(TemporaryError):
        table.scan()
    client.fault = lambda operation, params: Fault(before=throttled("Scan")) if operation == "Scan" else None
    with pytest.raises(Throttled):
        table.scan()


def test_a_scan_that_does_not_advance_is_refused(memory_backend):
    class Stuck:
        def scan(self, **params):
            return {"Items": [], "LastEvaluatedKey": {"leaseKey": {"S": "a"}}}

    with pytest.raises(AnswerRefused):
        table_over(Stuck(), memory_backend).scan()


def test_reads_are_strongly_consistent(memory_backend):
    memory_backend.put(LEASE)
    assert memory_backend.table.read(KEY) == LEASE
    assert memory_backend.client.calls[-1][1]["ConsistentRead"] is True


# -- trouble ------------------------------------------------------------------------------------------------------


def test_a_write_without_permission_is_a_setup_error_at_once(memory_backend):
    memory_backend.put(LEASE)
    memory_backend.client.always = denied("UpdateItem")
    with pytest.raises(SetupError, match="dynamodb:UpdateItem"):
        memory_backend.write(lease_writes.renew(LEASE))
    assert len(memory_backend.client.calls) == 1


def test_a_row_dynamodb_will_not_update_is_lost_and_stops_nothing_else(memory_backend, errors):
    memory_backend.put(LEASE)
    memory_backend.client.faults.append(errors.answered("ValidationException"))
    answer = memory_backend.write(lease_writes.renew(LEASE))
    assert isinstance(answer, Rejected)
    assert isinstance(answer.row, UnreadableRow)


def test_a_row_that_cannot_be_read_back_leaves_the_outcome_unknown(memory_backend, errors):
    memory_backend.put(lease_writes.renew(LEASE).after)
    memory_backend.client.faults.append(errors.answered("ConditionalCheckFailedException"))
    memory_backend.client.always = timed_out()
    assert isinstance(memory_backend.write(lease_writes.renew(LEASE), seconds=2.0), Unknown)


def test_nothing_is_sent_after_the_deadline(memory_backend):
    memory_backend.put(LEASE)
    answer = memory_backend.write(lease_writes.renew(LEASE), seconds=-1.0)
    assert isinstance(answer, Unknown)
    assert memory_backend.client.calls == []


def test_pauses_grow_and_are_jittered_and_end_at_the_deadline(memory_backend):
    memory_backend.put(LEASE)
    memory_backend.client.always = "drop"
    moments = []
    memory_backend.runtime.on_wait = lambda: moments.append(memory_backend.runtime.now)
    began = memory_backend.runtime.now
    memory_backend.write(lease_writes.renew(LEASE), seconds=6.0)
    pauses = [later - earlier for earlier, later in zip([began, *moments], moments, strict=False)]
    assert pauses[0] < 0.2
    assert max(pauses) <= 1.1
    assert 8 <= len(memory_backend.client.calls) <= 20
    assert moments[-1] <= began + 6.1


def test_a_set_stop_ends_the_retries(memory_backend):
    memory_backend.put(LEASE)
    stop = memory_backend.runtime.event()
    table = table_over(memory_backend.client, memory_backend, stop=stop)
    memory_backend.client.always = "drop"
    memory_backend.runtime.on_wait = stop.set
    assert isinstance(table.write(lease_writes.renew(LEASE), until=1e9), Unknown)
    assert len(memory_backend.client.calls) == 2


def test_the_same_name_used_by_two_processes_ends_as_unknown_not_as_a_loop(memory_backend):
    memory_backend.put(LEASE)

    def twin():
        memory_backend.put(lease_writes.renew(parse_row(memory_backend.item(KEY))).after)

    memory_backend.client.faults.extend([twin] * 400)
    answer = memory_backend.write(lease_writes.checkpoint(LEASE, Checkpoint("11")), seconds=2.0)
    assert isinstance(answer, Unknown)
    assert "unique" in answer.cause


def test_errors_never_quote_what_aws_said(memory_backend):
    canary = "CANARY-7d1f"
    error = denied("Scan")
    error.response["Error"]["Message"] = f"{canary} not authorized to perform: dynamodb:Scan on {canary}"
    memory_backend.client.always = error
    with pytest.raises(SetupError) as refusal:
        memory_backend.table.scan()
    assert canary not in str(refusal.value)
