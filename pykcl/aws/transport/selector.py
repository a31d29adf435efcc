"""Selects the transport of a client's calls: the direct one where nothing stands against it, else botocore.

The first call of each operation always goes over botocore. The direct transport sends what botocore sent for it from
then on (`request_template`); so each operation has its own template, whatever endpoint botocore chose for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from botocore.client import BaseClient

from pykcl.aws.errors import MALFORMED, aws_errors
from pykcl.aws.transport.request_template import (
    ClientSettings,
    SigningClock,
    TemplateError,
    UnsupportedClient,
    capture_template,
    client_settings_of,
    sign_with_clock,
)
from pykcl.aws.transport.transport import Transport
from pykcl.config import HttpTransport
from pykcl.errors import SetupError
from pykcl.runtime import Runtime

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
        self._handlers = frozenset({_watch, sign_with_clock, *handlers})
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

    def template_resource(self, method: str) -> str | None:
        """Return what the requests of the template name; for another stream or table a new one is captured first."""
        found = self._transports.get(method)
        return None if found is None else found[0]

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
