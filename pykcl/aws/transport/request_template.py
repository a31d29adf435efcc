"""The template of a request: captured from one of botocore's, so that we send and sign the same from then on.

Endpoint rules, FIPS, dual stack, account endpoints, user agent and signing name are botocore's business, and change
with its versions. So none of it is computed here: botocore makes one real request, `before-send` (the one event of
botocore's that is documented to see what is sent) shows it, and the same is sent from then on. The proof that nothing
was misunderstood: our signature of that request must be botocore's, letter by letter.

**Client settings** that a captured request does not show (timeouts, certificates, credentials) are read from it.
A client may use a proxy, may be watched or answered by handlers, or be no client of botocore's at all.
Whatever is not understood here raises UnsupportedClient, and all requests go through botocore as before. The attributes
with an underscore are botocore's own: a missing one raises it, too.

**Signatures** are version 4, of a POST to one path, with the key of the day kept: botocore derives it anew for each
request, which costs ten times the signature itself ("Signature Version 4 signing process", AWS General Reference).
"""

from __future__ import annotations

import hmac
import inspect
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from types import FunctionType
from typing import Any, Final
from urllib.parse import urlsplit

from botocore.client import BaseClient

from pykcl.aws.errors import calling
from pykcl.aws.instruments import own_method
from pykcl.aws.network_errors import Way, way_of

ALGORITHM: Final = "AWS4-HMAC-SHA256"


class Signer:
    """Signs for one region and service. May be used by any number of threads at once."""

    def __init__(self, region: str, service: str) -> None:
        self._region = region
        self._service = service
        # Replaced as wholes, so that threads need no lock: (secret, day, key) and (second, its text).
        self._day_key: tuple[str, str, bytes] = ("", "", b"")
        self._stamp: tuple[int, str] = (-1, "")

    def scope(self, amz_date: str) -> str:
        """Return the scope of the signing key. amz_date: as `amz_date` writes it."""
        return f"{amz_date[:8]}/{self._region}/{self._service}/aws4_request"

    def amz_date(self, epoch_seconds: int) -> str:
        """The time of a request as its X-Amz-Date header says it, in UTC."""
        second, text = self._stamp
        if second != epoch_seconds:
            text = datetime.fromtimestamp(epoch_seconds, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
            self._stamp = (epoch_seconds, text)
        return text

    def signature(self, secret: str, amz_date: str, canonical_request: str) -> str:
        """Return the signature in hexadecimal digits."""
        digest = sha256(canonical_request.encode()).hexdigest()
        to_sign = f"{ALGORITHM}\n{amz_date}\n{self.scope(amz_date)}\n{digest}"
        return hmac.digest(self._key(secret, amz_date[:8]), to_sign.encode(), "sha256").hex()

    def _key(self, secret: str, day: str) -> bytes:
        known_secret, known_day, key = self._day_key
        if known_day != day or known_secret != secret:
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day_key = (secret, day, key)
        return key


def canonical_request(path: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return that of a POST without a query. headers: those to be signed, lower-case name -> value, sorted by name.

    Slashes that follow one another are signed as one, by botocore and by AWS.
    """
    if "//" in path:
        path = re.sub("/+", "/", path)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return f"POST\n{path}\n\n{lines}\n{';'.join(headers)}\n{sha256(body).hexdigest()}"


_EVENTS: Final = (
    "provide-client-params", "before-parameter-build", "before-call", "request-created", "choose-signer",
    "before-sign", "before-send", "before-parse", "response-received", "needs-retry", "after-call",
    "after-call-error",
)  # fmt: skip
"""Every event of a call. Who listens to one wants to see, change or answer requests."""


class UnsupportedClient(Exception):
    """Reason for which requests have to go through botocore. Logged: names no host, no credentials."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Times in seconds. context: None for plain HTTP. trusted: path of the certificates that it trusts. way: as errors
    name it."""

    connect_timeout: float
    read_timeout: float
    most_idle: int
    socket_options: list[tuple[int, int, Any]]
    context: ssl.SSLContext | None
    trusted: str
    way: Way | None
    _credentials: Any = field(repr=False)

    def frozen_credentials(self) -> Any:
        """access_key, secret_key and token as of now; renewed, where they expire. Raises `aws_errors`."""
        if self._credentials is None:
            return None
        return calling(self._credentials.get_frozen_credentials, parses=False)()

    def trust_anew(self) -> bool:
        """Add the certificates that are in the file now, as boto3 does for each connection; return True if that worked.

        An authority is replaced in the file while the process runs. Those that have gone stay trusted, as with boto3.
        """
        try:
            if self.context is not None:
                _trust(self.context, self.trusted)
        except OSError:
            return False
        return self.context is not None

    def credentials_expire_soon(self) -> bool:
        """Return whether `frozen_credentials` would renew them, which may take long."""
        is_due = getattr(self._credentials, "refresh_needed", None)
        return bool(is_due()) if callable(is_due) else False


def client_settings_of(
    client: Any, url: str, operations: Mapping[str, str], own_handlers: frozenset[Any]
) -> ClientSettings:
    """url: where requests go. operations: method of the client -> AWS' name of it. own_handlers: of pykcl, which may be
    passed by. Raises UnsupportedClient.
    """
    _refuse_strangers(client, operations, own_handlers)
    try:
        sends = client._endpoint.http_session
        verify, proxy = sends._verify, sends._proxy_config.proxy_url_for(url)
        certificate, options = sends._cert_file, list(sends._socket_options)
        credentials = client._request_signer._credentials
    except AttributeError as error:
        raise UnsupportedClient(f"this botocore is not known to us ({error.name} is missing)") from None
    if type(sends).__module__ != "botocore.httpsession":
        raise UnsupportedClient("the client sends in a way of its own")
    if proxy:
        raise UnsupportedClient("a proxy is configured")
    if certificate:
        raise UnsupportedClient("a client certificate is configured")
    config = client.meta.config
    context, trusted = _context(verify) if url.startswith("https:") else (None, "")
    return ClientSettings(
        connect_timeout=config.connect_timeout,
        read_timeout=config.read_timeout,
        most_idle=config.max_pool_connections,
        socket_options=options,
        context=context,
        trusted=trusted,
        way=way_of(client, url),
        _credentials=credentials,
    )


def _refuse_strangers(client: Any, operations: Mapping[str, str], own_handlers: frozenset[Any]) -> None:
    if not isinstance(client, BaseClient):
        raise UnsupportedClient("the client is not botocore's")
    call = inspect.getattr_static(type(client), "_make_api_call")
    # What traces or fakes AWS calls (OpenTelemetry, X-Ray, ...) puts itself in the place of this method. The clients
    # that pykcl makes call it all the same.
    if not isinstance(call, FunctionType) or call.__module__ != "botocore.client":
        raise UnsupportedClient("calls of botocore are intercepted")
    if vars(client).keys() & operations or call is not own_method(BaseClient, "_make_api_call"):
        raise UnsupportedClient("calls of the client are intercepted")
    try:
        events: Any = client.meta.events
        search = events._emitter._handlers.prefix_search
        service = client.meta.service_model.service_id.hyphenize()
    except AttributeError as error:
        raise UnsupportedClient(f"this botocore is not known to us ({error.name} is missing)") from None
    for event in _EVENTS:
        for operation in operations.values():
            for handler in search(f"{event}.{service}.{operation}"):
                if _is_strange(handler) and handler not in own_handlers:
                    raise UnsupportedClient(f"the client has a handler for {event}")


_HARMLESS = frozenset({"aws_lambda_powertools.shared.user_agent"})
"""Modules whose handlers only add to the User-Agent, which is in the request that a template is captured from.
Importing aws-lambda-powertools registers one in every session."""


def _is_strange(handler: Any) -> bool:
    """Return whether the handler does more than what botocore does for everyone."""
    module = getattr(handler, "__module__", None) or type(handler).__module__
    if module in _HARMLESS:
        return False
    if module == "botocore.discovery":
        # The one that is there for everyone forbids something; what a manager of endpoints does comes from an object.
        return hasattr(handler, "__self__")
    return not module.startswith(("botocore.", "boto3.")) or module == "botocore.stub"


def _context(verify: Any) -> tuple[ssl.SSLContext, str]:
    """One for all connections: each costs most of a megabyte. Trusts whom the client trusts: those in the path."""
    from botocore.httpsession import create_urllib3_context, get_cert_path

    if not verify:
        raise UnsupportedClient("certificates are not verified")
    try:
        context: ssl.SSLContext = create_urllib3_context()
        # botocore leaves a ~ to urllib3, which expands it.
        path = os.path.expanduser(str(get_cert_path(verify)))
        _trust(context, path)
    except (OSError, TypeError) as error:
        raise UnsupportedClient(
            f"the certificates to trust cannot be read ({type(error).__name__})"
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = True
    return context, path


def _trust(context: ssl.SSLContext, path: str) -> None:
    """Raises OSError."""
    if os.path.isdir(path):
        context.load_verify_locations(capath=path)
    else:
        context.load_verify_locations(cafile=path)


JSON_TYPES = frozenset({"application/x-amz-json-1.0", "application/x-amz-json-1.1"})
SIGNED = ("content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target")
"""In the order of their names. The token only where the credentials have one."""

_AUTHORIZATION = re.compile(
    ALGORITHM
    + r" Credential=(?P<key>[^/,]+)/(?P<day>\d{8})/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9-]+)/aws4_request, "
    r"SignedHeaders=(?P<names>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})\Z"
)
_EXPECTED = frozenset({*SIGNED, "user-agent", "authorization", "content-length"})
_LEFT_OUT = frozenset({"amz-sdk-invocation-id", "amz-sdk-request", "x-amzn-trace-id"})
"""botocore's count of its own attempts, and the trace of a Lambda function: nobody signs them, nobody needs them."""


class TemplateError(Exception):
    """Something in the request is not understood. The text says what, without any value of it."""


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """host: as the Host header says it, with a port that is not the scheme's own. target: of one operation, as
    X-Amz-Target has it. account: whose credentials signed it, as far as botocore knows; the host may be theirs alone.
    """

    url: str
    is_tls: bool
    hostname: str
    port: int
    host: str
    path: str
    target: str
    content_type: str
    user_agent: str
    account: str | None
    signer: Signer = field(repr=False)


def capture_template(request: Any, credentials: Any, operation: str) -> RequestTemplate:
    """request: botocore's AWSPreparedRequest, signed. credentials: frozen ones of the client. operation: what it asks
    for, such as "GetRecords". Raises TemplateError.
    """
    url = urlsplit(request.url)
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    if request.method != "POST" or url.query or url.username or url.scheme not in ("http", "https"):
        raise TemplateError("its URL or method is not of the usual form")
    if unknown := sorted(headers.keys() - _EXPECTED - _LEFT_OUT):
        raise TemplateError(f"it has the header {unknown[0]}")
    target = headers.get("x-amz-target", "")
    if headers.get("content-type") not in JSON_TYPES or not re.fullmatch(
        rf"[A-Za-z0-9_]+\.{operation}", target
    ):
        raise TemplateError("it is not in the JSON protocol")
    found = _AUTHORIZATION.match(headers.get("authorization", ""))
    if found is None:
        raise TemplateError("it is not signed with Signature Version 4")
    host, path = url.netloc, url.path or "/"
    if not isinstance(request.body, bytes) or any(mark in request.url for mark in "\r\n %"):
        raise TemplateError("its URL or body is not of the usual form")
    template = RequestTemplate(
        request.url,
        url.scheme == "https",
        url.hostname or "",
        url.port or (443 if url.scheme == "https" else 80),
        without_default_port(host, url.scheme),
        path,
        target,
        headers["content-type"],
        headers.get("user-agent", ""),
        account_of(credentials),
        Signer(found["region"], found["service"]),
    )
    _prove(template, headers, request.body, credentials, found)
    return template


def sign_anew(request: Any, credentials: Any, epoch_seconds: int) -> None:
    """Put another time, and the signature that belongs to it, into a request that botocore has signed.

    Raises TemplateError where our signature of the request as it is would not be botocore's; nothing is changed then.
    """
    url = urlsplit(request.url)
    headers = {name.lower(): _text(value) for name, value in request.headers.items()}
    found = _AUTHORIZATION.match(headers.get("authorization", ""))
    body = request.body
    if found is None or request.method != "POST" or url.query or not isinstance(body, bytes):
        raise TemplateError("it is not signed in the usual form")
    headers_by_name = {"host": without_default_port(url.netloc, url.scheme), **headers}
    names = found["names"].split(";")
    if (
        credentials is None
        or found["key"] != credentials.access_key
        or not headers_by_name.keys() >= set(names)
    ):
        raise TemplateError("it is signed with other credentials or headers")
    signed = {name: headers_by_name[name] for name in names}
    signer, path = Signer(found["region"], found["service"]), url.path or "/"

    def signature() -> str:
        return signer.signature(
            credentials.secret_key, signed["x-amz-date"], canonical_request(path, signed, body)
        )

    if "x-amz-date" not in signed or signature() != found["signature"]:
        raise TemplateError("it is signed in a way that cannot be repeated")
    signed["x-amz-date"] = signer.amz_date(epoch_seconds)
    authorization = (
        f"{ALGORITHM} Credential={credentials.access_key}/{signer.scope(signed['x-amz-date'])}, "
        f"SignedHeaders={found['names']}, Signature={signature()}"
    )
    for name, value in (("X-Amz-Date", signed["x-amz-date"]), ("Authorization", authorization)):
        del request.headers[name]
        request.headers[name] = value


def _prove(
    template: RequestTemplate, headers: Mapping[str, str], body: bytes, credentials: Any, found: re.Match[str]
) -> None:
    """Raise TemplateError unless we sign the same to the same."""
    headers_by_name = {**headers, "host": template.host}
    signed = {name: headers_by_name[name] for name in SIGNED if name in headers_by_name}
    if credentials is None or found["key"] != credentials.access_key or found["names"] != ";".join(signed):
        raise TemplateError("it is signed with other credentials or headers")
    date = headers_by_name["x-amz-date"]
    ours = template.signer.signature(
        credentials.secret_key, date, canonical_request(template.path, signed, body)
    )
    if ours != found["signature"] or signed.get("x-amz-security-token") != (credentials.token or None):
        raise TemplateError("it is signed in a way that cannot be repeated")


def account_of(credentials: Any) -> str | None:
    """Return the account of frozen credentials; older botocores do not know it, and have no account endpoints."""
    account: str | None = getattr(credentials, "account_id", None)
    return account


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def without_default_port(netloc: str, scheme: str) -> str:
    return netloc.removesuffix({"http": ":80", "https": ":443"}[scheme])
