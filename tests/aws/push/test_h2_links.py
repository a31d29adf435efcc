"""The connections of a process over HTTP/2: how many there are, who serves them, and when there is none."""

import select
import socket
import ssl
import threading
from contextlib import suppress

import boto3
import pytest
from botocore.config import Config
from event_streams import event
from server_between import Answer

from pykcl.aws.push import h2_links
from pykcl.aws.push.h2_links import SECOND_LINK_FROM
from pykcl.aws.push.stream import FanOutStream
from pykcl.errors import ConfigError, SetupError, SubscriptionOver, TemporaryError
from pykcl.local.server import LocalAws
from pykcl.model.checkpoint import ReadFrom
from pykcl.runtime import SystemRuntime

LONG = 60
"""Seconds after which a test fails that waits for what does not come."""
LATEST = ReadFrom("LATEST")
FIRST = "shardId-000000000000"


def shard(number):
    return f"shardId-{number:012}"


def client_of(url, **config):
    return boto3.client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="-",
        aws_secret_access_key="-",
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


@pytest.fixture
def aws():
    with LocalAws(listing_lag=0) as running:
        running.kinesis.create_stream("s", SECOND_LINK_FROM + 2)
        running.kinesis.register_consumer("s", "app")
        yield running


@pytest.fixture
def stream_of():
    opened = []

    def make(url, transport="auto", **config):
        opened.append(client_of(url, **config))
        return FanOutStream(opened[-1], "s", SystemRuntime(), consumer="app", push_transport=transport)

    yield make
    for client in opened:
        client.close()


def push_threads():
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("pykcl-push"))


def wait_for(condition):
    deadline, pause = SystemRuntime().monotonic() + LONG, threading.Event()
    while not condition():
        assert SystemRuntime().monotonic() < deadline
        pause.wait(0.01)


def links():
    return [link for found in h2_links.of_process(SystemRuntime())._links.values() for link in found]


def next_event(subscription, ready):
    while (found := subscription.poll()) is None:
        assert ready.wait(LONG)
        ready.clear()
    return found


def test_one_thread_and_two_connections_serve_many_shards_and_end_with_them(aws, stream_of):
    stream, ready = stream_of(aws.url, "h2"), threading.Event()
    opened = [stream.subscribe(shard(number), LATEST, ready.set) for number in range(SECOND_LINK_FROM)]
    assert len(links()) == 1
    opened += [
        stream.subscribe(shard(number), LATEST, ready.set)
        for number in range(SECOND_LINK_FROM, SECOND_LINK_FROM + 2)
    ]
    assert sorted(link.load for link in links()) == [2, SECOND_LINK_FROM]
    assert push_threads() == ["pykcl-push"]
    for one in opened:
        assert next_event(one, ready).records == []
        one.close()
    wait_for(lambda: not push_threads())
    assert links() == []


def test_a_subscription_is_made_anew_over_another_connection(aws, stream_of):
    stream, ready = stream_of(aws.url, "h2"), threading.Event()
    first = stream.subscribe(FIRST, LATEST, ready.set)
    next_event(first, ready)
    (link,) = links()
    socket.socket.shutdown(link._socket, socket.SHUT_RDWR)
    with pytest.raises(TemporaryError):
        next_event(first, ready)
    second = stream.subscribe(shard(1), LATEST, ready.set)
    next_event(second, ready)
    assert links() != [link]
    second.close()
    wait_for(lambda: not push_threads())


def test_threads_that_subscribe_at_once_share_the_connections(aws, stream_of):
    stream, opened = stream_of(aws.url, "h2"), []
    stream.prepare_consumer()
    threads = [
        threading.Thread(target=lambda n=n: opened.append(stream.subscribe(shard(n), LATEST, lambda: None)))
        for n in range(SECOND_LINK_FROM)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(opened) == SECOND_LINK_FROM
    assert len(links()) == 1
    for one in opened:
        one.close()
    wait_for(lambda: not push_threads())


def test_a_process_that_has_no_thread_to_give_tries_again(aws, stream_of, monkeypatch):
    stream, ready = stream_of(aws.url, "h2"), threading.Event()
    stream.prepare_consumer()

    def spawn(*_):
        raise TemporaryError("no thread")

    with monkeypatch.context() as patch:
        patch.setattr(SystemRuntime, "spawn", spawn)
        with pytest.raises(TemporaryError, match="no thread"):
            stream.subscribe(FIRST, LATEST, ready.set)
    # Nothing was sent: another call within a second is not refused.
    subscription = stream.subscribe(FIRST, LATEST, ready.set)
    next_event(subscription, ready)
    subscription.close()
    wait_for(lambda: not push_threads())
    assert links() == []


class Front:
    """A server before a local AWS that ends TLS. protocols: those that it agrees on, one of which is in `agreed`."""

    def __init__(self, aws, certificate, protocols):
        self._port = int(aws.url.rpartition(":")[2])
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._context.set_alpn_protocols(protocols)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stop, self._stopped = socket.socketpair()
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.agreed = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self):
        self._stop.close()
        for thread in self._threads:
            thread.join(LONG)
        self._stopped.close()
        self._listener.close()

    def _accept(self):
        while self._listener in select.select([self._listener, self._stopped], [], [])[0]:
            wire, _ = self._listener.accept()
            self._threads.append(threading.Thread(target=self._serve, args=(wire,), daemon=True))
            self._threads[-1].start()

    def _serve(self, wire):
        with suppress(OSError), self._context.wrap_socket(wire, server_side=True) as theirs:
            self.agreed.append(theirs.selected_alpn_protocol())
            with socket.create_connection(("127.0.0.1", self._port)) as ours:
                self._copy(theirs, ours)
        wire.close()

    def _copy(self, theirs, ours):
        while True:
            ready = [theirs] if theirs.pending() else select.select([theirs, ours, self._stopped], [], [])[0]
            if self._stopped in ready:
                return
            for source, target in ((theirs, ours), (ours, theirs)):
                if source in ready:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    target.sendall(data)


@pytest.fixture
def front(aws, make_certificate, monkeypatch):
    certificate, opened = str(make_certificate()), []
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate)

    def make(*protocols):
        opened.append(Front(aws, certificate, list(protocols)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    ("protocols", "threads"),
    [(("h2", "http/1.1"), ["pykcl-push"]), (("http/1.1",), [f"pykcl-push-{FIRST}"])],
)
def test_what_tls_agrees_on_decides_the_transport(aws, front, stream_of, protocols, threads):
    server, ready = front(*protocols), threading.Event()
    subscription = stream_of(server.url).subscribe(FIRST, LATEST, ready.set)
    next_event(subscription, ready)
    assert push_threads() == threads
    assert ("h2" in server.agreed) == ("h2" in protocols)
    aws.kinesis.put_record("s", b"1", "k", 0)
    assert [one.data for one in next_event(subscription, ready).records] == [b"1"]
    subscription.close()
    wait_for(lambda: not push_threads())


def test_http2_that_is_insisted_on_is_refused_where_it_cannot_be(front, stream_of):
    with pytest.raises(SetupError, match=r"does not speak it.*fanout_transport='h2'"):
        stream_of(front("http/1.1").url, "h2").subscribe(FIRST, LATEST, print)


def test_a_certificate_that_is_not_trusted_is_an_error_of_both(aws, front, stream_of, monkeypatch):
    server = front("h2")
    good = stream_of(server.url)
    good.prepare_consumer()
    monkeypatch.delenv("AWS_CA_BUNDLE")
    bad = stream_of(server.url)
    bad._consumer_arn = good._consumer_arn
    with pytest.raises(TemporaryError, match="certificate is not accepted"):
        bad.subscribe(FIRST, LATEST, print)


def test_a_proxy_is_left_to_botocore(aws, stream_of):
    stream = stream_of(aws.url, "h2", proxies={"http": "http://127.0.0.1:9"})
    stream._consumer_arn = aws.kinesis.describe_consumer("s", name="app")[0].arn
    with pytest.raises(SetupError, match="a proxy is configured"):
        stream.subscribe(FIRST, LATEST, print)


def test_an_endpoint_that_is_not_there_is_an_error_of_botocore(aws, stream_of):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}"
    stream = stream_of(closed)
    stream._consumer_arn = aws.kinesis.describe_consumer("s", name="app")[0].arn
    for _ in range(2):
        with pytest.raises(TemporaryError, match="EndpointConnectionError"):
            stream.subscribe(FIRST, LATEST, print)


def test_an_endpoint_without_http2_is_read_over_http1(between, stream_of):
    between.kinesis.create_stream("s", 1)
    members = {"Records": [], "ContinuationSequenceNumber": "7"}
    body = event({}, "initial-response") + event(members)
    between.instead = lambda operation, *_: Answer(200, {}, body) if operation == "SubscribeToShard" else None
    ready = threading.Event()
    subscription = stream_of(between.url).subscribe(FIRST, LATEST, ready.set)
    assert next_event(subscription, ready).next_iterator == "7"
    subscription.close()
    assert between.operations().count("SubscribeToShard") == 1
    wait_for(lambda: not push_threads())


def test_http2_without_its_package_is_refused_with_the_name_of_the_extra(aws, stream_of, monkeypatch):
    monkeypatch.setattr("pykcl.aws.push.stream.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pykcl\[fanout\]"):
        stream_of(aws.url, "h2")
    ready = threading.Event()
    subscription = stream_of(aws.url).subscribe(FIRST, LATEST, ready.set)
    next_event(subscription, ready)
    assert push_threads() == [f"pykcl-push-{FIRST}"]
    subscription.close()
    wait_for(lambda: not push_threads())
    with pytest.raises(SubscriptionOver):
        subscription.poll()
