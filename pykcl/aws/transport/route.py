"""Which way the calls of one client go: over the lean transport where nothing stands against it, else over botocore.

The first call of each operation always goes over botocore. What was sent for it is what the lean transport sends from
then on (`request_template`); so each operation is learned by itself, whatever endpoint botocore chose for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from botocore.client import BaseClient

from pykcl.aws.errors import MALFORMED, aws_errors
from pykcl.aws.transport.request_template import (
    NotLearned,
    Obstacle,
    SigningClock,
    Surroundings,
    learn,
    sign_with_clock,
    surroundings_of,
)
from pykcl.aws.transport.transport import Transport
from pykcl.config import Transport as Choice
from pykcl.errors import SetupError
from pykcl.runtime import Runtime

_MOST_LESSONS: Final = 3


class Route:
    """May be used by any number of threads at once.

    methods: those of the client that are called, such as "get_records". clock: to sign with. handlers: pykcl's own on
    the client's events, which may be passed by. doing: opens what `log` is told, such as "reading".
    """

    def __init__(
        self,
        client: Any,
        runtime: Runtime,
        wanted: Choice,
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
        self._lessons = 0
        self._surroundings: Surroundings | None = None
        # method -> (what its requests name, for botocore may send each to a host of its own; how to send there).
        self._learned: dict[str, tuple[str | None, Transport]] = {}
        if wanted != "boto3" and isinstance(client, BaseClient):
            # At the root of all events, and last: what this sees is what is sent.
            client.meta.events.register_last("before-send", _watch, unique_id="pykcl-watch")

    def lean(self, method: str, resource: str | None, *, renewing: bool = True) -> Transport | None:
        """How to send a request that names this stream or table; None: over botocore. Raises what botocore raises.

        renewing: whether credentials may be renewed for it, which may take long; if not, None where they are to be.
        """
        found = self._learned.get(method)
        if found is None or found[0] != resource:
            return None
        if not renewing and found[1].wants_new_credentials():
            return None
        return found[1] if found[1].is_current() else None

    def learned_for(self, method: str) -> str | None:
        """What requests over the lean transport name; another one is learned first."""
        found = self._learned.get(method)
        return None if found is None else found[0]

    def is_learned(self, method: str) -> bool:
        return method in self._learned

    def connections_kept(self, method: str) -> int:
        """How many connections are kept for its requests at most; 0 unless they go over the lean transport."""
        found = self._learned.get(method)
        return 0 if found is None else found[1].most_kept

    def operation(self, method: str) -> str:
        """AWS' name of it, such as "GetRecords"."""
        name: str = self._client.meta.method_to_api_mapping[method]
        return name

    def over_botocore(self, method: str, resource: str | None, request: Mapping[str, Any]) -> dict[str, Any]:
        """Call the client, and learn from what it sends. Raises what it raises."""
        asking = _asking.set(_Asking(self, method, resource))
        try:
            return dict(self._clock.calling(getattr(self._client, method))(**request))
        finally:
            _asking.reset(asking)

    def insist(self, method: str) -> None:
        """Raise SetupError where the lean transport was asked for and this method cannot be called over it."""
        if self._wanted == "lean" and method not in self._learned:
            raise SetupError(
                f"transport='lean' cannot be: {self._obstacle or 'the client does not send its requests itself'}. "
                "Remove that, or use transport='auto'."
            )

    def learn_from(self, request: Any, method: str, resource: str | None) -> None:
        """request: what botocore is about to send for a call of ours. Never raises: that must not be harmed."""
        if self._wanted == "boto3" or self._lessons >= _MOST_LESSONS:
            return
        unlearned: tuple[type[Exception], ...] = (*aws_errors(), OSError, *MALFORMED)
        try:
            if self._surroundings is None:
                operations = {one: self.operation(one) for one in self._methods}
                self._surroundings = surroundings_of(self._client, request.url, operations, self._handlers)
            keys = self._surroundings.frozen_credentials()
            learned = learn(request, keys, self.operation(method))
            if self.lean(method, resource) is None:
                transport = Transport(learned, self._surroundings, self._runtime, self._clock)
                self._learned[method] = (resource, transport)
        except (Obstacle, NotLearned) as error:
            # Credentials may have been renewed between botocore's look at them and ours: not the last word.
            self._give_up(str(error), 1 if isinstance(error, NotLearned) else _MOST_LESSONS)
            return
        except unlearned as error:
            self._give_up(f"learning from a request failed ({type(error).__name__})", 1)
            return
        self._lessons = 0
        self._log.debug("%s over the lean transport (%s)", self._doing, method)

    def _give_up(self, reason: str, lessons: int) -> None:
        self._obstacle = reason
        self._lessons += lessons
        if self._lessons >= _MOST_LESSONS:
            self._log.info("%s over boto3, which costs more CPU: %s", self._doing, reason)


class _Asking(NamedTuple):
    route: Route
    method: str
    resource: str | None


# Set only while pykcl calls a client: a context variable is per thread, and the client may be shared with code that
# wants botocore's own answer, and whose requests teach nothing.
_asking: ContextVar[_Asking | None] = ContextVar("pykcl_asking", default=None)


def is_asking() -> bool:
    """Whether the call that botocore is making in this thread is one of a Route."""
    return _asking.get() is not None


def _watch(request: Any, **_: object) -> None:
    """before-send handler: learn from a request of ours how to send the next ones."""
    asking = _asking.get()
    if asking is not None:
        asking.route.learn_from(request, asking.method, asking.resource)
