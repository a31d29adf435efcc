"""One HTTP/2 connection with its subscriptions, against a server that the test plays frame by frame."""

import socket
import threading

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest
from event_streams import event

from pykcl.aws.push.h2_link import MAX_PING, MAX_SILENCE, Exchange, Link, NoHttp2
from pykcl.aws.push.subscription import MAX_FULL, MAX_UNREAD, PushedEvents, event_of
from pykcl.errors import AnswerRefused, SubscriptionOver, TemporaryError

SHARD = "shardId-000000000000"
GOOD = [(":status", "200"), ("content-type", "application/vnd.amazon.eventstream")]
REQUEST = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/")]


def pushed(data="MQ==", number="7"):
    record = {"SequenceNumber": number, "Data": data, "PartitionKey": "k", "ApproximateArrivalTimestamp": 1.5}
    return event({"Records": [record], "ContinuationSequenceNumber": number})


class Server:
    """The other side. heard: the events of the client."""

    def __init__(self, wire):
        self.wire = wire
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        self.h2.initiate_connection()
        self.heard = []
        self.send()

    def send(self):
        self.wire.sendall(self.h2.data_to_send())

    def hear(self):
        self.wire.setblocking(False)
        try:
            while data := self.wire.recv(1 << 20):
                self.heard += self.h2.receive_data(data)
        except (BlockingIOError, ConnectionResetError):
            self.wire.setblocking(True)
        return self.heard

    def answer(self, exchange, data=b"", headers=GOOD, *, end=False):
        if headers:
            self.h2.send_headers(exchange.stream_id, headers)
        while data:
            size = min(self.h2.local_flow_control_window(exchange.stream_id), 16_000, len(data))
            assert size, "the client has closed its window"
            self.h2.send_data(exchange.stream_id, data[:size])
            data = data[size:]
            # The socket holds less than a window.
            self.send()
            self.link.receive(1.0)
        if end:
            self.h2.end_stream(exchange.stream_id)
        self.send()


@pytest.fixture
def wires():
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def server(wires):
    return Server(wires[1])


@pytest.fixture
def link(wires, server):
    made = Link(wires[0], 0.0, lambda error: TemporaryError(str(error)))
    made.agree()
    server.link = made
    yield made
    made.close(ConnectionResetError())


@pytest.fixture
def ask(link, server):
    def ask():
        events = PushedEvents(lambda message: event_of(message, SHARD, "s"), lambda: None)
        exchange = Exchange(REQUEST, b"{}", events, threading.Event())
        link.send(exchange)
        server.hear()
        return exchange

    return ask


def test_one_connection_carries_many_subscriptions(link, server, ask):
    first, second = ask(), ask()
    assert not first.answered.is_set()
    server.answer(second, pushed(number="2"))
    server.answer(first, pushed(number="1"))
    link.receive(1.0)
    assert first.answered.is_set()
    assert [one.events.poll().next_iterator for one in (first, second)] == ["1", "2"]
    server.answer(first, headers=None, end=True)
    link.receive(1.0)
    with pytest.raises(SubscriptionOver):
        first.events.poll()
    assert second.events.poll() is None


def test_an_answer_that_is_an_error_has_its_body(link, server, ask):
    exchange = ask()
    server.answer(exchange, b'{"__type":"x"}', [(":status", "400"), ("x-amzn-requestid", "1")])
    link.receive(1.0)
    assert not exchange.answered.is_set()
    server.answer(exchange, headers=None, end=True)
    link.receive(1.0)
    assert exchange.answered.is_set()
    assert (exchange.status, exchange.body) == (400, b'{"__type":"x"}')
    assert exchange.headers["x-amzn-requestid"] == "1"


def test_the_service_sends_no_more_than_the_window_ahead_of_the_reader(link, server, ask):
    exchange, other = ask(), ask()
    message = pushed("x" * 100_000)
    sent = 0
    server.answer(exchange)
    while server.h2.local_flow_control_window(exchange.stream_id) >= len(message):
        server.answer(exchange, message, headers=None)
        sent += 1
        link.receive(1.0)
        server.hear()
    assert sent == MAX_UNREAD // len(message)
    server.answer(other, message)
    link.receive(1.0)
    assert other.events.poll() is not None
    for _ in range(sent):
        assert exchange.events.poll() is not None
        link.taken(exchange)
    server.hear()
    assert server.h2.local_flow_control_window(exchange.stream_id) > MAX_UNREAD // 2


def test_a_subscription_that_is_full_and_that_nobody_reads_for_20_seconds_ends_and_holds_nothing(
    link, server, ask
):
    left, taken = ask(), ask()
    for one in (left, taken):
        server.answer(one, pushed(), headers=GOOD)
        data = pushed("x" * 600_000)
        server.answer(one, data[: server.h2.local_flow_control_window(one.stream_id)], headers=None)
        link.receive(1.0)
    assert taken.events.poll() is not None
    link.taken(taken)
    assert link.due_at == 1.0 + MAX_FULL
    link.check(0.9 + MAX_FULL)
    assert left.events.held_bytes == MAX_UNREAD
    link.check(1.0 + MAX_FULL)
    (reset,) = [one for one in server.hear() if isinstance(one, h2.events.StreamReset)]
    assert reset.stream_id == left.stream_id
    assert left.events.held_bytes == 0
    with pytest.raises(SubscriptionOver):
        left.events.poll()
    assert taken.events.poll() is None
    assert link.due_at == 1.0 + MAX_SILENCE


def test_a_subscription_that_is_full_and_then_garbage_leaves_the_connection_alone(link, server, ask):
    exchange, other = ask(), ask()
    message = pushed("x" * 120_000)
    last = pushed("x" * (120_000 + MAX_UNREAD - 2000 - 4 * len(message)))
    server.answer(exchange, message * 3 + last + b"x" * 1500)
    link.receive(1.0)
    assert exchange.events.held_bytes > MAX_UNREAD - 4096
    link.check(1.0 + MAX_FULL)
    server.answer(other, pushed())
    link.receive(30.0)
    assert not link.is_closed
    assert other.events.poll() is not None


def test_an_event_that_is_longer_than_the_window_comes_whole(link, server, ask):
    exchange = ask()
    server.answer(exchange)
    message = pushed("abcd" * 800_000)
    for start in range(0, len(message), 200_000):
        server.answer(exchange, message[start : start + 200_000], headers=None)
        link.receive(1.0)
        server.hear()
    assert len(exchange.events.poll().records[0].data) == 2_400_000


def test_the_beginning_of_a_long_event_behind_another_waits_for_that_to_be_taken(link, server, ask):
    exchange = ask()
    server.answer(exchange, pushed())
    message = pushed("abcd" * 400_000)
    window = server.h2.local_flow_control_window(exchange.stream_id)
    server.answer(exchange, message[:window], headers=None)
    link.receive(1.0)
    server.hear()
    assert server.h2.local_flow_control_window(exchange.stream_id) == 0
    assert exchange.events.poll() is not None
    assert exchange.events.is_first_cut
    link.taken(exchange)
    server.hear()
    for start in range(window, len(message), 200_000):
        server.answer(exchange, message[start : start + 200_000], headers=None)
        link.receive(1.0)
        server.hear()
    assert exchange.events.poll() is not None


def test_a_subscription_that_is_cancelled_is_reset_and_gives_its_window_back(link, server, ask):
    exchange = ask()
    server.answer(exchange, pushed("x" * 100_000) * 4)
    link.receive(1.0)
    before = server.h2.outbound_flow_control_window
    link.cancel(exchange)
    link.cancel(exchange)
    (reset,) = [one for one in server.hear() if isinstance(one, h2.events.StreamReset)]
    assert reset.error_code == h2.errors.ErrorCodes.CANCEL
    assert server.h2.outbound_flow_control_window >= before
    assert not link.is_closed


def test_what_is_no_event_stream_resets_its_stream_alone(link, server, ask):
    exchange, other = ask(), ask()
    server.answer(exchange, pushed() + b"x" * 100)
    server.answer(other, pushed())
    link.receive(1.0)
    assert exchange.events.poll() is not None
    with pytest.raises(AnswerRefused):
        exchange.events.poll()
    assert other.events.poll() is not None
    assert any(isinstance(one, h2.events.StreamReset) for one in server.hear())


def test_a_stream_that_the_server_resets_ends_alone(link, server, ask):
    exchange, unanswered, other = ask(), ask(), ask()
    server.answer(exchange, pushed())
    for one in (exchange, unanswered):
        server.h2.reset_stream(one.stream_id)
    server.answer(other)
    link.receive(1.0)
    assert exchange.events.poll() is not None
    with pytest.raises(TemporaryError, match="reset"):
        exchange.events.poll()
    assert "reset" in str(unanswered.failure)
    assert other.events.poll() is None


@pytest.mark.parametrize("ends", ["in order", "reset"])
def test_what_a_stream_held_when_the_server_ended_it_is_given_back_to_the_connection(link, server, ask, ends):
    other = ask()
    server.answer(other)
    link.receive(1.0)
    for _ in range(120):
        exchange = ask()
        server.answer(exchange, pushed("x" * 60_000) * 8, end=ends == "in order")
        if ends == "reset":
            server.h2.reset_stream(exchange.stream_id)
            server.send()
        link.receive(1.0)
        exchange.events.close()
        link.cancel(exchange)
        server.hear()
    assert server.h2.outbound_flow_control_window > 50 * MAX_UNREAD, (
        "the other subscriptions have their share"
    )


def goaway(server):
    server.h2.close_connection()
    server.send()


def hang_up(server):
    server.wire.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("end", [goaway, hang_up])
def test_a_connection_that_ends_ends_its_subscriptions_and_takes_no_more(link, server, ask, end):
    answered, unanswered = ask(), ask()
    server.answer(answered, pushed())
    link.receive(1.0)
    end(server)
    link.receive(2.0)
    assert answered.events.poll() is not None
    with pytest.raises(TemporaryError):
        answered.events.poll()
    assert unanswered.answered.is_set()
    assert isinstance(unanswered.failure, ConnectionResetError)
    assert link.is_closed
    late = ask()
    assert isinstance(late.failure, ConnectionResetError)


def test_a_connection_that_is_silent_is_asked_and_then_condemned(link, server, ask):
    exchange = ask()
    server.answer(exchange)
    link.receive(100.0)
    link.check(100.0 + MAX_SILENCE - 1)
    assert not any(isinstance(one, h2.events.PingReceived) for one in server.hear())
    link.check(100.0 + MAX_SILENCE)
    assert any(isinstance(one, h2.events.PingReceived) for one in server.hear())
    server.send()
    link.receive(131.0)
    assert link.due_at == 131.0 + MAX_SILENCE
    link.check(161.0)
    link.check(161.0 + MAX_PING - 1)
    assert not link.is_closed
    link.check(161.0 + MAX_PING)
    assert link.is_closed
    with pytest.raises(TemporaryError, match="PING"):
        exchange.events.poll()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_without_http2_is_noticed(wires, answer):
    wires[1].sendall(answer)
    wires[1].shutdown(socket.SHUT_WR)
    with pytest.raises(NoHttp2):
        Link(wires[0], 0.0, lambda error: TemporaryError(str(error))).agree()
