"""The frequent calls on a lease table over the direct transport: what is sent, what comes back, and that a write is sent
once.
"""

import base64
import json
import logging
import socket
import zlib
from dataclasses import replace

import boto3
import pytest
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import ChecksumError, ClientError, ConnectionClosedError, ReadTimeoutError
from raw_server import CLOSE, HANG, JSON_1_0, Drip, RawServer, Then, client_of, http, refusal

from pykcl.aws.clients import connect
from pykcl.aws.lease_table import DynamoDBLeaseTable
from pykcl.aws.transport.connection import Connection, Unsent
from pykcl.aws.transport.table_requests import TableRequests
from pykcl.config import Config as WorkerConfig
from pykcl.errors import AnswerRefused, PyKclError, SetupError, TableGone, TemporaryError, Throttled
from pykcl.interfaces import Applied, Rejected, Unknown
from pykcl.model import lease_writes
from pykcl.model.checkpoint import AT_TRIM_HORIZON, Checkpoint
from pykcl.model.lease import Lease, PendingCheckpoint
from pykcl.model.lease_item import to_item
from pykcl.runtime import SystemRuntime
from pykcl.testing.memory.dynamodb import MemoryDynamoDB
from tests.cycles import types_in_cycles

KEY = "shardId-000000000000"
HELD = Lease(
    KEY, Checkpoint("10"), counter=7, owner="me", pending=PendingCheckpoint(Checkpoint("11"), b"\x00\xff")
)
RENEWAL = lease_writes.renew(HELD)
METHODS = {"scan", "get_item", "update_item"}


def wire(item):
    """As DynamoDB writes it: bytes in base64."""
    return json.loads(json.dumps(item, default=lambda value: base64.b64encode(value).decode()))


def told(body, status=200, **headers):
    return http(body, status, content_type=JSON_1_0, **headers)


ROW = wire(to_item(HELD))
RENEWED = told({"Attributes": wire(to_item(RENEWAL.after))})
SCANNED = told({"Items": [ROW], "Count": 1, "ScannedCount": 1, "ConsumedCapacity": {"CapacityUnits": 0.5}})
READ = told({"Item": ROW})
CONDITION = "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"


def refused(item):
    return told({"__type": CONDITION, "message": "The conditional request failed", "Item": wire(item)}, 400)


def dynamodb(url, **how):
    return client_of(url, "dynamodb", **how)


def table_of(client, http_transport="auto"):
    return DynamoDBLeaseTable(client, "leases", Hasty(), http_transport=http_transport)


class Hasty(SystemRuntime):
    """Waiting between two attempts takes no time."""

    def event(self):
        class Passing(type(super().event())):
            def wait(self, timeout=None):
                return self.is_set()

        return Passing()


def taught(client, http_transport="auto"):
    """A table whose next calls go over the direct transport, and the requests so far forgotten."""
    table = table_of(client, http_transport)
    renew(table)
    table.read(KEY)
    table.scan()
    assert set(table._requests._selector._transports) == METHODS
    return table


def renew(table, seconds=5.0):
    return table.write(RENEWAL, until=table._runtime.monotonic() + seconds)


@pytest.fixture
def lean_table(server):
    server.say(RENEWED, READ, SCANNED)
    table = taught(dynamodb(server.url, read_timeout=0.3))
    server.requests.clear()
    return table


# -- what is sent ----------------------------------------------------------------------------------------------


def test_only_the_first_call_of_each_kind_goes_over_boto3(server):
    server.say(RENEWED, READ, SCANNED, RENEWED, READ, SCANNED)
    table = taught(dynamodb(server.url))
    assert isinstance(renew(table), Applied)
    assert table.read(KEY) == HELD
    assert table.scan().rows == (HELD,)
    assert [request.by_boto3 for request in server.requests] == [True] * 3 + [False] * 3


def test_what_is_sent_is_what_botocore_sends(server):
    server.say(*[RENEWED, READ, SCANNED] * 2)
    table = taught(dynamodb(server.url, token="TOKEN", user_agent_extra="pykcl/9"))
    renew(table)
    table.read(KEY)
    table.scan()
    for theirs, ours in zip(server.requests[:3], server.requests[3:], strict=True):
        same = (
            "x-amz-target",
            "content-type",
            "user-agent",
            "host",
            "accept-encoding",
            "x-amz-security-token",
        )
        assert {name: ours.headers[name] for name in same} == {name: theirs.headers[name] for name in same}
        assert (ours.method, ours.path) == (theirs.method, theirs.path)
        assert json.loads(ours.body) == json.loads(theirs.body)
        assert (
            ours.headers["authorization"].split("Signature")[0]
            == theirs.headers["authorization"].split("Signature")[0]
        )


def test_bytes_are_sent_as_botocore_sends_them(server):
    write = lease_writes.prepare(HELD, PendingCheckpoint(Checkpoint("12"), b"\x00\xff\x10" * 50))
    answer = told({"Attributes": wire(to_item(write.after))})
    server.say(answer)
    table = table_of(dynamodb(server.url))
    for _ in range(2):
        kept = table.write(write, until=table._runtime.monotonic() + 5)
        assert kept.lease.pending == write.after.pending
    theirs, ours = server.requests
    assert theirs.by_boto3
    assert not ours.by_boto3
    assert json.loads(ours.body) == json.loads(theirs.body)


def test_a_row_is_made_and_deleted_over_boto3(server, lean_table):
    server.say(told({}))
    for write in (lease_writes.create(Lease(KEY, AT_TRIM_HORIZON)), lease_writes.delete(HELD, ended=False)):
        assert isinstance(lean_table.write(write, until=lean_table._runtime.monotonic() + 5), Applied)
    assert [request.by_boto3 for request in server.requests] == [True, True]


def test_boto3_is_what_one_gets_who_asks_for_it(server):
    server.say(RENEWED)
    table = table_of(dynamodb(server.url), "boto3")
    for _ in range(3):
        assert isinstance(renew(table), Applied)
    assert all(request.by_boto3 for request in server.requests)


def test_the_choice_of_a_worker_is_that_of_its_table(server):
    config = WorkerConfig(application="app", stream="orders", http_transport="boto3", region="eu-west-1")
    clients = {"dynamodb": dynamodb(server.url), "kinesis": client_of(server.url)}
    table, _ = connect(config, SystemRuntime(), clients=clients)
    server.say(SCANNED)
    for _ in range(3):
        table.scan()
    assert all(request.by_boto3 for request in server.requests)


# -- what stands against it ------------------------------------------------------------------------------------


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "pykcl.dynamodb"]


@pytest.mark.parametrize("operation", ["UpdateItem", "Scan", "GetItem", "*"])
def test_somebodys_handler_on_any_of_the_calls_keeps_all_on_boto3(server, operation, caplog):
    caplog.set_level(logging.INFO, "pykcl.dynamodb")
    client = dynamodb(server.url)
    client.meta.events.register(f"before-call.dynamodb.{operation}", lambda **_: None)
    server.say(RENEWED)
    table = table_of(client)
    for _ in range(5):
        renew(table)
    assert all(request.by_boto3 for request in server.requests)
    reason = (
        "using the lease table over boto3, which costs more CPU: the client has a handler for before-call"
    )
    assert lines(caplog) == [reason]


def test_a_manager_of_endpoints_keeps_all_on_boto3():
    """It sends each request where DynamoDB says at the moment; what was captured once would be wrong later."""
    client = boto3.client(
        "dynamodb",
        region_name="eu-west-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(endpoint_discovery_enabled=True),
    )
    assert why_not(client) == "the client has a handler for before-parameter-build"


def test_an_ordinary_client_of_awss_own_endpoint_is_no_obstacle():
    client = boto3.client(
        "dynamodb", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    assert why_not(client) is None


def why_not(client):
    requests = TableRequests(client, "leases", SystemRuntime(), "auto")

    def stop(request, **_):
        raise KeyboardInterrupt

    # After ours, and only once ours has looked: nothing is sent.
    client.meta.events._emitter.register_last("before-send", stop)
    selector = requests._selector
    capture_from = selector.capture_from

    def learn_then_stop(*arguments):
        client.meta.events._emitter.unregister("before-send", stop)
        capture_from(*arguments)
        raise KeyboardInterrupt

    selector.capture_from = learn_then_stop
    with pytest.raises(KeyboardInterrupt):
        requests.scan()
    return selector._obstacle


def test_who_insists_on_it_is_told_at_the_first_scan_and_no_write_is_made_a_failure(server):
    client = dynamodb(server.url)
    client.meta.events.register("before-send.dynamodb.*", lambda **_: None)
    table = table_of(client, "direct")
    server.say(RENEWED, SCANNED)
    assert isinstance(renew(table), Applied)
    with pytest.raises(SetupError, match="http_transport='direct' cannot be: the client has a handler"):
        table.scan()


def test_a_table_in_memory_is_asked_as_ever():
    memory = MemoryDynamoDB()
    table = table_of(memory)
    table.prepare(create=True)
    memory.put_item(TableName="leases", Item=to_item(HELD))
    assert isinstance(renew(table), Applied)
    assert not table._requests._selector._transports


def test_a_tracer_around_botocores_calls_sees_every_one(server, monkeypatch):
    seen = []
    real = BaseClient._make_api_call

    class Tracer:
        def __get__(self, client, _):
            return lambda *arguments: (seen.append(arguments), real(client, *arguments))[1]

    monkeypatch.setattr(BaseClient, "_make_api_call", Tracer())
    server.say(RENEWED)
    table = table_of(dynamodb(server.url))
    for _ in range(3):
        renew(table)
    assert len(seen) == 3


def test_endpoints_of_accounts_are_asked_as_botocore_resolves_them():
    client = boto3.client(
        "dynamodb",
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        aws_account_id="123456789012",
    )
    requests = TableRequests(client, "leases", SystemRuntime(), "auto")
    stopped = stopping(requests._selector)
    with pytest.raises(KeyboardInterrupt):
        requests.scan()
    assert stopped
    template = requests._selector._transports["scan"][1]._template
    assert template.hostname == "123456789012.ddb.us-east-1.amazonaws.com"
    assert template.account == "123456789012"


def stopping(selector):
    capture_from, seen = selector.capture_from, []

    def learn_then_stop(*arguments):
        capture_from(*arguments)
        seen.append(arguments)
        raise KeyboardInterrupt

    selector.capture_from = learn_then_stop
    return seen


def test_credentials_of_another_account_are_learned_with_anew(server, lean_table):
    credentials = lean_table._client._request_signer._credentials
    server.say(RENEWED)
    renew(lean_table)
    credentials.account_id = "210987654321"
    for _ in range(3):
        renew(lean_table)
    assert [request.by_boto3 for request in server.requests] == [False, True, False, False]


# -- what comes back -------------------------------------------------------------------------------------------

ANSWERS = {
    "kept": RENEWED,
    "lost": refused(to_item(HELD.with_(owner="you", counter=9))),
    "settled": refused(to_item(RENEWAL.after)),
    "no such table": told({"__type": "ResourceNotFoundException", "message": ""}, 400),
    "throttled": told({"__type": "ProvisionedThroughputExceededException"}, 400),
    "not permitted": told({"__type": "AccessDeniedException"}, 400),
    "credentials": told({"__type": "UnrecognizedClientException"}, 400),
    "a failure": told({"__type": "InternalServerError"}, 500),
    "a page": http(b"<html>", 502, content_type="text/html"),
    "a proxy": http(b"<html>", content_type="text/html"),
    "not JSON": told(b"{"),
    "nothing": told(b""),
    "no row": told({}),
    "more than is known": told({"Attributes": wire(to_item(RENEWAL.after)), "Later": 1}),
    "a row that is none": told({"Attributes": []}),
    "another row": told({"Attributes": wire(to_item(replace(RENEWAL.after, key="shardId-000000000001")))}),
    "refused with another row": refused(to_item(replace(RENEWAL.after, key="shardId-000000000001"))),
    "nothing without a type": http(b"", content_type=None),
    "a page without a type": http(b"<html>", content_type=None),
}


def outcome(table):
    try:
        return renew(table, seconds=0.05)
    except PyKclError as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_write_has_the_same_outcome_over_both_ways(server, name):
    server.say(RENEWED, READ, SCANNED)
    direct, plain = taught(dynamodb(server.url)), table_of(dynamodb(server.url), "boto3")
    server.requests.clear()
    server.say(ANSWERS[name])
    found = outcome(direct)
    assert server.lean_requests
    assert found == outcome(plain)


@pytest.mark.parametrize(
    "name", ["another row", "refused with another row", "nothing without a type", "a page without a type"]
)
@pytest.mark.parametrize("way", ["direct", "boto3"])
def test_an_answer_about_another_row_and_one_of_nobody_prove_nothing(server, way, name):
    """Taken for ours, the other row would be what the next write is for, with a condition that holds."""
    server.say(RENEWED, READ, SCANNED)
    table = taught(dynamodb(server.url)) if way == "direct" else table_of(dynamodb(server.url), "boto3")
    server.say(ANSWERS[name])
    assert isinstance(renew(table, seconds=0.05), Unknown)
    item = wire(to_item(replace(HELD, key="shardId-000000000001")))
    server.say(told({"Item": item}) if "row" in name else ANSWERS[name])
    with pytest.raises(AnswerRefused):
        table.read(KEY)


def test_an_answer_without_a_type_is_dynamodbs_where_it_has_the_id_of_a_request(server):
    table = table_of(dynamodb(server.url), "boto3")
    row = {"Attributes": wire(to_item(RENEWAL.after))}
    server.say(http(row, content_type=None, x_amzn_requestid="ABC"))
    assert isinstance(renew(table), Applied)


def test_what_each_kind_of_answer_means(server, lean_table):
    for name, expected in (("kept", Applied), ("lost", Rejected), ("settled", Applied), ("no row", Unknown)):
        server.say(ANSWERS[name])
        assert isinstance(renew(lean_table, seconds=0.05), expected), name
    for name, error in (("no such table", TableGone), ("not permitted", SetupError)):
        server.say(ANSWERS[name])
        with pytest.raises(error):
            renew(lean_table)
    server.say(ANSWERS["throttled"])
    with pytest.raises(Throttled):
        lean_table.scan()


def test_the_row_of_a_condition_that_failed_comes_with_its_bytes(server, lean_table):
    theirs = HELD.with_(owner="you", counter=9)
    server.say(refused(to_item(theirs)))
    assert renew(lean_table) == Rejected(theirs)
    assert len(server.lean_requests) == 1, "it was read besides"


def test_an_error_is_of_the_class_the_client_has_for_it(server, lean_table):
    server.say(refused(to_item(HELD)))
    client = lean_table._client
    with pytest.raises(client.exceptions.ConditionalCheckFailedException) as caught:
        lean_table._requests.write("update_item", {})
    assert isinstance(caught.value, ClientError)
    assert caught.value.operation_name == "UpdateItem"
    assert caught.value.response["Item"] == to_item(HELD)


# -- the checksum ----------------------------------------------------------------------------------------------


def with_checksum(answer_body, change=0, status=200):
    body = json.dumps(answer_body).encode()
    return told(body, status, x_amz_crc32=zlib.crc32(body) ^ change)


def test_an_answer_with_its_checksum_is_believed(server, lean_table):
    server.say(with_checksum({"Items": [ROW]}))
    assert lean_table.scan().rows == (HELD,)
    assert server.lean_requests


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_with_another_checksum_is_not_believed(server, lean_table, status):
    body = (
        {"Attributes": ROW}
        if status == 200
        else {"__type": CONDITION, "Item": wire(to_item(HELD.with_(counter=9)))}
    )
    server.say(with_checksum(body, change=1, status=status))
    with pytest.raises(ChecksumError):
        lean_table._requests.write("update_item", {})
    assert isinstance(renew(lean_table, seconds=0.05), Unknown)
    server.say(with_checksum({"Item": ROW}, change=1), with_checksum({"Item": ROW}))
    assert lean_table.read(KEY) == HELD


# -- a write is sent once --------------------------------------------------------------------------------------


def test_a_write_is_not_sent_again_when_its_kept_connection_is_closed(server, lean_table):
    """It may have been carried out: whether it was is for the caller to find out."""
    server.say(RENEWED, CLOSE, RENEWED)
    renew(lean_table)
    with pytest.raises(ConnectionClosedError):
        lean_table._requests.write("update_item", {})
    assert len(server.lean_requests) == 2
    assert len({request.connection for request in server.lean_requests}) == 1


def test_a_read_is(server, lean_table):
    server.say(READ, CLOSE, READ)
    for _ in range(2):
        assert lean_table.read(KEY) == HELD
    assert len(server.lean_requests) == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (HANG, ReadTimeoutError),
        (Then(RENEWED[:-5], CLOSE), ConnectionClosedError),
        (Then(RENEWED[:-5], HANG), ReadTimeoutError),
        (Then(b"SSH-2.0\r\n\r\n", CLOSE), ConnectionClosedError),
    ],
    ids=["no answer in time", "cut off", "slow in the middle", "not HTTP"],
)
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept connection", "new connection"])
def test_a_write_without_a_whole_answer_is_sent_once_and_unknown(server, lean_table, answer, error, is_kept):
    if is_kept:
        server.say(RENEWED)
        renew(lean_table)
        server.requests.clear()
    server.say(answer, RENEWED)
    with pytest.raises(error):
        lean_table._requests.write("update_item", {})
    assert len(server.requests) == 1


def test_a_lost_answer_to_a_write_is_settled_by_the_next_attempt(server, lean_table):
    server.say(RENEWED, CLOSE, refused(to_item(RENEWAL.after)))
    renew(lean_table)
    assert renew(lean_table) == Applied(RENEWAL.after, confirmed_by_read=True)
    assert len(server.lean_requests) == 3


# Each byte comes in time; all of them take fifteen seconds at least.
DRIPPING = Drip(told({"Attributes": wire(to_item(RENEWAL.after))}, x_padding="x" * 1500))


def test_a_write_whose_answer_drips_is_given_up_after_the_time_out_of_one_request(server, lean_table):
    server.say(DRIPPING, RENEWED)
    with pytest.raises(ReadTimeoutError):
        lean_table._requests.write("update_item", {})
    assert len(server.lean_requests) == 1


FAILURE = http(b"", 500)


@pytest.mark.parametrize(
    ("way", "trouble"),
    [
        ("write", CLOSE),
        ("write", HANG),
        ("write", FAILURE),
        ("read", CLOSE),
        ("read", FAILURE),
        ("scan", FAILURE),
    ],
    ids=[
        "write unanswered",
        "write too slow",
        "write refused",
        "read unanswered",
        "read refused",
        "scan refused",
    ],
)
def test_a_request_that_fails_leaves_no_cycle_to_the_garbage_collector(server, lean_table, way, trouble):
    server.say(trouble)
    calls = {
        "write": lambda: renew(lean_table, seconds=0.1),
        "read": lambda: lean_table.read(KEY),
        "scan": lean_table.scan,
    }
    assert types_in_cycles(calls[way]) == []


def test_a_heartbeat_whose_answer_drips_is_settled_by_its_next_attempt(server, lean_table):
    """Within its own time: 0.3 s is the time-out of a request here."""
    server.say(DRIPPING, refused(to_item(RENEWAL.after)))
    assert renew(lean_table) == Applied(RENEWAL.after, confirmed_by_read=True)
    assert len(server.lean_requests) == 2


def test_a_heartbeat_whose_answers_all_drip_ends_unknown_at_its_deadline(server, lean_table):
    server.say(DRIPPING)
    answer = renew(lean_table, seconds=1.0)
    assert isinstance(answer, Unknown)
    assert "ReadTimeoutError" in answer.cause


def test_a_client_that_waits_for_ever_has_no_deadline(server):
    server.say(RENEWED, READ, SCANNED, RENEWED)
    table = taught(dynamodb(server.url, read_timeout=None))
    assert isinstance(renew(table), Applied)
    assert len(server.lean_requests) == 1


def test_a_write_of_which_nothing_could_be_sent_goes_over_a_new_connection(server, lean_table, monkeypatch):
    server.say(RENEWED)
    renew(lean_table)
    real, refusals = Connection.exchange, [Unsent("the connection was closed")]

    def exchange(connection, request):
        if refusals:
            connection.is_reusable = False
            raise refusals.pop()
        return real(connection, request)

    monkeypatch.setattr(Connection, "exchange", exchange)
    assert isinstance(renew(lean_table), Applied)
    assert not refusals
    assert len(server.lean_requests) == 2
    assert len({request.connection for request in server.lean_requests}) == 2


def test_a_new_connection_that_takes_nothing_is_not_replaced(server, lean_table, monkeypatch):
    tried = []

    def exchange(connection, request):
        tried.append(connection)
        connection.is_reusable = False
        raise Unsent("the connection was closed")

    monkeypatch.setattr(Connection, "exchange", exchange)
    with pytest.raises(ConnectionClosedError):
        lean_table._requests.write("update_item", {})
    assert len(tried) == 1


def test_nobody_there_is_a_write_that_did_not_arrive(server, lean_table):
    server.stop()
    answer = renew(lean_table, seconds=0.05)
    assert isinstance(answer, Unknown)
    assert "EndpointConnectionError" in answer.cause or "ConnectionClosedError" in answer.cause


def test_a_write_waits_as_long_as_the_clients_do(server):
    server.say(RENEWED, READ, SCANNED)
    client = dynamodb(server.url, read_timeout=7)
    around = taught(client)._requests._selector._settings
    assert (around.connect_timeout, around.read_timeout) == (2, 7)
    assert (client.meta.config.connect_timeout, client.meta.config.read_timeout) == (2, 7)


def test_a_socket_that_takes_nothing_is_told_from_one_that_took_something():
    class Taking:
        def __init__(self, most):
            self.most = most

        def fileno(self):
            return 0

        def send(self, data):
            if not self.most:
                raise BrokenPipeError
            return self.most

        def sendall(self, data):
            raise BrokenPipeError

        def recv(self, most):
            return b""

    with pytest.raises(Unsent):
        Connection(Taking(0)).exchange(b"request")
    with pytest.raises(Exception, match="closed") as caught:
        Connection(Taking(3)).exchange(b"request")
    assert not isinstance(caught.value, Unsent)


def test_a_request_is_sent_whole_however_little_a_socket_takes_at_once():
    here, there = socket.socketpair()
    with here, there:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        request = bytes(range(256)) * 4000

        class Slow:
            fileno, recv, sendall = here.fileno, here.recv, here.sendall

            def send(self, data):
                return here.send(data[:100])

        import threading

        received = bytearray()

        def read():
            while len(received) < len(request):
                received.extend(there.recv(65536))
            there.sendall(told(b"{}"))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        assert Connection(Slow()).exchange(request).status == 200
        reader.join(300)
        assert bytes(received) == request


def test_a_table_over_tls_is_asked_of_whom_the_client_trusts(certificate):
    with RawServer(certificate) as server:
        server.say(RENEWED, READ, SCANNED, SCANNED)
        table = taught(dynamodb(server.url, verify=certificate))
        assert table.scan().rows == (HELD,)
        assert len(server.lean_requests) == 1


def test_a_refusal_says_nothing_of_what_was_sent(server, lean_table):
    server.say(refusal("ThrottlingException"))
    with pytest.raises(TemporaryError) as caught:
        lean_table.scan()
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
