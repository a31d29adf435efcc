"""Scans of a lease table that leave the fleet its read units."""

import pytest
from botocore.exceptions import ConnectionClosedError
from fleet_table import NAME, FleetTable, lease, shard

from pykcl.errors import SetupError, WrongTable
from pykcl.operate.aws.lease_table import TableMissing, TableScanner, delete_table
from pykcl.stores.expressions import aws_error
from pykcl.testing.memory.dynamodb import Fault


def denied(operation_name):
    def fault(operation, params):
        error = aws_error("AccessDeniedException", "User is not authorized to perform: dynamodb:X", operation)
        return Fault(before=error) if operation == operation_name else None

    return fault


def test_an_on_demand_table_is_scanned_without_pause_page_by_page(clock):
    table = FleetTable(clock, page_bytes=400)
    table.put(*(lease(number, "w1") for number in range(20)))
    assert len(table.view().leases) == 20
    assert table.operations().count("Scan") > 3
    assert clock.waits == []


def test_a_provisioned_table_is_scanned_in_small_pages_with_pauses_at_a_quarter_of_its_units(clock):
    table = FleetTable(clock, billing="PROVISIONED")
    table.client.tables[NAME].description = _with_units(table.client.tables[NAME].description, 10)
    table.put(*(lease(number, "w1") for number in range(500)))
    began = clock.now
    view = table.view()
    assert len(view.leases) == 500
    scans = [params for operation, params in table.client.requests if operation == "Scan"]
    assert all(params["Limit"] <= 200 and "Segment" not in params for params in scans)
    assert len(scans) > 3
    # Nothing is waited for after the last page.
    assert (view.read_units - 3.0) / (clock.now - began) <= 2.5
    assert "PROVISIONED" in table.scanner.pace


def _with_units(description, units):
    told = {"ProvisionedThroughput": {"ReadCapacityUnits": units}, "TableSizeBytes": 17 * 1024**2}
    return lambda: {**description(), **told}


def test_a_large_on_demand_table_is_scanned_by_several_threads_and_every_row_comes_once(clock):
    table = FleetTable(clock, page_bytes=2000)
    described = table.client.tables[NAME].description
    table.client.tables[NAME].description = lambda: {**described(), "TableSizeBytes": 17 * 1024**2}
    table.put(*(lease(number, "w1") for number in range(100)))
    view = table.view()
    assert sorted(view.leases) == [shard(number) for number in range(100)]
    assert len(view.rows) == 100
    segments = {params.get("Segment") for operation, params in table.client.requests if operation == "Scan"}
    assert segments == {0, 1, 2, 3}


def test_a_segment_that_fails_fails_the_whole_scan(clock):
    table = FleetTable(clock, page_bytes=2000)
    described = table.client.tables[NAME].description
    table.client.tables[NAME].description = lambda: {**described(), "TableSizeBytes": 17 * 1024**2}
    table.put(*(lease(number, "w1") for number in range(100)))
    refuse = denied("Scan")
    table.client.fault = lambda operation, params: (
        refuse(operation, params) if params.get("Segment") == 2 else None
    )
    with pytest.raises(SetupError, match=r"not permitted.* policy of whoever runs this command"):
        table.view()


def test_without_the_permission_to_describe_it_scans_slowly_and_says_why(table):
    table.put(lease(0, "w1"))
    table.client.fault = denied("DescribeTable")
    scanner = table.scanner
    assert len(scanner.scan().leases) == 1
    assert "scanned slowly" in scanner.pace
    assert "not permitted" in scanner.pace


def test_a_throttled_page_is_asked_for_again(table, clock):
    table.put(lease(0, "w1"))
    error = aws_error("ProvisionedThroughputExceededException", "slow down", "Scan")
    faults = iter([Fault(before=error), Fault(before=error)])
    table.client.fault = lambda operation, params: next(faults, None) if operation == "Scan" else None
    assert len(table.view().leases) == 1
    assert len(clock.waits) == 2


def test_a_table_of_another_shape_is_refused_before_a_row_is_read(table):
    table.client.create_table(
        TableName="invoices",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(WrongTable, match="its key is id"):
        TableScanner(table.client, "invoices", table.clock).scan()
    assert "Scan" not in table.operations()
    with pytest.raises(SetupError, match="There is no lease table 'nowhere'"):
        TableScanner(table.client, "nowhere", table.clock).scan()


def test_a_deletion_whose_answer_was_lost_is_done(table, clock):
    faults = iter([Fault(after=ConnectionClosedError(endpoint_url="https://dynamodb"))])
    table.client.fault = lambda operation, params: next(faults, None)
    delete_table(table.client, NAME, clock)
    assert NAME not in table.client.tables


def test_a_table_that_was_never_there_is_not_deleted(table, clock):
    with pytest.raises(TableMissing, match="There is no lease table 'others' in that region and account"):
        delete_table(table.client, "others", clock)
