"""Reading HTTP answers: whole, in any pieces, and everything that is none."""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykcl.aws.transport.connection import (
    MOST_BODY,
    MOST_HEAD,
    Answer,
    Connection,
    ProtocolError,
    Unanswered,
)

BODY = b'{"Records":[]}'
HEAD = b"HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: 14\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Pieces:
    """A socket that gives what it has in pieces of the sizes told; then nothing, which is the end."""

    def __init__(self, received, sizes=()):
        self.received, self.sizes = received, list(sizes)
        self.sent = b""
        self.most_sent = 1 << 20

    def fileno(self):
        return 0

    def send(self, data):
        part = data[: self.most_sent]
        self.sent += part
        return len(part)

    def sendall(self, data):
        self.sent += data

    def recv(self, most):
        size = min(most, self.sizes.pop(0)) if self.sizes else most
        part, self.received = self.received[:size], self.received[size:]
        return part

    def recv_into(self, space):
        part = self.recv(len(space))
        space[: len(part)] = part
        return len(part)

    def close(self):
        self.received = b""


def exchanged(received, sizes=()):
    connection = Connection(Pieces(received, sizes))
    return connection.exchange(b"request"), connection


WHOLE = {
    "with a length": (HEAD + BODY, 200, BODY, True),
    "without a body": (b"HTTP/1.1 204 No\r\n\r\n", 204, b"", True),
    "not modified": (b"HTTP/1.1 304 No\r\nContent-Length: 14\r\n\r\n", 304, b"", True),
    "in chunks": (CHUNKED + b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", 200, b"abc0123456789", True),
    "with trailers": (CHUNKED + b"1\r\na\r\n0\r\nX: y\r\nZ: w\r\n\r\n", 200, b"a", True),
    "up to the end": (b"HTTP/1.1 200 OK\r\n\r\nall the rest", 200, b"all the rest", False),
    "to be closed": (b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 1\r\n\r\na", 200, b"a", False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", 200, b"a", False),
    "after interim ones": (
        b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 102 Wait\r\nX: y\r\n\r\n" + HEAD + BODY,
        200,
        BODY,
        True,
    ),
    "without a reason": (b"HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n", 503, b"", True),
    "and more behind it": (HEAD + BODY + b"HTTP/1.1 200 OK", 200, BODY, False),
}


@pytest.mark.parametrize("name", WHOLE)
@given(sizes=st.lists(st.integers(1, 40), max_size=60))
def test_an_answer_is_read_whatever_pieces_it_comes_in(name, sizes):
    received, status, body, is_reusable = WHOLE[name]
    answer, connection = exchanged(received, sizes)
    assert (answer.status, answer.body) == (status, body)
    if name != "and more behind it":  # how much is there already is a matter of the pieces
        assert connection.is_reusable == is_reusable


def test_what_came_behind_an_answer_is_never_the_next_one():
    _, connection = exchanged(HEAD + BODY + b"HTTP/1.1 200 OK\r\n")
    assert not connection.is_reusable


def test_headers_are_found_by_their_names_in_lower_case():
    answer, _ = exchanged(b"HTTP/1.1 200 OK\r\nDATE:  today \r\nX-Two: a:b\r\nContent-Length: 0\r\n\r\n")
    assert answer == Answer(200, {"date": "today", "x-two": "a:b", "content-length": "0"}, b"")


NONE = {
    "not HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "a status of letters": b"HTTP/1.1 abc OK\r\n\r\n",
    "a header without a colon": b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
    "cut off in the head": HEAD[:30],
    "cut off in the body": HEAD + BODY[:5],
    "cut off in a chunk": CHUNKED + b"5\r\nab",
    "cut off between chunks": CHUNKED + b"2\r\nab\r\n",
    "cut off before the end of the trailers": CHUNKED + b"0\r\nX: y\r\n",
    "a length of letters": b"HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\na",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\na",
    "a length in other digits": "HTTP/1.1 200 OK\r\nContent-Length: ٣\r\n\r\na".encode(),
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": CHUNKED[:-2] + b"Content-Length: 1\r\n\r\n0\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
    "a chunk without a size": CHUNKED + b"\r\nab\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    "a chunk that ends in something else": CHUNKED + b"1\r\naXX0\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * MOST_HEAD,
    "a line without end": CHUNKED + b"1" * (MOST_HEAD * 2),
    "trailers without end": CHUNKED + b"0\r\n" + b"X: y\r\n" * MOST_HEAD,
    "a page beyond all measure": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MOST_BODY + 1),
    "chunks beyond all measure": CHUNKED + b"%x\r\n" % (MOST_BODY + 1),
    "interim answers without end": b"HTTP/1.1 100 Go\r\n\r\n" * 100,
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_answer_is_refused_and_the_connection_not_used_again(name):
    connection = Connection(Pieces(NONE[name]))
    with pytest.raises(ProtocolError, match="larger" if "measure" in name else None) as caught:
        connection.exchange(b"request")
    assert not isinstance(caught.value, Unanswered)
    assert not connection.is_reusable


def test_a_body_up_to_the_end_has_a_limit_too():
    class Endless(Pieces):
        def recv(self, most):
            return super().recv(most) or b"x" * most

    with pytest.raises(ProtocolError, match="larger"):
        Connection(Endless(b"HTTP/1.1 200 OK\r\n\r\n")).exchange(b"request")


@given(
    received=st.binary(max_size=200) | st.binary(max_size=80).map(lambda rest: b"HTTP/1.1 200 OK\r\n" + rest)
)
def test_no_bytes_at_all_raise_anything_else(received):
    try:
        answer, _ = exchanged(received)
    except ProtocolError:
        return
    assert 200 <= answer.status <= 999


def test_no_byte_of_an_answer_is_told_apart():
    with pytest.raises(Unanswered):
        exchanged(b"")

    class Reset(Pieces):
        def recv(self, most):
            raise ConnectionResetError

    with pytest.raises(Unanswered):
        Connection(Reset(b"")).exchange(b"request")


def test_an_answer_that_comes_before_the_whole_request_was_sent_is_read():
    """A server refuses a long request, and closes without reading the rest of it."""

    class Refusing(Pieces):
        def sendall(self, data):
            raise BrokenPipeError

    refusing = Refusing(b"HTTP/1.1 413 Too large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    refusing.most_sent = 3
    connection = Connection(refusing)
    assert connection.exchange(b"request").status == 413
    assert not connection.is_reusable
    silent = Refusing(b"")
    silent.most_sent = 3
    with pytest.raises(Unanswered):
        Connection(silent).exchange(b"request")


def test_an_answer_that_a_closed_socket_left_is_read():
    ours, theirs = socket.socketpair()

    def refuse():
        with theirs:
            theirs.recv(1)
            theirs.sendall(b"HTTP/1.1 413 Too large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    server = threading.Thread(target=refuse)
    with ours:
        # With a time-out, as all sockets here have one, what does not fit is left to `sendall`.
        ours.settimeout(30.0)
        server.start()
        assert Connection(ours).exchange(bytes(8 * 1024 * 1024)).status == 413
        server.join()


def test_a_connection_that_fails_under_a_body_says_so_and_is_not_used_again():
    class BreaksLater(Pieces):
        def recv_into(self, space):
            raise ConnectionResetError

    connection = Connection(BreaksLater(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"))
    with pytest.raises(ConnectionResetError):
        connection.exchange(b"request")
    assert not connection.is_reusable


def test_a_connection_is_quiet_until_anything_comes_or_it_is_closed():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours)
        assert connection.is_quiet()
        theirs.sendall(b"x")
        assert not connection.is_quiet()
        ours.recv(1)
        assert connection.is_quiet()
        theirs.close()
        assert not connection.is_quiet()


class Timed(Pieces):
    """Each piece takes a second."""

    def __init__(self, received):
        super().__init__(received, [1] * len(received))
        self.now, self.timeout, self.timeouts = 0.0, 10.0, []

    def gettimeout(self):
        return self.timeout

    def settimeout(self, timeout):
        self.timeout = timeout

    def recv(self, most):
        self.timeouts.append(self.timeout)
        self.now += 1
        return super().recv(most)


@pytest.mark.parametrize(
    "received",
    [HEAD + BODY, CHUNKED + b"E\r\n" + BODY + b"\r\n0\r\n\r\n", HEAD[:17] + b"\r\n" + BODY],
    ids=["with a length", "in chunks", "up to the end"],
)
def test_the_time_of_a_whole_answer_is_bounded_wherever_it_is_slow(received):
    for seconds in range(1, len(received)):
        timed = Timed(received)
        connection = Connection(timed, lambda timed=timed: timed.now)
        connection.until = float(seconds)
        with pytest.raises(TimeoutError):
            connection.exchange(b"request")
        assert timed.now == seconds
        assert not connection.is_reusable
        left = [seconds - at for at in range(1, seconds)]
        assert timed.timeouts == [10.0, *(min(10.0, float(one)) for one in left)]


def test_the_next_answer_on_a_connection_has_all_its_time_again():
    timed = Timed(HEAD + BODY)
    connection = Connection(timed, lambda: timed.now)
    connection.until = len(HEAD + BODY) + 1.0
    assert connection.exchange(b"request").body == BODY
    assert timed.timeout == 10.0
    assert connection.is_reusable
