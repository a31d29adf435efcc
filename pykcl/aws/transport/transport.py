"""The transport of a client's calls: signed POSTs over connections that are kept open, with botocore's errors.

`TransportSelector` takes the direct transport where nothing stands against it, else botocore. The first call of each
operation always goes over botocore. The direct transport sends what botocore sent for it from then on
(`request_template`); so each operation has its own template, whatever endpoint botocore chose for it.
"""

from __future__ import annotations

import json
import logging
import math
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from zlib import crc32

from botocore.awsrequest import HeadersDict
from botocore.client import BaseClient
from botocore.exceptions import (
    BotoCoreError,
    ChecksumError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)
from botocore.parsers import create_parser

from pykcl.aws import errors
from pykcl.aws.errors import MALFORMED, aws_errors, error_code, http_status
from pykcl.aws.server_clock import millis_of_date
from pykcl.aws.transport.cbor import decode
from pykcl.aws.transport.connection import (
    Answer,
    Connection,
    PendingAnswer,
    ProtocolError,
    Unanswered,
    Unsent,
    open_socket,
)
from pykcl.aws.transport.request_template import (
    ALGORITHM,
    ClientSettings,
    RequestTemplate,
    TemplateError,
    UnsupportedClient,
    account_of,
    canonical_request,
    capture_template,
    client_settings_of,
    sign_anew,
)
from pykcl.config import HttpTransport
from pykcl.errors import SetupError
from pykcl.model.metered_json import refuse_excess
from pykcl.runtime import Runtime

P = ParamSpec("P")
T = TypeVar("T")

_CRC32: Final = "x-amz-crc32"


@cache
def _parser() -> Any:
    """Return botocore's parser. It refers to itself, so one for each answer would be left to the garbage collector."""
    return create_parser("json")


def client_error(client: Any, operation: str, answer: Answer) -> ClientError:
    """An answer that is an error, read by botocore's own parser, of the class the client has for it.

    operation: AWS' name, such as "GetRecords". Raises what that parser raises.
    """
    parsed = parsed_by_botocore(client, operation, answer)
    code = parsed.get("Error", {}).get("Code")
    shape = None if code is None else client.meta.service_model.shape_for_error_code(code)
    if shape is not None:
        # As botocore does: what the service says besides, such as the Item of a condition that failed.
        parsed.update(_parser().parse(_response_dict(operation, answer), shape))
    error_class = client.exceptions.from_code(code)
    found: ClientError = error_class(parsed, operation)
    return found


def parsed_by_botocore(client: Any, operation: str, answer: Answer) -> dict[str, Any]:
    """Return the answer as the client would.

    Raises what botocore's parser raises; NotJson for more values than an answer has; TypeError where it returns none.
    """
    refuse_excess(answer.body, max_depth=None)
    shape = client.meta.service_model.operation_model(operation).output_shape
    return dict(_parser().parse(_response_dict(operation, answer), shape))


def refuse_corrupt(answer: Answer) -> None:
    """Raise ChecksumError unless the body is the one that DynamoDB sent, where it says what that was."""
    expected = answer.headers.get(_CRC32)
    if expected is None:
        return
    found = crc32(answer.body)
    if expected != str(found):
        raise ChecksumError(checksum_type="crc32", expected_checksum=expected, actual_checksum=str(found))


def metadata_of(answer: Answer) -> dict[str, Any]:
    """Return the metadata that botocore adds to each answer, as far as pykcl uses it."""
    return {"HTTPStatusCode": answer.status, "HTTPHeaders": answer.headers}


def _response_dict(operation: str, answer: Answer) -> dict[str, Any]:
    return {
        "status_code": answer.status,
        "headers": HeadersDict(answer.headers),
        "body": as_json(answer.body),
        "context": {"operation_name": operation},
    }


def as_json(body: bytes) -> bytes:
    """An error that came as CBOR, in the form botocore can read."""
    try:
        document, end = decode(body)
    except (ValueError, OverflowError, RecursionError):
        return body
    if not isinstance(document, dict) or end != len(body):
        return body
    return json.dumps({name: value for name, value in document.items() if isinstance(value, str)}).encode()


MAX_IDLE_SECONDS: Final = 50.0
"""Kinesis closes an idle connection after a minute; a gateway on the way may forget it without a word."""

PAGE_TIMEOUTS: Final = 10.0
"""Time-outs of a read that a page may take in all: a slow line is no reason never to get a large one."""


class Transport:
    """May be used by any number of threads at once: each request has a connection for itself."""

    def __init__(
        self, template: RequestTemplate, settings: ClientSettings, runtime: Runtime, clock: SigningClock
    ) -> None:
        self._template = template
        self._settings = settings
        self._runtime = runtime
        # The last one used is the first one taken: few are needed, and those stay warm. A list's append and pop are
        # atomic, so threads need no lock.
        self._idle: list[Connection] = []
        weakref.finalize(self, _close, self._idle)
        self._clock = clock

    @property
    def clock_ahead_millis(self) -> int:
        """Milliseconds that are added to our clock for signing."""
        return self._clock.ahead_millis

    @property
    def max_kept(self) -> int:
        """Connections, at most."""
        return self._settings.most_idle

    def is_current(self) -> bool:
        """Return whether the credentials are of the account that the template was captured with, and can be sent as
        they are.

        Raises what botocore raises.
        """
        keys = self._settings.frozen_credentials()
        return account_of(keys) == self._template.account and _can_be_sent(keys)

    def wants_new_credentials(self) -> bool:
        """Return whether the next request would renew the credentials first."""
        return self._settings.credentials_expire_soon()

    def post(
        self, body: bytes, *, may_repeat: bool, content_type: str | None = None, is_page: bool = True
    ) -> Answer:
        """Send once; once more over a new connection where one that was kept open turns out to be closed.

        may_repeat: whether the request may be carried out twice, as reading a page may. It is then sent again unless a
        byte of an answer came; otherwise only if not one byte of it could be sent. content_type: by default that of the
        template. is_page: whether the answer may be large; any other has to be there, to its last byte, within the
        time-out of one read. Raises BotoCoreError, as botocore does where no answer comes: the request may have been
        carried out.
        """
        request = self._signed(body, content_type or self._template.content_type)
        kept, began = self._kept(), self._runtime.monotonic()
        if kept is not None:
            try:
                return self._exchange(kept, request, is_page)
            except (OSError, ProtocolError) as error:
                self._distrust_others(error, began)
                if not isinstance(error, Unanswered if may_repeat else Unsent):
                    raise self._failure(error) from error
        opened = self._connect()
        try:
            return self._exchange(opened, request, is_page)
        except (OSError, ProtocolError) as error:
            raise self._failure(error) from error

    def begin(self, body: bytes, content_type: str | None = None) -> PendingAnswer | None:
        """Send over a connection that was kept open, for `finish` or `drop` to follow.

        None where there is none, or it turns out to be closed: then `post` has to do all of it. Only for what may be
        carried out twice. Raises what botocore raises where there are no credentials.
        """
        request = self._signed(body, content_type or self._template.content_type)
        kept = self._kept()
        if kept is None:
            return None
        began = self._runtime.monotonic()
        try:
            kept.send(request)
        except (OSError, ProtocolError):
            kept.close()
            return None
        return PendingAnswer(kept, body, content_type, began)

    def finish(self, underway: PendingAnswer) -> Answer:
        """Wait for the answer. Sends once more where the connection was closed before a byte of one came.

        Raises BotoCoreError, as `post`.
        """
        underway.connection.until = self._until(is_page=True)
        try:
            return underway.answer()
        except (OSError, ProtocolError) as error:
            self._distrust_others(error, underway.began)
            if not isinstance(error, Unanswered):
                raise self._failure(error) from error
        finally:
            self._keep(underway.connection)
        return self.post(underway.body, may_repeat=True, content_type=underway.content_type)

    def drop(self, underway: PendingAnswer) -> None:
        """Nobody waits for this answer any more."""
        underway.connection.close()

    def _signed(self, body: bytes, content_type: str) -> bytes:
        keys = self._settings.frozen_credentials()
        if keys is None:
            raise NoCredentialsError
        template, signer = self._template, self._template.signer
        date = signer.amz_date((self._runtime.utcnow_millis() + self.clock_ahead_millis) // 1000)
        # In the order of their names, as SIGNED has them: the signature wants it so.
        signed = {"content-type": content_type, "host": template.host, "x-amz-date": date}
        if keys.token:
            signed["x-amz-security-token"] = keys.token
        signed["x-amz-target"] = template.target
        signature = signer.signature(keys.secret_key, date, canonical_request(template.path, signed, body))
        lines = "".join([f"{name}: {value}\r\n" for name, value in signed.items()])
        return (
            f"POST {template.path} HTTP/1.1\r\n{lines}"
            f"authorization: {ALGORITHM} Credential={keys.access_key}/{signer.scope(date)}, "
            f"SignedHeaders={';'.join(signed)}, Signature={signature}\r\n"
            f"user-agent: {template.user_agent}\r\naccept-encoding: identity\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode("latin-1") + body

    def _kept(self) -> Connection | None:
        """An open connection from before, if one can still be trusted."""
        oldest = self._runtime.monotonic() - MAX_IDLE_SECONDS
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was quicker
                return None
            if connection.used_at >= oldest and connection.is_quiet():
                return connection
            connection.close()
        return None

    def _distrust_others(self, error: Exception, began: float) -> None:
        """Close other connections after one that was kept open has failed: they have most likely failed, too.

        A gateway that has forgotten its connections says nothing: each would cost a time-out of its own, and three of
        those are all the time that a heartbeat has. Who was answered since `began` is alive.
        """
        if isinstance(error, Unanswered):
            _close(self._idle)
        elif isinstance(error, TimeoutError):
            alive = []
            with suppress(IndexError):  # none is left, or another thread was quicker
                while True:
                    one = self._idle.pop()
                    if one.used_at > began:
                        alive.append(one)
                    else:
                        one.close()
            self._idle.extend(reversed(alive))

    def _until(self, *, is_page: bool) -> float:
        seconds = self._settings.read_timeout
        if not seconds:  # somebody's own client, which waits for ever
            return math.inf
        return self._runtime.monotonic() + seconds * (PAGE_TIMEOUTS if is_page else 1.0)

    def _exchange(self, connection: Connection, request: bytes, is_page: bool) -> Answer:
        connection.until = self._until(is_page=is_page)
        try:
            return connection.exchange(request)
        finally:
            self._keep(connection)

    def _keep(self, connection: Connection) -> None:
        now = self._runtime.monotonic()
        # Those of a burst lie below those in use, and the other side closes them: nobody would ever use them again.
        with suppress(IndexError):  # another thread was quicker
            while self._idle[0].used_at < now - MAX_IDLE_SECONDS:
                self._idle.pop(0).close()
        if connection.is_reusable and len(self._idle) < self._settings.most_idle:
            connection.used_at = now
            self._idle.append(connection)
        else:
            connection.close()

    def _connect(self) -> Connection:
        at = self._template
        opened = connect(self._settings, at.url, at.hostname, at.port, is_tls=at.is_tls)
        return Connection(opened, self._runtime.monotonic)

    def _failure(self, error: Exception) -> BotoCoreError:
        return failure_of(error, self._settings, self._template.url)


def connect(settings: ClientSettings, url: str, host: str, port: int, *, is_tls: bool) -> socket.socket:
    """Connect as botocore would, with its errors. url: as they name it."""
    opening = partial(
        open_socket,
        host,
        port,
        context=settings.context if is_tls else None,
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        options=settings.socket_options,
    )
    try:
        try:
            return opening()
        except ssl.SSLCertVerificationError:
            if not settings.trust_anew():
                raise
            return opening()
    except ssl.SSLError as error:
        raise SSLError(endpoint_url=url, error=error, way=settings.way) from error
    except TimeoutError as error:
        raise ConnectTimeoutError(endpoint_url=url, error=error, way=settings.way) from error
    except OSError as error:
        raise EndpointConnectionError(endpoint_url=url, error=error, way=settings.way) from error


def failure_of(error: Exception, settings: ClientSettings, url: str) -> BotoCoreError:
    """Return botocore's error for a connection on which no answer came."""
    kind: type[BotoCoreError] = ConnectionClosedError
    if isinstance(error, ssl.SSLError):
        kind = SSLError
    elif isinstance(error, TimeoutError):
        kind = ReadTimeoutError
    return kind(endpoint_url=url, error=error, way=settings.way)


def _can_be_sent(keys: Any) -> bool:
    """Return whether the keys are plain text without blanks, as AWS gives them. All others are left to botocore."""
    texts = () if keys is None else (keys.access_key, keys.token or "")
    return all(text.isascii() and text.isprintable() and " " not in text for text in texts)


def _close(idle: list[Connection]) -> None:
    while idle:
        try:
            idle.pop().close()
        except IndexError:  # another thread was quicker
            return


_SKEWED: Final = frozenset(
    {
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "RequestTimeTooSkewed",
        "RequestExpired",
        "RequestInTheFuture",
    }
)
_TOLERATED_SKEW: Final = 60_000


class SigningClock:
    """The time that requests are signed at. May be used by any number of threads at once.

    AWS refuses a signature that is more than a few minutes old or early, before anything is carried out. botocore signs
    with the clock of the machine; ours is corrected by the time in AWS' answer, and the refused request is sent again,
    a write as well.

    log: of the service, whose name `service` is.
    ahead_millis: what is added to our clock for signing: the server's is ahead by so much.
    """

    def __init__(self, client: Any, runtime: Runtime, *, log: logging.Logger, service: str) -> None:
        self.ahead_millis = 0
        self._signer: Any = getattr(client, "_request_signer", None)
        self._runtime = runtime
        self._log, self._service = log, service
        if isinstance(client, BaseClient):
            client.meta.events.register("before-send", sign_with_clock, unique_id="pykcl-signing-clock")

    def calling(self, method: Callable[P, T]) -> Callable[P, T]:
        """`method` of the client, as `errors.calling`; called once more where its signature was refused."""
        called = errors.calling(method, renews=False)

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            ahead = self.ahead_millis
            signing = _signing.set(self)
            try:
                try:
                    return called(*args, **kwargs)
                except ClientError as error:
                    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
                    status, date = http_status(error), headers.get("date")
                    if not self.may_repeat(error_code(error), status, date, ahead):
                        raise
                # Outside the except block: no error of this call may have the refusal in its chain.
                return called(*args, **kwargs)
            finally:
                _signing.reset(signing)

        return call

    def may_repeat(self, code: str | None, status: int | None, date: object, ahead: int) -> bool:
        """Return whether a request was refused for its signature, and the next is signed at another time, or with
        other credentials.

        date: the Date header of the refusal. ahead: the milliseconds that were added to our clock for the request.
        """
        if (status or 500) >= 500:
            return False
        return self._corrects(code, date, ahead) or errors.renewed(
            getattr(self._signer, "_credentials", None), code
        )

    def _corrects(self, code: str | None, date: object, ahead: int) -> bool:
        if code not in _SKEWED:
            return False
        if ahead != self.ahead_millis:
            return True  # another request that was under way has found it out, and corrected it
        theirs = millis_of_date(date)
        if theirs is None:
            return False
        found = theirs - self._runtime.utcnow_millis()
        if abs(found - ahead) < _TOLERATED_SKEW:
            return False
        self._log.warning(
            "our clock differs from that of %s by %d s: signing with theirs", self._service, found // 1000
        )
        self.ahead_millis = found
        return True

    def sign(self, request: Any) -> None:
        """Sign what botocore is about to send once more, at the right time. Never raises: it can be sent as it is."""
        unsigned: tuple[type[Exception], ...] = (*aws_errors(), TemplateError, OSError, *errors.MALFORMED)
        try:
            credentials = self._signer._credentials
            keys = errors.calling(credentials.get_frozen_credentials, parses=False)()
            sign_anew(request, keys, (self._runtime.utcnow_millis() + self.ahead_millis) // 1000)
        except unsigned as error:
            self._log.debug("a request could not be signed anew: %s", type(error).__name__)


# Set only while pykcl calls a client, which may be shared with other code.
_signing: ContextVar[SigningClock | None] = ContextVar("pykcl_signing", default=None)


def sign_with_clock(request: Any, **_: object) -> None:
    """before-send handler."""
    clock = _signing.get()
    if clock is not None and clock.ahead_millis:
        clock.sign(request)


_MAX_CAPTURES: Final = 3


class TransportSelector:
    """May be used by any number of threads at once.

    methods: those of the client that are called, such as "get_records". clock: to sign with. handlers: pykcl's own on
    the client's events, which may be passed by. doing: the start of log lines, such as "reading".
    """

    def __init__(
        self,
        client: Any,
        runtime: Runtime,
        wanted: HttpTransport,
        methods: tuple[str, ...],
        clock: SigningClock,
        *,
        handlers: tuple[Callable[..., Any], ...],
        log: logging.Logger,
        doing: str,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._wanted = wanted
        self._methods = methods
        self._clock = clock
        self._handlers = OWN_HANDLERS | frozenset(handlers)
        self._log = log
        self._doing = doing
        self._obstacle: str | None = None
        self._captures = 0
        self._settings: ClientSettings | None = None
        # method -> (what its requests name, for botocore may send each to a host of its own; how to send there).
        self._transports: dict[str, tuple[str | None, Transport]] = {}
        if wanted != "boto3" and isinstance(client, BaseClient):
            # At the root of all events, and last: what this sees is what is sent.
            client.meta.events.register_last("before-send", _watch, unique_id="pykcl-watch")

    def direct(self, method: str, resource: str | None, *, renewing: bool = True) -> Transport | None:
        """Return the transport for a request that names this stream or table; None: use botocore.

        Raises what botocore raises. renewing: whether credentials may be renewed for it, which may take long; if not,
        None where they are due.
        """
        found = self._transports.get(method)
        if found is None or found[0] != resource:
            return None
        if not renewing and found[1].wants_new_credentials():
            return None
        return found[1] if found[1].is_current() else None

    def has_template(self, method: str) -> bool:
        return method in self._transports

    def connections_kept(self, method: str) -> int:
        """Return the maximum of connections kept for its requests; 0 unless they use the direct transport."""
        found = self._transports.get(method)
        return 0 if found is None else found[1].max_kept

    def operation(self, method: str) -> str:
        """Return AWS' name of the method, such as "GetRecords"."""
        name: str = self._client.meta.method_to_api_mapping[method]
        return name

    def post(
        self,
        transport: Transport,
        method: str,
        body: bytes,
        *,
        may_repeat: bool,
        is_page: bool = True,
        check: Callable[[Answer], object] | None = None,
    ) -> Answer:
        """Post a request, and a second time if its signature was refused and is another one now; return a good answer.

        may_repeat, is_page: as for `Transport.post`. check: raises for an answer that is not to be believed. Raises
        `aws_errors`.
        """

        def sent() -> Answer:
            answer = transport.post(body, may_repeat=may_repeat, is_page=is_page)
            if check is not None:
                check(answer)
            return answer

        ahead, answer = transport.clock_ahead_millis, sent()
        if answer.status >= 300:
            error = client_error(self._client, self.operation(method), answer)
            try:
                if not self._clock.may_repeat(
                    error_code(error), answer.status, answer.headers.get("date"), ahead
                ):
                    raise error
            finally:
                del error  # its traceback holds this frame: no cycle
            answer = sent()
        if answer.status >= 300:
            raise client_error(self._client, self.operation(method), answer)
        return answer

    def over_botocore(self, method: str, resource: str | None, request: Mapping[str, Any]) -> dict[str, Any]:
        """Call the client, and capture what it sends. Raises what it raises."""
        asking = _asking.set(_Asking(self, method, resource))
        try:
            return dict(self._clock.calling(getattr(self._client, method))(**request))
        finally:
            _asking.reset(asking)

    def require_direct(self, method: str) -> None:
        """Raise SetupError if http_transport="direct" was given and this method cannot use the direct transport."""
        if self._wanted == "direct" and method not in self._transports:
            raise SetupError(
                f"http_transport='direct' cannot be: {self._obstacle or 'the client sends nothing by itself'}. "
                "Remove that, or use http_transport='auto'."
            )

    def capture_from(self, request: Any, method: str, resource: str | None) -> None:
        """Capture the template of a request that botocore is about to send for us. Never raises."""
        if self._wanted == "boto3" or self._captures >= _MAX_CAPTURES:
            return
        unlearned: tuple[type[Exception], ...] = (*aws_errors(), OSError, *MALFORMED)
        try:
            if self._settings is None:
                operations = {one: self.operation(one) for one in self._methods}
                self._settings = client_settings_of(self._client, request.url, operations, self._handlers)
            keys = self._settings.frozen_credentials()
            template = capture_template(request, keys, self.operation(method))
            if self.direct(method, resource) is None:
                transport = Transport(template, self._settings, self._runtime, self._clock)
                self._transports[method] = (resource, transport)
        except (UnsupportedClient, TemplateError) as error:
            # The credentials may have been renewed between botocore's use of them and ours: worth another attempt.
            self._give_up(str(error), 1 if isinstance(error, TemplateError) else _MAX_CAPTURES)
            return
        except unlearned as error:
            self._give_up(f"capturing a request failed ({type(error).__name__})", 1)
            return
        self._captures = 0
        self._log.debug("%s over the direct transport (%s)", self._doing, method)

    def _give_up(self, reason: str, captures: int) -> None:
        self._obstacle = reason
        self._captures += captures
        if self._captures >= _MAX_CAPTURES:
            self._log.info("%s over boto3, which costs more CPU: %s", self._doing, reason)


class _Asking(NamedTuple):
    selector: TransportSelector
    method: str
    resource: str | None


# Set only while pykcl calls a client: a context variable is per thread, and the client may be shared with code that
# wants botocore's own answer, and whose requests teach nothing.
_asking: ContextVar[_Asking | None] = ContextVar("pykcl_asking", default=None)


def is_asking() -> bool:
    """Return whether the call that botocore is making in this thread is one of a TransportSelector."""
    return _asking.get() is not None


def _watch(request: Any, **_: object) -> None:
    """before-send handler: capture a request of ours, to send the next ones alike."""
    asking = _asking.get()
    if asking is not None:
        asking.selector.capture_from(request, asking.method, asking.resource)


OWN_HANDLERS: Final = frozenset({_watch, sign_with_clock})
"""Handlers of pykcl's that are on the events of each client, and do nothing to the requests of others."""
