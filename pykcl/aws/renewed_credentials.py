"""Credentials that threads of their own obtain and renew ahead of time; requests use what is valid meanwhile.

botocore renews in the thread of whichever request comes first: 1) credentials are good for 12 more minutes; 2) STS, or
another source, hangs; 3) the thread that is inside stands still, and its shard, checkpoint or heartbeat with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pykcl.aws.errors import MALFORMED, CredentialsFailed, aws_errors, credentials_of
from pykcl.aws.instruments import ClientRaised
from pykcl.aws.network_errors import no_answer, proxy_before
from pykcl.errors import PyKclError, TemporaryError
from pykcl.runtime import Runtime, SystemRuntime, Task

log = logging.getLogger("pykcl.aws")

PATIENCE = 2.0
"""Seconds for which a request waits where there are no valid credentials; a search that takes longer goes on."""
FIRST_PATIENCE = 5.0
"""Seconds for which a session waits for its first ones."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_FIRST_PAUSE_WITHOUT, _LONGEST_PAUSE_WITHOUT = 0.1, 0.5
"""Between attempts while there are no valid credentials, or they end within `_SOON`: shorter than `PATIENCE`, so that
each request is part of an attempt."""
_SOON = 60.0
_LASTING = 10.0
"""Seconds after which a renewal that is late is trouble."""
_HANGS, _MAX_ATTEMPTS = 60.0, 4
"""A further attempt begins beside one that has hung for so many seconds; so many at most."""
_MAX_REQUEST = 15.0
"""Seconds in which a request that was signed before is answered."""
_PATIENT_METADATA = 5
"""Seconds for which the metadata service of an instance is waited for once it was too slow for boto3's one second."""


@dataclass(slots=True)
class Asked:
    """METHOD of botocore's provider that a search is asking."""

    method: str = ""


Search = Callable[[Asked], Any]
"""Returns botocore's credentials, or None where there are none. May raise anything."""


class RenewedChain:
    """Takes the place of botocore's chain of providers.

    first, again: the searches; `again` reads sources that were not read before.
    """

    def __init__(self, first: Search, again: Search) -> None:
        self._first, self._again = first, again

    def load_credentials(self) -> RenewedCredentials | None:
        """None where there are none. Raises CredentialsFailed if only somebody's help can change that.

        Those of a source that fails or hangs are waited for by whoever uses them.
        """
        return RenewedCredentials(self._first, self._again, SystemRuntime()).obtained()


@dataclass(frozen=True, slots=True)
class _Held:
    """found: botocore's credentials, of which nothing is asked that could renew them. keys: of them; None: to be asked
    for each time, as they are of a kind that is not known."""

    found: Any
    keys: Any = field(repr=False)

    @property
    def is_due(self) -> bool:
        return self._ends_within(None)

    @property
    def is_over(self) -> bool:
        return self._ends_within(0)

    @property
    def ends_soon(self) -> bool:
        return self._ends_within(_SOON)

    def _ends_within(self, seconds: float | None) -> bool:
        if self.keys is None or not hasattr(self.found, "refresh_needed"):
            return False
        return bool(self.found.refresh_needed(seconds))


@dataclass(slots=True)
class _Attempt:
    began: float
    asked: Asked
    task: Task | None = None

    @property
    def is_under_way(self) -> bool:
        # In a process that was forked meanwhile no thread but the forking one is alive.
        return self.task is None or self.task.is_alive()


class RenewedCredentials:
    """Stands in for botocore's credentials. May be used by any number of threads at once.

    Besides renewing them, it searches anew where AWS refuses them: 1) a session token in ~/.aws/credentials expires,
    and something writes a new one there; 2) botocore has read the old one, and goes on with it for ever.
    """

    def __init__(
        self, first: Search, again: Search, runtime: Runtime, failure: CredentialsFailed | None = None
    ) -> None:
        """failure: of a search that was made before."""
        self._first, self._again, self._runtime = first, again, runtime
        self._held: _Held | None = None
        self._has_searched = False
        self._failure = failure or CredentialsFailed(None, "not asked yet")
        # `pop` is atomic: of several threads one begins an attempt, and none waits for it.
        self._turn = [None]
        self._attempts: tuple[_Attempt, ...] = ()
        self._next_at, self._in_vain, self._has_failed = -math.inf, 0, False
        self._failing_since: float | None = None
        self._renewed_at, self._refused_next_at, self._refused_pause = -math.inf, -math.inf, _FIRST_PAUSE

    def obtained(self) -> RenewedCredentials | None:
        """Search for the first time. Returns and raises as `RenewedChain.load_credentials`."""
        try:
            self.wait(FIRST_PATIENCE)
        except CredentialsFailed as failure:
            if failure.is_none:
                return None
            if failure.is_final:
                raise
        except aws_errors() as error:
            log.debug("AWS credentials could not be obtained: %s", type(error).__name__)
        return self

    # -- as botocore's -----------------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        held = self._held
        return str(held.found.method if held else self._attempts[-1].asked.method if self._attempts else "")

    @property
    def found(self) -> Any:
        """botocore's credentials that are in use; None before there are any."""
        held = self._held
        return held.found if held else None

    @property
    def access_key(self) -> Any:
        return self.get_frozen_credentials().access_key

    @property
    def secret_key(self) -> Any:
        return self.get_frozen_credentials().secret_key

    @property
    def token(self) -> Any:
        return self.get_frozen_credentials().token

    @property
    def account_id(self) -> Any:
        return getattr(self.get_frozen_credentials(), "account_id", None)

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        # Of the credentials that are in use when it is asked for.
        return lambda: getattr(self, name, None)

    def refresh_needed(self, refresh_in: float | None = 0) -> bool:
        """Return whether `get_frozen_credentials` would wait, which may take long."""
        held = self._held
        return held is None or held.is_over

    def get_frozen_credentials(self) -> Any:
        """Return valid keys at once where there are any. Raises CredentialsFailed, and whatever the source raises
        where it is of a kind that is not known."""
        held = self._held
        if held is None:
            return self.wait(PATIENCE)
        if held.keys is None:
            return _obtaining(held.found.get_frozen_credentials)
        if held.is_due:
            self._begin_if_due()
            if held.is_over:
                return self.wait(PATIENCE)
        return held.keys

    # -- obtaining ---------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> Any:
        """Return valid keys; wait for so many seconds at most where there are none. Raises CredentialsFailed."""
        until = self._runtime.monotonic() + seconds
        while True:
            if (keys := self._valid_keys()) is not None:
                return keys
            attempt = self._begin_if_due()
            now = self._runtime.monotonic()
            if attempt is not None and attempt.task is not None:
                attempt.task.join(max(0.0, until - now))
                if (keys := self._valid_keys()) is not None:
                    return keys
                raise self._why_not()
            pause = max(0.01, self._next_at - now)
            if now + pause > until:
                raise self._why_not()
            self._runtime.event().wait(pause)

    def trouble(self) -> PyKclError | None:
        """Return the error where a renewal is due and has been late for a while; see to it that it is under way."""
        held = self._held
        if held is None or not held.is_due:
            nested = held.found if held else None
            return nested.trouble() if isinstance(nested, RenewedCredentials) else None
        self._begin_if_due()
        began = [one.began for one in self._attempts if one.is_under_way]
        if self._failing_since is not None:
            began.append(self._failing_since)
        if not began or self._runtime.monotonic() - min(began) < _LASTING:
            return None
        return self._why_not().of_renewal(getattr(held.found, "_expiry_time", None))

    def _valid_keys(self) -> Any:
        held = self._held
        if held is None or held.is_over:
            return None
        return _obtaining(held.found.get_frozen_credentials) if held.keys is None else held.keys

    def _begin_if_due(self) -> _Attempt | None:
        """Begin an attempt, unless one is under way or was in vain a moment ago. Return the one that is under way."""
        now = self._runtime.monotonic()
        if (running := self._running(now)) is not None:
            return running
        return self._begin(self._ask, self._settle) if now >= self._next_at else None

    def _running(self, now: float) -> _Attempt | None:
        """Return the attempt that is under way; None if there is none, or another may begin beside it as it hangs."""
        running = [one for one in self._attempts if one.is_under_way]
        hangs = running and now - running[-1].began >= _HANGS and len(running) < _MAX_ATTEMPTS
        return running[-1] if running and not hangs else None

    def _begin(self, ask: Search, settle: Callable[[Any, Any], None]) -> _Attempt | None:
        """None: another thread is beginning one at this moment."""
        try:
            self._turn.pop()
        except IndexError:
            return None
        try:
            attempt = _Attempt(self._runtime.monotonic(), Asked(self.method))
            body = partial(self._attempt, attempt, ask, settle)
            self._attempts = (*(one for one in self._attempts if one.is_under_way), attempt)
            try:
                attempt.task = self._runtime.spawn("pykcl-credentials", body)
            except TemporaryError:
                # The program is ending, and no thread can be started any more; or there are too many.
                self._attempts = self._attempts[:-1]
                if self._valid_keys() is not None:
                    return None
                body()
            return attempt
        finally:
            self._turn.append(None)

    def _attempt(self, attempt: _Attempt, ask: Search, settle: Callable[[Any, Any], None]) -> None:
        try:
            settle(*_with_keys(ask(attempt.asked)))
        except Exception as error:  # noqa: BLE001 - a source of credentials may raise anything
            log.debug("AWS credentials could not be obtained: %s", type(error).__name__)
            self._failed(
                CredentialsFailed.of(error, attempt.asked.method, is_start=self._held is None), attempt
            )

    def _ask(self, asked: Asked) -> Any:
        held = self._held
        if held is None or self._has_failed:
            # Whoever has failed is asked by way of sources that are read anew.
            search = self._again if self._has_searched else self._first
            self._has_searched = True
            return search(asked)
        asked.method = str(held.found.method)
        return _renewed(held.found)

    def _settle(self, found: Any, keys: Any) -> None:
        held = self._held
        if held is not None and not held.is_due:
            return  # another attempt was quicker
        if found is None:
            raise CredentialsFailed(None, "it has none", is_none=held is None)
        new = _Held(found, keys)
        if new.is_over:
            raise CredentialsFailed(
                str(found.method),
                "it gave some that have ended already; if the clock of this machine is wrong, set it",
            )
        self._held = new
        if new.ends_soon:
            raise CredentialsFailed(str(found.method), "it gave some that end within a minute")
        self._failing_since, self._has_failed = None, False
        if new.is_due:
            self._rest()  # the source has no others yet
        else:
            self._next_at, self._in_vain = -math.inf, 0

    def _failed(self, failure: CredentialsFailed, attempt: _Attempt) -> None:
        self._failure, self._has_failed = failure, True
        self._failing_since = attempt.began if self._failing_since is None else self._failing_since
        self._rest()

    def _rest(self) -> None:
        """Begin no other attempt for a while, longer each time."""
        held = self._held
        is_urgent = held is None or held.ends_soon
        first, longest = (
            (_FIRST_PAUSE_WITHOUT, _LONGEST_PAUSE_WITHOUT) if is_urgent else (_FIRST_PAUSE, _LONGEST_PAUSE)
        )
        self._next_at = self._runtime.monotonic() + min(longest, first * 2.0 ** min(self._in_vain, 16))
        self._in_vain += 1

    def _why_not(self) -> CredentialsFailed:
        running = [one for one in self._attempts if one.is_under_way]
        seconds = self._runtime.monotonic() - running[0].began if running else 0.0
        if not running or (self._has_failed and seconds < _LASTING):
            return self._failure.again()
        return CredentialsFailed(running[0].asked.method, f"no answer for {seconds:.0f} s")

    # -- AWS refuses them --------------------------------------------------------------------------------------

    def renew(self) -> bool:
        """AWS has refused these credentials. Return whether others have taken their place. Never raises.

        Waits `PATIENCE` at most. Nothing is searched for a while after it was in vain, longer each time.
        """
        now = self._runtime.monotonic()
        if now - self._renewed_at < _MAX_REQUEST:
            return True  # the request was signed before that
        if now < self._refused_next_at or self._running(now) is not None:
            return False
        before = self._held
        done: list[None] = []

        def settle(found: Any, keys: Any) -> None:
            if found is not None and keys is not None and (before is None or _differ(keys, before.keys)):
                self._held = _Held(found, keys)
                self._renewed_at, self._refused_pause = self._runtime.monotonic(), _FIRST_PAUSE
                self._failing_since, self._has_failed, self._in_vain = None, False, 0
                log.info(
                    "AWS refused the credentials; others were found and are used now source=%s", found.method
                )
                done.append(None)

        def search(asked: Asked) -> Any:
            try:
                return self._again(asked)
            except Exception as error:  # noqa: BLE001 - a source of credentials may raise anything
                log.debug("AWS credentials could not be searched again: %s", type(error).__name__)
                return None

        attempt = self._begin(search, settle)
        if attempt is None:
            return False
        # Another thread may be refused meanwhile; it must not search as well once this is over.
        self._refused_next_at = now + self._refused_pause
        self._refused_pause = min(2 * self._refused_pause, _LONGEST_PAUSE)
        if attempt.task is not None:
            attempt.task.join(PATIENCE)
        if done:
            self._refused_next_at, self._refused_pause = -math.inf, _FIRST_PAUSE
        return bool(done)


def trouble_of(client: Any) -> PyKclError | None:
    """See `interfaces.HasCredentials`. client: of boto3; None where its credentials are renewed by themselves."""
    credentials = credentials_of(client)
    return credentials.trouble() if isinstance(credentials, RenewedCredentials) else None


def _with_keys(found: Any) -> tuple[Any, Any]:
    """Return credentials and their keys, as `_Held` has them; obtain them where that was not done yet. May raise
    anything."""
    from botocore.credentials import Credentials, DeferredRefreshableCredentials, RefreshableCredentials

    if type(found) in (RefreshableCredentials, DeferredRefreshableCredentials):
        if found._frozen_credentials is None:
            found = _renewed(found)
        return found, found._frozen_credentials
    if found is not None:
        keys = found.get_frozen_credentials()
        return found, keys if type(found) is Credentials else None
    return None, None


def _renewed(found: Any) -> Any:
    """Ask the source of botocore's credentials for others. May raise anything.

    Not by `get_frozen_credentials`: that logs what the source says, with its traceback, and returns the old ones.
    """
    from botocore.credentials import RefreshableCredentials

    metadata = found._refresh_using()
    if not metadata or not {"access_key", "secret_key", "token", "expiry_time"} <= metadata.keys():
        raise CredentialsFailed(str(found.method), "it gave none")
    return RefreshableCredentials.create_from_metadata(metadata, found._refresh_using, found.method)


def _differ(keys: Any, others: Any) -> bool:
    return others is None or (keys.access_key, keys.secret_key, keys.token) != (
        others.access_key,
        others.secret_key,
        others.token,
    )


def _obtaining(ask: Callable[[], Any]) -> Any:
    """Raises whatever the source of credentials raises, but ClientRaised for what would pass for an answer of AWS.

    A command that prints no JSON, or keys that have expired, makes botocore raise a ValueError or a RuntimeError.
    """
    try:
        return ask()
    except aws_errors():
        raise
    except MALFORMED as error:
        name = type(error).__name__
    # Outside the except block: the error may quote what the command printed.
    raise ClientRaised(name)


# -- searching -------------------------------------------------------------------------------------------------


def search_providers(providers: Iterable[Any], asked: Asked) -> Any:
    """Return the credentials of the first of botocore's providers that has any, or None. May raise anything.

    Unlike botocore it raises where the metadata service of an instance fails for a time.
    """
    for provider in providers:
        asked.method = str(provider.METHOD)
        found = _of_instance(provider) if asked.method == "iam-role" else provider.load()
        if found is not None:
            return found
    return None


def be_patient(session: Any) -> None:
    """Let this botocore session wait longer for the metadata service of an instance, unless its time-out is set."""
    if session.get_config_variable("metadata_service_timeout") == 1:
        session.set_config_variable("metadata_service_timeout", _PATIENT_METADATA)


def _of_instance(provider: Any) -> Any:
    fetcher: Any = getattr(provider, "_role_fetcher", None)
    if not hasattr(fetcher, "_session"):  # this botocore is not known to us
        return provider.load()
    heard = fetcher._session = _Heard(fetcher._session)
    found = provider.load()
    if found is None:
        heard.raise_if_temporary()
    else:
        found._refresh_using = partial(_of_instance_anew, fetcher, heard)
    return found


def _of_instance_anew(fetcher: Any, heard: _Heard) -> Any:
    metadata = fetcher.retrieve_iam_role_credentials()
    if not metadata:
        heard.raise_if_temporary()
        raise CredentialsFailed("iam-role", heard.last or "it gave none")
    return metadata


class _Heard:
    """An HTTP session that asks the metadata service, and keeps what its last answer was, which botocore drops.

    "No service here" and "no role here" end the search; a service that is there and answers late, with an error of its
    own or with something else than credentials may do better later.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self.last, self._is_temporary = "", False

    def send(self, request: Any) -> Any:
        try:
            response = self._session.send(request)
        except Exception as error:
            self.last = no_answer(error).reason
            self._is_temporary = type(error).__name__ == "ReadTimeoutError"
            raise
        status, between = response.status_code, proxy_before(request.url)
        # A service of this host, which a proxy never leads to.
        self.last = f"HTTP {status}; by way of {between}" if between else f"HTTP {status}"
        is_listing = str(request.url).endswith("/security-credentials/")
        self._is_temporary = status in (200, 401, 429) or status >= 500 or (not is_listing and status == 404)
        return response

    def raise_if_temporary(self) -> None:
        if self._is_temporary:
            raise CredentialsFailed("iam-role", self.last)
