"""The clock that requests of one client are signed with: our own, put right by what AWS answers.

AWS refuses a request whose signature is more than a few minutes old or early. botocore signs with the clock of the
machine and keeps no correction for Kinesis and DynamoDB. A signature is looked at before anything is carried out, so a
request that was refused for it may be sent again, a write as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import Any, Final, ParamSpec, TypeVar

from botocore.client import BaseClient
from botocore.exceptions import ClientError

from pykcl.aws import failures
from pykcl.aws.failures import aws_errors, error_code, http_status
from pykcl.aws.lean.learned import NotLearned, sign_anew
from pykcl.runtime import Runtime

P = ParamSpec("P")
T = TypeVar("T")

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
    """May be used by any number of threads at once. log: of the service, whose name `service` is.

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
        """`method` of the client, as `failures.calling`; called once more where its signature's time was refused."""
        called = failures.calling(method)

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            ahead = self.ahead_millis
            signing = _signing.set(self)
            try:
                try:
                    return called(*args, **kwargs)
                except ClientError as error:
                    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
                    if not self.corrects(error_code(error), http_status(error), headers.get("date"), ahead):
                        raise
                # Outside the except block: no error of this call may have the refusal in its chain.
                return called(*args, **kwargs)
            finally:
                _signing.reset(signing)

        return call

    def corrects(self, code: str | None, status: int | None, date: object, ahead: int) -> bool:
        """Return whether a request was refused for the time it was signed at, and the next is signed at another.

        date: the Date header of the refusal. ahead: the milliseconds that were added to our clock for the request.
        """
        if code not in _SKEWED or (status or 500) >= 500:
            return False
        if ahead != self.ahead_millis:
            return True  # another request that was under way has found it out, and corrected it
        try:
            theirs = int(parsedate_to_datetime(str(date)).timestamp() * 1000)
        except (ValueError, TypeError, OverflowError):
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
        unsigned: tuple[type[Exception], ...] = (*aws_errors(), NotLearned, OSError, *failures.MALFORMED)
        try:
            credentials = self._signer._credentials
            keys = failures.calling(credentials.get_frozen_credentials, parses=False)()
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
