"""`interfaces.PushStream` over a boto3 Kinesis client: SubscribeToShard, and the consumer that it names.

botocore makes and signs the request, chooses the endpoint and reads errors. Its event stream is not used: it is four
times as dear as our own reading, and cannot be read without waiting. So the body of a good answer is taken out of
botocore's hands before it parses (`before-parse`), and read by us.

Over HTTP/1.1 botocore also sends, with all that it knows of proxies and certificates, and a thread for each
subscription reads the body: `BodyReader`. Over HTTP/2, the protocol of the service, the signed request is sent by
`h2_links` (`before-send`), where one thread serves all subscriptions of the process. That needs `pykcl[fanout]`, and a
client that the direct transport would take, too: no proxy, no handlers of others.

Facts of the API (2013-12-02) this rests on: a subscription ends after five minutes; another call for the same consumer
and shard is refused for five seconds, and takes over then; a ContinuationSequenceNumber is the place to go on AFTER.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from botocore.awsrequest import AWSResponse, HeadersDict

from pykcl.aws.errors import sort_failure
from pykcl.aws.kinesis import BadArgumentError, KinesisStream, NotFoundError, place_of
from pykcl.aws.push.consumer import ConsumerCalls, find_active
from pykcl.aws.push.subscription import MAX_FULL, NoSource, PushedEvents, Source, event_of
from pykcl.aws.transport.cbor import CBOR_TYPE, text_and_numbers
from pykcl.aws.transport.get_records import REFUSALS, CborProbe, probe_of
from pykcl.aws.transport.request_template import UnsupportedClient, client_settings_of, without_default_port
from pykcl.aws.transport.transport import OWN_HANDLERS, as_json
from pykcl.config import FanoutTransport, RecordEncoding
from pykcl.errors import (
    AnswerRefused,
    ConfigError,
    ConsumerGone,
    PyKclError,
    SetupError,
    ShardGone,
    TemporaryError,
)
from pykcl.interfaces import Fetched, Subscription
from pykcl.model.checkpoint import ReadFrom
from pykcl.runtime import Event, Runtime

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

log = logging.getLogger("pykcl.kinesis")

MAX_SILENCE: Final = 60.0
"""Seconds without a byte after which a subscription is given up. Its reader gives it up sooner; this is for one that
nobody reads."""
_ONE_READ: Final = 64 * 1024
_OF_HTTP1: Final = frozenset({"host", "connection", "transfer-encoding", "expect"})


class FanOutStream(KinesisStream):
    """A stream that also pushes records to a consumer. May be used by any number of threads at once.

    consumer: name or ARN. register: register it where it is missing. stop: once set, the consumer is not waited for.
    push_transport: "h2" is HTTP/2, "http1" is HTTP/1.1; "auto": the former where it can be. The rest: as for
    `KinesisStream`. Raises ConfigError for "h2" without the extra.
    """

    def __init__(
        self,
        client: KinesisClient,
        stream: str,
        runtime: Runtime,
        *,
        consumer: str,
        register: bool = True,
        stop: Event | None = None,
        push_transport: FanoutTransport = "auto",
        record_encoding: RecordEncoding = "auto",
        **others: Any,
    ) -> None:
        super().__init__(client, stream, runtime, record_encoding=record_encoding, **others)
        self._consumer, self._may_register = consumer, register
        # None before the consumer was asked for; empty once it was found to be deregistered.
        self._consumer_arn: str | None = None
        self._stop = stop
        self._probe = probe_of(client.meta.endpoint_url, record_encoding)
        self._push_transport = push_transport
        self._is_http2 = push_transport != "http1" and find_spec("h2") is not None
        if push_transport == "h2" and not self._is_http2:
            raise ConfigError(
                "fanout_transport='h2' needs the package h2, which is not installed. Do: pip install 'pykcl[fanout]', "
                "or drop fanout_transport: records then come over HTTP/1.1."
            )
        self._places: dict[str, Any] = {}
        events: Any = client.meta.events
        events.register_last("before-send.kinesis.SubscribeToShard", _send, unique_id="pykcl-send-subscribe")
        events.register(
            "request-created.kinesis.SubscribeToShard", _encode, unique_id="pykcl-encode-subscribe"
        )
        events.register("before-parse.kinesis.SubscribeToShard", _take_body, unique_id="pykcl-take-events")

    def prepare_consumer(self) -> None:
        """See `interfaces.PushStream`."""
        self._consumer_arn = find_active(
            self._consumer_calls(self._consumer),
            register=self._may_register,
            check_stream=self.describe,
            pause=self._pause,
        )

    def subscribe(self, shard_id: str, start: ReadFrom, on_ready: Callable[[], None]) -> Subscription:
        """See `interfaces.PushStream`. Raises also what `open` raises."""
        if self._consumer_arn is None:
            self.prepare_consumer()
        arn = self._consumer_arn
        if not arn:
            # Not registered again here: who calls `prepare_consumer` knows how often that may be done.
            raise self._deregistered()
        request = {
            "ConsumerARN": arn,
            "ShardId": shard_id,
            "StartingPosition": {"Type": start.kind, **place_of(start, "SequenceNumber")},
        }
        # CBOR has no common form for a time.
        is_cbor = self._probe.is_cbor and start.kind != "AT_TIMESTAMP"
        events = PushedEvents(partial(_decoded, self._probe, shard_id, self._name), on_ready)
        asked = _Asked(events, is_cbor, self._send if self._is_http2 else None)
        try:
            self._subscribe(shard_id, request, asked)
        except NotFoundError as error:
            failure = self._what_is_gone(shard_id, arn, str(error))
        except BadArgumentError as error:
            failure = self._start_refused(shard_id, start, str(error))
        except SetupError as error:
            failure = error
        else:
            return self._begun(shard_id, asked)
        if asked.is_encoding_refused:
            self._probe.distrust("it is refused")
            return self.subscribe(shard_id, start, on_ready)
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def _subscribe(self, shard_id: str, request: dict[str, Any], asked: _Asked) -> None:
        asking = _asking.set(asked)
        try:
            self._call(
                f"Subscribing to {shard_id} of stream {self._name!r}",
                self._calling(self._client.subscribe_to_shard),
                request,
            )
        except BaseException:
            if asked.body is not None:
                asked.body.close()
            raise
        finally:
            _asking.reset(asking)

    def _begun(self, shard_id: str, asked: _Asked) -> Subscription:
        if asked.body is None:
            raise SetupError(
                "Enhanced fan-out needs a newer botocore: this one does not show an answer before it parses it. Do: "
                "pip install -U boto3."
            )
        if isinstance(asked.body, _PushedBody):
            asked.events.source = asked.body.source
            return asked.events
        reader = BodyReader(asked.body, asked.events, self._runtime, shard_id)
        asked.events.source = reader
        try:
            self._runtime.spawn(f"pykcl-push-{shard_id}", reader.run)
        except TemporaryError:
            asked.body.close()
            raise
        return asked.events

    def _send(self, asked: _Asked, request: Any) -> AWSResponse | None:
        """Send a signed request over HTTP/2; None where that cannot be: botocore sends it then."""
        from pykcl.aws.push.h2_links import LinkSource, NoHttp2, of_process

        links = of_process(self._runtime)
        try:
            place = self._place_of(request.url)
            link, exchange = links.request(place, _http2_headers(request), request.body, asked.events)
        except (NoHttp2, UnsupportedClient) as error:
            why = str(error) or "the endpoint does not speak it"
        else:
            source = LinkSource(links, link, exchange) if exchange.is_good else NoSource()
            body = _PushedBody(exchange.body, source)
            found: Any = HeadersDict(exchange.headers)
            return AWSResponse(request.url, exchange.status, found, body)
        if self._push_transport == "h2":
            raise SetupError(
                f"Subscribing over HTTP/2 cannot be: {why}. Do: drop fanout_transport='h2', or say 'http1'."
            )
        log.info("subscribing over HTTP/1.1, with a connection and a thread for each shard: %s", why)
        self._is_http2 = False
        return None

    def _place_of(self, url: str) -> Any:
        """Raises UnsupportedClient."""
        from pykcl.aws.push.h2_links import Place

        if (found := self._places.get(url)) is None:
            own: frozenset[Any] = OWN_HANDLERS | frozenset[Any]((_encode, _send, _take_body))
            settings = client_settings_of(self._client, url, {"subscribe_to_shard": "SubscribeToShard"}, own)
            parts = urlsplit(url)
            is_tls = parts.scheme == "https"
            found = Place(url, parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls, settings)
            self._places[url] = found
        return found

    def _what_is_gone(self, shard_id: str, consumer_arn: str, message: str) -> PyKclError:
        """Return the error for a ResourceNotFoundException, which does not say what is missing."""
        found = self._consumer_calls(consumer_arn).describe()
        if found is not None and found[1] == "ACTIVE":
            gone = self._gone(shard_id, message)
            if isinstance(gone, ShardGone) and self._may_exist(shard_id):
                return TemporaryError(f"{message}, and ListShards shows the shard. Subscribing again.")
            return gone
        if self._consumer_arn == consumer_arn:
            self._consumer_arn = ""
        self.describe()
        return self._deregistered()

    def _deregistered(self) -> ConsumerGone:
        is_named = not self._consumer.startswith("arn:")
        return ConsumerGone(
            f"Stream {self._name!r} has no consumer {self._consumer!r} any more: it was deregistered. "
            + (
                "It is registered again where this worker may. Otherwise do: pykcl fanout register "
                f"{self._name} --consumer {self._consumer}."
                if is_named
                else "Do: name a consumer that pykcl fanout list shows, and restart the worker."
            )
        )

    def _may_exist(self, shard_id: str) -> bool:
        """Return whether ListShards shows the shard. The consumer may be gone though it was described a moment ago."""
        listing = self.list_shards()
        return not listing.complete or any(one.shard_id == shard_id for one in listing.shards)

    def _consumer_calls(self, consumer: str) -> ConsumerCalls:
        arn = self.arn or self.describe().arn
        return ConsumerCalls(self._client, self._calling, self._name, arn, consumer)

    def _pause(self) -> bool:
        return (self._stop or self._runtime.event()).wait(self._runtime.random().uniform(1.0, 1.1))


class BodyReader:
    """Reads the body of an answer in a thread of its own, as fast as it is taken. The `Source` of its subscription.

    body: urllib3's response, of which nothing was read.
    """

    def __init__(self, body: Any, events: PushedEvents, runtime: Runtime, shard_id: str) -> None:
        self._body, self._events, self._shard_id = body, events, shard_id
        self._room = runtime.event()
        self._process = os.getpid()
        # 1) This subscription ends, and urllib3 gives the connection back; 2) another one gets it; 3) the reader of
        # this one closes it. So it is not given back.
        body._pool = None
        connection = getattr(body, "connection", None)
        opened = getattr(connection, "sock", None)
        # urllib3 wraps TLS within the TLS of a proxy.
        self._socket: Any = getattr(opened, "socket", opened)
        if isinstance(self._socket, socket.socket):
            self._socket.settimeout(MAX_SILENCE)

    def run(self) -> None:
        """Read until the end, and report it."""
        failure: PyKclError | None = None
        try:
            for part in self._body.stream(_ONE_READ):
                self._events.receive(part)
                if not self._wait_for_room():
                    break
        except Exception as error:  # noqa: BLE001 - whatever it is, the shard is read on by another subscription
            failure = sort_failure(error, doing=f"Reading the events of {self._shard_id}")
        with suppress(OSError):
            self._body.close()
        self._events.end(failure)

    def _wait_for_room(self) -> bool:
        """Return True once there is room to read on; False if nobody wants more."""
        while self._events.is_full and not self._events.is_closed:
            if not self._room.wait(MAX_FULL):
                self._events.give_up()
                return False
            self._room.clear()
        return not self._events.is_closed

    def taken(self, size: int) -> None:
        del size
        self._room.set()

    def close(self) -> None:
        """Let the thread end, and with it the connection."""
        self._room.set()
        # Not by `close`: the thread may be reading. Not in a process that was forked: the connection is not its own.
        if isinstance(self._socket, socket.socket) and self._process == os.getpid():
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Asked:
    """One call of SubscribeToShard. send: sends it; None: botocore does. body: of its answer, once it has come."""

    def __init__(
        self, events: PushedEvents, is_cbor: bool, send: Callable[[_Asked, Any], AWSResponse | None] | None
    ) -> None:
        self.events, self.is_cbor, self.send = events, is_cbor, send
        self.body: Any = None
        self.is_encoding_refused = False


# Set only while pykcl subscribes: the client may be shared with code that wants botocore's own event stream.
_asking: ContextVar[_Asked | None] = ContextVar("pykcl_subscribing", default=None)


def _encode(request: Any, **_: object) -> None:
    """request-created handler: ask in CBOR, so that the events come in it."""
    asked = _asking.get()
    if asked is not None and asked.is_cbor:
        request.data = text_and_numbers(json.loads(request.data))
        request.headers.replace_header("Content-Type", CBOR_TYPE)


def _send(request: Any, **_: object) -> AWSResponse | None:
    """before-send handler: send it over HTTP/2."""
    asked = _asking.get()
    return None if asked is None or asked.send is None else asked.send(asked, request)


def _http2_headers(request: Any) -> list[tuple[str, str]]:
    url = urlsplit(request.url)
    headers = [
        (":method", request.method),
        (":scheme", url.scheme),
        (":authority", without_default_port(url.netloc, url.scheme)),
        (":path", url.path or "/"),
    ]
    for name, value in request.headers.items():
        if name.lower() not in _OF_HTTP1:
            headers.append(
                (name.lower(), value.decode("latin-1") if isinstance(value, bytes) else str(value))
            )
    return headers


class _PushedBody:
    """The body of an answer over HTTP/2: that of an error, or what its events come from."""

    def __init__(self, body: bytes, source: Source) -> None:
        self.source, self._body = source, body

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self._body

    def close(self) -> None:
        self.source.close()


def _take_body(response_dict: dict[str, Any], **_: object) -> None:
    """before-parse handler: take the events out of a good answer. botocore gets a body with none."""
    asked = _asking.get()
    if asked is None:
        return
    status = response_dict.get("status_code", 500)
    if status < 300:
        asked.body, response_dict["body"] = response_dict["body"], _NoEvents()
    elif asked.is_cbor:
        response_dict["body"] = body = as_json(response_dict["body"])
        asked.is_encoding_refused = status == 415 or any(code.encode() in body for code in REFUSALS)


_FIRST_MESSAGE: Final = bytes.fromhex(
    "00000047 00000035 d9429f13"
    "0d 3a6d6573736167652d74797065 07 0005 6576656e74"
    "0b 3a6576656e742d74797065 07 0010 696e697469616c2d726573706f6e7365"
    "7b7d 8de0c8a3"
)
""":message-type event, :event-type initial-response, and an empty object in JSON."""


class _NoEvents:
    """The body of an event stream with the first message alone, without which botocore refuses it."""

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield _FIRST_MESSAGE

    def close(self) -> None:
        """Nothing is open."""


def _decoded(probe: CborProbe, shard_id: str, stream: str, message: bytes) -> Fetched | None:
    try:
        return event_of(message, shard_id, stream)
    except AnswerRefused:
        probe.distrust("an event in it could not be read")
        raise
