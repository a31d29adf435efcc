"""Pages that are asked for and not waited for: many at a time, and each as `fetch` would have brought it."""

import socket
import threading
from contextlib import suppress

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from raw_server import (
    CLOSE,
    EMPTY,
    HANG,
    SHARD,
    RawServer,
    Then,
    client_of,
    direct_stream,
    fetch,
    http,
    refusal,
    stream_of,
    transport_of,
)
from test_connection import BODY, HEAD, WHOLE, Pieces

from pykcl.aws.transport import get_records
from pykcl.aws.transport.connection import (
    MAX_TAKEN_IN,
    Connection,
    PendingAnswer,
    ProtocolError,
    wait_for_any,
)
from pykcl.errors import IteratorExpired, TemporaryError, Throttled
from pykcl.interfaces import NonBlockingStream, PageStatus

PAGE = {**EMPTY, "NextShardIterator": "AAAA-other", "MillisBehindLatest": 7}


def warm(server, connections=1, **how):
    """A stream over the direct transport that has kept so many connections."""
    stream = direct_stream(server, **how)
    threads = [threading.Thread(target=fetch, args=[stream]) for _ in range(connections)]
    transport = transport_of(stream)
    kept, transport._kept = transport._kept, lambda: None  # each opens one of its own
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    transport._kept = kept
    assert len(transport._idle) == connections
    return stream


def ask(stream, iterator="AAAA-first"):
    return stream.request_page(SHARD, iterator, 1000)


def looked(stream, asked):
    """What it says as soon as something has come."""
    for _ in range(100):
        stream.wait_for_any([asked], 5.0)
        status = asked.poll()
        if status is not PageStatus.PENDING:
            return status
    raise AssertionError("nothing came")


def test_a_kinesis_stream_can_be_asked():
    assert isinstance(stream_of(client_of("http://127.0.0.1:1")), NonBlockingStream)


def test_a_page_that_was_asked_for_is_the_one_that_would_have_been_fetched(server):
    stream = warm(server)
    server.say(http(PAGE))
    asked = ask(stream)
    assert looked(stream, asked) is PageStatus.READY
    page = asked.page()
    assert (page.next_iterator, page.millis_behind_latest) == ("AAAA-other", 7)
    assert page == fetch(stream)
    first, second = server.requests[-2:]
    assert (first.body, first.headers["x-amz-target"]) == (second.body, second.headers["x-amz-target"])
    assert first.connection == second.connection, "the connection was kept"


def test_pages_come_over_tls_too(certificate):
    with RawServer(certificate) as server:
        stream = warm(server, connections=2, verify=certificate)
        server.say(http(PAGE))
        several = [ask(stream), ask(stream)]
        assert [looked(stream, one) for one in several] == [PageStatus.READY] * 2
        assert [one.page().millis_behind_latest for one in several] == [7, 7]
        assert len(transport_of(stream)._idle) == 2


def test_nothing_is_sent_where_the_lean_transport_is_not_in_use(server):
    stream = stream_of(client_of(server.url), http_transport="boto3")
    fetch(stream)
    assert not stream.max_pending_pages
    assert ask(stream) is None
    assert len(server.requests) == 1


def test_as_many_are_under_way_as_the_client_keeps_connections(server):
    assert direct_stream(server, client=client_of(server.url, max_pool_connections=7)).max_pending_pages == 7


def test_nothing_is_sent_without_a_connection_that_was_kept(server):
    stream = direct_stream(server)
    assert stream.max_pending_pages
    assert ask(stream) is None
    fetch(stream)
    first = ask(stream)
    assert first is not None
    assert ask(stream) is None, "the only one is in use"
    first.drop()


def test_who_is_answered_first_is_there_first(server):
    stream = warm(server, connections=2)
    server.say(HANG, http(PAGE))
    slow = ask(stream)
    while len(server.requests) < 4:  # who asks first gets the first answer
        slow.poll()
    quick = ask(stream)
    assert looked(stream, quick) is PageStatus.READY
    assert slow.poll() is PageStatus.PENDING
    assert quick.page().millis_behind_latest == 7
    slow.drop()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal("ProvisionedThroughputExceededException"), Throttled),
        (refusal("ExpiredIteratorException"), IteratorExpired),
        (http(b"<html>", 500), TemporaryError),
    ],
    ids=["throttled", "expired", "failed"],
)
def test_an_error_is_to_be_waited_for_and_is_the_one_that_fetch_raises(server, answer, error):
    stream = warm(server)
    server.say(answer)
    asked = ask(stream)
    assert looked(stream, asked) is PageStatus.NEEDS_WAIT
    with pytest.raises(error) as here:
        asked.page()
    with pytest.raises(error) as there:
        fetch(stream)
    assert str(here.value) == str(there.value)


def test_who_closes_without_an_answer_is_asked_once_more(server):
    stream = warm(server)
    server.say(CLOSE, http(PAGE))
    asked = ask(stream)
    assert looked(stream, asked) is PageStatus.NEEDS_WAIT
    assert asked.page().millis_behind_latest == 7
    assert len(server.lean_requests) == 3


def test_an_answer_that_is_cut_off_is_no_page_and_nobody_is_asked_again(server):
    stream = warm(server)
    whole = http(PAGE)
    server.say(Then(whole[:-10], CLOSE), whole)
    asked = ask(stream)
    assert looked(stream, asked) is PageStatus.NEEDS_WAIT
    with pytest.raises(TemporaryError):
        asked.page()
    assert len(server.lean_requests) == 2


def test_an_answer_that_does_not_say_where_it_ends_is_waited_for(server):
    stream = warm(server)
    body = http(PAGE).partition(b"\r\n\r\n")[2]
    server.say(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    )
    asked = ask(stream)
    assert looked(stream, asked) is PageStatus.NEEDS_WAIT
    assert asked.page().millis_behind_latest == 7


def test_who_never_answers_is_waited_for_as_long_as_the_client_says(server):
    stream = warm(server, read_timeout=0.2)
    server.say(HANG)
    asked = ask(stream)
    stream.wait_for_any([asked], 0.01)
    assert asked.poll() is PageStatus.PENDING
    with pytest.raises(TemporaryError):
        asked.page()


def test_the_connection_of_a_dropped_page_is_not_used_again(server):
    stream = warm(server)
    before = server.requests[-1].connection
    ask(stream).drop()
    assert ask(stream) is None
    assert fetch(stream).next_iterator == EMPTY["NextShardIterator"]
    # The dropped request may be read after the last one, by a thread of its own.
    assert max(request.connection for request in server.requests) == before + 1
    transport_of(stream)._idle.pop().close()


@pytest.mark.parametrize(
    "error", [None, ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRole"), RuntimeError("x"), OSError("x")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_without_credentials_nothing_is_sent_and_no_connection_lost(server, monkeypatch, error):
    stream = warm(server)
    transport = transport_of(stream)

    def none(_):
        if error:
            raise error

    monkeypatch.setattr(type(transport._settings), "frozen_credentials", none)
    before = len(server.requests)
    assert ask(stream) is None
    assert len(server.requests) == before
    assert len(transport._idle) == 1


def test_credentials_are_not_renewed_for_a_page_that_nobody_waits_for(server, monkeypatch):
    stream = warm(server)
    credentials = transport_of(stream)._settings._credentials
    monkeypatch.setattr(credentials, "refresh_needed", lambda: True, raising=False)
    assert ask(stream) is None
    fetch(stream)
    monkeypatch.setattr(credentials, "refresh_needed", lambda: False, raising=False)
    asked = ask(stream)
    assert looked(stream, asked) is PageStatus.READY
    asked.page()


def test_a_large_answer_is_left_where_it_is_until_somebody_waits_for_it(server):
    stream = warm(server)
    record = {"PartitionKey": "k", "SequenceNumber": "1", "ApproximateArrivalTimestamp": 1.0}
    large = {**PAGE, "Records": [{**record, "Data": "QUJD" * (MAX_TAKEN_IN // 2)}]}
    server.say(http(large))
    asked = ask(stream)
    assert looked(stream, asked) is PageStatus.NEEDS_WAIT
    assert asked.underway._size <= MAX_TAKEN_IN
    assert len(asked.page().records[0].data) == 3 * MAX_TAKEN_IN // 2
    assert len(transport_of(stream)._idle) == 1


def test_a_head_without_end_is_not_taken_in_for_ever():
    connection = Connection(Drops(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * MAX_TAKEN_IN, [16384] * 100))
    underway = PendingAnswer(connection, b"", None)
    while underway.poll() is PageStatus.PENDING:
        pass
    assert underway._size <= MAX_TAKEN_IN
    with pytest.raises(ProtocolError):
        underway.answer()


def test_nothing_more_is_asked_for_than_the_page_and_the_next_one_is_compared(server, monkeypatch):
    """CBOR is compared with JSON by `fetch`, which may block, as soon as there are records."""
    monkeypatch.setattr(get_records, "MIN_COMPARED_PAGE", 0)
    stream = stream_of(client_of(server.url), http_transport="direct", record_encoding="auto")
    for _ in range(2):
        fetch(stream)
    record = {"Data": "YQ==", "PartitionKey": "k", "SequenceNumber": "1", "ApproximateArrivalTimestamp": 1.0}
    server.say(http({**PAGE, "Records": [record]}))
    asked = ask(stream)
    assert looked(stream, asked) is PageStatus.READY
    assert stream.max_pending_pages
    before = len(server.requests)
    assert len(asked.page().records) == 1
    assert len(server.requests) == before
    assert not stream.max_pending_pages
    assert ask(stream) is None
    fetch(stream)
    assert len(server.requests) == before + 2, (
        "the page, and the comparison, which finds that CBOR cannot be had"
    )
    assert stream.max_pending_pages


def test_no_text_of_it_shows_an_iterator(server):
    asked = ask(warm(server), "AAAA-secret")
    assert "AAAA-secret" not in repr(asked)
    asked.drop()


class Drops(Pieces):
    """Pieces, of which the next one is there only after a look that finds nothing."""

    def __init__(self, received, sizes=()):
        super().__init__(received, sizes)
        self.timeout, self.is_there = 5.0, False

    def gettimeout(self):
        return self.timeout

    def settimeout(self, timeout):
        self.timeout = timeout

    def recv(self, most):
        self.is_there = not self.is_there
        if self.timeout == 0.0 and not self.is_there:
            raise BlockingIOError
        return super().recv(most)


@pytest.mark.parametrize("name", WHOLE)
@given(sizes=st.lists(st.integers(1, 40), max_size=60), looks=st.integers(0, 30))
def test_an_answer_is_read_whatever_pieces_it_comes_in_and_however_often_it_is_looked_at(name, sizes, looks):
    received, status, body, _ = WHOLE[name]
    connection = Connection(Drops(received, sizes))
    underway = PendingAnswer(connection, b"", None)
    for _ in range(looks):
        if underway.poll() is not PageStatus.PENDING:
            break
    answer = underway.answer()
    assert (answer.status, answer.body) == (status, body)
    assert connection._socket.timeout == 5.0


def test_it_is_there_exactly_when_its_last_byte_is():
    received = HEAD + BODY
    connection = Connection(Drops(received, [1] * len(received)))
    underway = PendingAnswer(connection, b"", None)
    looks = []
    while underway.poll() is PageStatus.PENDING:
        looks.append(len(connection._socket.received))
    assert underway.poll() is PageStatus.READY
    assert min(looks) == 1
    assert connection._socket.received == b""


def test_a_socket_that_fails_is_to_be_waited_for_and_fails_there():
    class Broken(Drops):
        def recv(self, most):
            raise ConnectionResetError

    underway = PendingAnswer(Connection(Broken(b"")), b"", None)
    assert underway.poll() is PageStatus.NEEDS_WAIT
    with pytest.raises(Exception, match="closed"):
        underway.answer()


def test_a_connection_that_another_thread_closes_is_of_no_harm_without_poll(monkeypatch):
    def closed(*_):
        raise ValueError("file descriptor cannot be a negative integer (-1)")

    ours, theirs = socket.socketpair()
    monkeypatch.delattr("pykcl.aws.transport.connection.select.poll")
    underway = PendingAnswer(Connection(ours), b"", None)
    monkeypatch.setattr("pykcl.aws.transport.connection.select.select", closed)
    wait_for_any([underway], 60.0)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("has_poll", [True, False])
def test_waiting_ends_with_the_first_answer_and_at_once_for_a_closed_connection(monkeypatch, has_poll):
    ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    underway = [PendingAnswer(Connection(one), b"", None) for one in ours]
    if not has_poll:
        monkeypatch.delattr("pykcl.aws.transport.connection.select.poll")
    theirs[0].send(b"x")
    wait_for_any(underway, 60.0)
    ours[1].close()
    wait_for_any(underway, 60.0)
    wait_for_any([], 60.0)
    for one in (*ours, *theirs):
        with suppress(OSError):
            one.close()
