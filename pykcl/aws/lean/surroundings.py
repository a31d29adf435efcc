"""What of a botocore client is not in a request of its: time-outs, certificates, credentials; and what forbids to pass
it by.

A client may have been told to use a proxy, may be watched or answered by handlers, or be no client of botocore's at
all. Whatever is not understood here is an Obstacle, and all requests go through botocore as before. The attributes with
an underscore are botocore's own: where one is missing, that is an obstacle, too.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final

from botocore.client import BaseClient

from pykcl.aws.failures import calling

_EVENTS: Final = (
    "provide-client-params", "before-parameter-build", "before-call", "request-created", "choose-signer",
    "before-sign", "before-send", "before-parse", "response-received", "needs-retry", "after-call",
    "after-call-error",
)  # fmt: skip
"""Every event of a call. Who listens to one wants to see, change or answer requests."""


class Obstacle(Exception):
    """Why requests have to go through botocore. Goes into the log: names no host, no credentials."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Times in seconds. context: None for plain HTTP."""

    connect_timeout: float
    read_timeout: float
    most_idle: int
    socket_options: list[tuple[int, int, Any]]
    context: ssl.SSLContext | None
    _credentials: Any = field(repr=False)

    def frozen_credentials(self) -> Any:
        """access_key, secret_key and token as of now; renewed, where they expire. Raises `aws_errors`."""
        if self._credentials is None:
            return None
        return calling(self._credentials.get_frozen_credentials, parses=False)()

    def credentials_expire_soon(self) -> bool:
        """Whether `frozen_credentials` would renew them, and may take its time."""
        is_due = getattr(self._credentials, "refresh_needed", None)
        return bool(is_due()) if callable(is_due) else False


def surroundings_of(
    client: Any, url: str, operations: Mapping[str, str], own_handlers: frozenset[Any]
) -> Surroundings:
    """url: where requests go. operations: method of the client -> AWS' name of it. own_handlers: of pykcl, which may be
    passed by. Raises Obstacle.
    """
    _refuse_strangers(client, operations, own_handlers)
    try:
        sends = client._endpoint.http_session
        verify, proxy = sends._verify, sends._proxy_config.proxy_url_for(url)
        certificate, options = sends._cert_file, list(sends._socket_options)
        credentials = client._request_signer._credentials
    except AttributeError as error:
        raise Obstacle(f"this botocore is not known to us ({error.name} is missing)") from None
    if type(sends).__module__ != "botocore.httpsession":
        raise Obstacle("the client sends in a way of its own")
    if proxy:
        raise Obstacle("a proxy is configured")
    if certificate:
        raise Obstacle("a client certificate is configured")
    config = client.meta.config
    return Surroundings(
        connect_timeout=config.connect_timeout,
        read_timeout=config.read_timeout,
        most_idle=config.max_pool_connections,
        socket_options=options,
        context=_context(verify) if url.startswith("https:") else None,
        _credentials=credentials,
    )


def _refuse_strangers(client: Any, operations: Mapping[str, str], own_handlers: frozenset[Any]) -> None:
    if not isinstance(client, BaseClient):
        raise Obstacle("the client is not botocore's")
    call = BaseClient.__dict__.get("_make_api_call")
    # What traces or fakes AWS calls (OpenTelemetry, X-Ray, ...) puts itself in the place of this method.
    if not isinstance(call, FunctionType) or call.__module__ != "botocore.client":
        raise Obstacle("calls of botocore are intercepted")
    if vars(client).keys() & operations or getattr(type(client), "_make_api_call", None) is not call:
        raise Obstacle("calls of the client are intercepted")
    try:
        events: Any = client.meta.events
        search = events._emitter._handlers.prefix_search
        service = client.meta.service_model.service_id.hyphenize()
    except AttributeError as error:
        raise Obstacle(f"this botocore is not known to us ({error.name} is missing)") from None
    for event in _EVENTS:
        for operation in operations.values():
            for handler in search(f"{event}.{service}.{operation}"):
                if _is_strange(handler) and handler not in own_handlers:
                    raise Obstacle(f"the client has a handler for {event}")


def _is_strange(handler: Any) -> bool:
    """Whether it does more than what botocore does for everyone."""
    module = getattr(handler, "__module__", None) or type(handler).__module__
    if module == "botocore.discovery":
        # The one that is there for everyone forbids something; what a manager of endpoints does comes from an object.
        return hasattr(handler, "__self__")
    return not module.startswith(("botocore.", "boto3.")) or module == "botocore.stub"


def _context(verify: Any) -> ssl.SSLContext:
    """One for all connections: each costs most of a megabyte. Trusts whom the client trusts."""
    from botocore.httpsession import create_urllib3_context, get_cert_path

    if not verify:
        raise Obstacle("certificates are not verified")
    try:
        context: ssl.SSLContext = create_urllib3_context()
        path = str(get_cert_path(verify))
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except (OSError, TypeError) as error:
        raise Obstacle(f"the certificates to trust cannot be read ({type(error).__name__})") from None
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = True
    return context
