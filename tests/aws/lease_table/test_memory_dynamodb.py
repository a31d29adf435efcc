"""The in-memory DynamoDB client apart from what every DynamoDB does: checks, copies, faults. See tests/conformance."""

import pytest
from botocore.exceptions import ParamValidationError

from pykcl.runtime import SystemRuntime
from pykcl.testing.memory.dynamodb import Fault, MemoryDynamoDB, timed_out

ITEM = {
    "leaseKey": {"S": "k"},
    "n": {"N": "5"},
    "s": {"S": "shard-7"},
    "b": {"B": b"ab"},
    "ss": {"SS": ["a", "b"]},
    "ns": {"NS": ["1", "2"]},
    "flag": {"BOOL": True},
    "nulled": {"NULL": True},
    "m": {"M": {"innermost": {"N": "1"}, "deep": {"L": [{"S": "x"}, {"S": "y"}]}}},
    "l": {"L": [{"N": "1"}]},
}
KEY = {"leaseKey": {"S": "k"}}


def test_parameters_are_checked_against_botocores_model(memory):
    with pytest.raises(ParamValidationError):
        memory.update_item(TableName="leases", Keys=KEY)
    with pytest.raises(ParamValidationError):
        memory.get_item(TableName="leases", Key={"leaseKey": {"S": 5}})


def test_items_are_copied_in_and_out(memory_backend):
    given = {**ITEM, "m": {"M": {"innermost": {"N": "1"}}}}
    memory_backend.put_item(given)
    given["m"]["M"]["innermost"] = {"N": "2"}
    got = memory_backend.item("k")
    got["m"]["M"]["innermost"] = {"N": "3"}
    got["ss"]["SS"].append("c")
    assert memory_backend.item("k")["m"] == {"M": {"innermost": {"N": "1"}}}
    assert memory_backend.item("k")["ss"] == {"SS": ["a", "b"]}


def test_faults_strike_before_after_or_much_later():
    client = MemoryDynamoDB()
    client.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for kind, applied in (("before", False), ("after", True), ("postponed", False)):
        client.fault = lambda operation, params, kind=kind: Fault(**{kind: timed_out()})
        with pytest.raises(type(timed_out())):
            client.put_item(TableName="leases", Item={"leaseKey": {"S": kind}})
        assert (kind in client.rows("leases")) is applied
    client.fault = None
    client.deliver_postponed()
    assert client.rows("leases").keys() == {"after", "postponed"}
    assert [change.key for change in client.changes] == ["after", "postponed"]


def test_a_request_counts_as_postponed_from_the_time_it_is_sent(monkeypatch):
    """Whoever changes its row by hand while the sender still waits would make its condition hold a second time."""
    runtime, seen = SystemRuntime(), []

    class Wait:
        def wait(self, seconds):
            seen.append((seconds, client.postponed_keys()))

    monkeypatch.setattr(runtime, "event", Wait)
    client = MemoryDynamoDB(
        runtime=runtime, fault=lambda operation, params: Fault(postponed=timed_out(), delay=1.2)
    )
    with pytest.raises(type(timed_out())):
        client.put_item(TableName="leases", Item={"leaseKey": {"S": "k"}})
    assert seen == [(1.2, {"k"})]
    assert client.postponed_keys() == {"k"}
