"""One boto3 client per service, shared by all threads of a worker, and the adapters over them.

boto3 is imported on the first call, so that `import pykcl` stays fast. A session per thread would cost 9.7 MB
each.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pykcl.aws.errors import MALFORMED, ClientRaised, aws_errors, calling, sort_failure
from pykcl.aws.table_admin import METRICS_SUFFIX, NewTable, state_table_of
from pykcl.config import Config
from pykcl.errors import ConfigError, PyKclError, SetupError, printable
from pykcl.interfaces import LeaseTable, Stream
from pykcl.model.absence import GONE_AFTER
from pykcl.runtime import Event, Runtime, SystemRuntime

log = logging.getLogger("pykcl.aws")

SERVICES = ("kinesis", "dynamodb")
ALL_SERVICES = (*SERVICES, "cloudwatch")
"""With the one that is asked only where `Config.metrics` names it."""
LETTER_SERVICES = ("sqs", "sns", "s3", "sts")
"""Asked only where dead letters go to AWS."""
_SPARE_CONNECTIONS = 12
_MAX_CONNECTIONS = 512
_KINESIS_TIMEOUT = 10.0
_USER_IN_URL = re.compile(r"//[^/@\s]*@")


def connect(
    config: Config,
    runtime: Runtime,
    *,
    session: Any = None,
    clients: Mapping[str, Any] | None = None,
    stop: Event | None = None,
    gone_after: float = GONE_AFTER,
) -> tuple[LeaseTable, Stream]:
    """The lease table and the stream of `config`. Sends nothing yet, but has credentials obtained.

    stop: once set, no write is tried a second time (the forced stop). gone_after: seconds, as in `Absence`.

    session: a boto3.Session. clients: ready-made boto3 clients by service ("kinesis", "dynamodb", and "cloudwatch" for
    `aws.cloudwatch`); a client given here is used as it is. Raises ConfigError without a region, SetupError
    without credentials.
    """
    from pykcl.aws.kinesis import KinesisStream
    from pykcl.aws.lease_table import DynamoDBLeaseTable

    given = dict(clients or {})
    unknown = sorted(given.keys() - {*ALL_SERVICES, *LETTER_SERVICES})
    if unknown:
        raise ConfigError(
            f"clients= has {', '.join(map(repr, unknown))}; it may have 'kinesis', 'dynamodb' and 'cloudwatch', "
            "and for dead letters 'sqs', 'sns', 's3' and 'sts'."
        )
    if not given.keys() >= set(SERVICES):
        connections = connections_for(config)
        given = {**open_clients(config, session=session, max_pool_connections=connections), **given}
    table = DynamoDBLeaseTable(
        given["dynamodb"],
        config.table,
        runtime,
        request_timeout=config.request_timeout,
        stop=stop,
        coordinator_state_table=config.coordinator_state_table or state_table_of(config.application),
        worker_metrics_table=config.worker_metrics_table or config.application + METRICS_SUFFIX,
        new_table=NewTable(
            deletion_protection=config.table_deletion_protection, recovery=config.point_in_time_recovery
        ),
        http_transport=config.http_transport,
        gone_after=gone_after,
    )
    stream = KinesisStream(
        given["kinesis"],
        config.stream,
        runtime,
        http_transport=config.http_transport,
        record_encoding=config.record_encoding,
        gone_after=gone_after,
    )
    return table, stream


def drop_connections(clients: Mapping[str, Any] | None) -> None:
    """Close the idle connections of clients that another process has made, which this one was forked from.

    1) A client has sent a request, and keeps its connection; 2) the process is forked; 3) both send over the same
    connection, and each may get the answer to the other. A client that was closed opens new connections as it needs
    them (boto3 1.36 to 1.43); the other process keeps its own.
    """
    for client in (clients or {}).values():
        # One that stands in for a client of boto3 need not have it.
        getattr(client, "close", bool)()


def connections_for(config: Config) -> int:
    """Return how many requests one client may send at once."""
    return min(_MAX_CONNECTIONS, config.max_leases + _SPARE_CONNECTIONS)


def open_clients(config: Config, *, session: Any = None, max_pool_connections: int = 50) -> dict[str, Any]:
    """A boto3 client for each of "kinesis" and "dynamodb", of one attempt per call: pykcl retries by itself.

    Raises ConfigError without a region, SetupError without credentials.
    """
    session = session or new_session()
    region = region_of(config, session)
    refuse_missing_credentials(session)
    return {
        service: open_client(session, service, config, region=region, connections=max_pool_connections)
        for service in SERVICES
    }


def cloudwatch_client(config: Config, *, session: Any = None) -> Any:
    """A boto3 client for CloudWatch, for one thread. Raises ConfigError without a region, SetupError without
    credentials."""
    session = session or new_session()
    refuse_missing_credentials(session)
    return open_client(session, "cloudwatch", config, region=region_of(config, session), connections=1)


def region_of(config: Config, session: Any) -> str:
    """Return the region of a worker's clients. Raises ConfigError without one."""
    # boto3 itself knows AWS_DEFAULT_REGION only; the other SDKs, and the platforms that set it, say AWS_REGION.
    region = config.effective_region or session.region_name or os.environ.get("AWS_REGION")
    if not region:
        raise ConfigError(
            "No AWS region. Checked the stream (an ARN names its region), region=..., AWS_DEFAULT_REGION, "
            "the AWS profile and AWS_REGION. Set one of them."
        ).about("E01")
    return str(region)


def open_client(
    session: Any, service: str, config: Config, *, region: str, endpoint: str | None = None, connections: int
) -> Any:
    """One client of `session`, with the time-outs that `config` leaves it. endpoint: its URL, if it is not AWS' own."""
    connecting, reading = {
        "kinesis": (5.0, _KINESIS_TIMEOUT),
        "dynamodb": (min(1.0, config.request_timeout), config.request_timeout),
        "cloudwatch": (2.0, 5.0),
    }.get(service, (5.0, _KINESIS_TIMEOUT))
    return create_client(
        session,
        service,
        region_name=region,
        endpoint_url=endpoint,
        config=client_config(
            connect_timeout=connecting,
            read_timeout=reading,
            connections=connections,
            # A third of what sending metrics costs, for data that are of no one's making but ours.
            validation=service != "cloudwatch",
        ),
    )


def create_client(session: Any, service: str, **how: Any) -> Any:
    """`session.client`. Raises ConfigError for a region or an endpoint that no request could be sent to."""
    try:
        return session.client(service, **how)
    except ValueError as error:
        text = str(error)
    # What a URL may hold of a user stays in it.
    shown = printable(_USER_IN_URL.sub("//", text)).rstrip(".")
    raise ConfigError(
        f"A client of {service} cannot be made: {shown}. Do: look "
        "at region=, the endpoint in the file or the command, AWS_REGION, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL, "
        f"AWS_ENDPOINT_URL_{service.upper()} and the AWS profile."
    )


def new_session(inner: Any = None, *, profile: str | None = None) -> Any:
    """A boto3 session of our own, whose parser makes UTC times and never asks for the local zone.

    inner: a session of `botocore_session`, with credentials of its own. By default they are those of boto3's chain,
    which is searched again where AWS refuses them. profile: by default AWS_PROFILE. Raises SetupError without such a
    profile.
    """
    import boto3

    try:
        session = boto3.Session(botocore_session=inner or botocore_session(), profile_name=profile)
        if inner is None:
            found = session._session.get_component("credential_provider")
            chain = RenewedChain(found.load_credentials, lambda: _chain_of(profile).get_credentials())
            session._session.register_component("credential_provider", chain)
        return session
    except aws_errors() as error:
        failure = sort_failure(error, doing="opening an AWS session")
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle


def botocore_session() -> Any:
    """Return the botocore session for `new_session`."""
    import botocore.session

    inner = botocore.session.get_session()
    inner.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_utc)
    return inner


def _chain_of(profile: str | None) -> Any:
    inner = botocore_session()
    if profile is not None:
        inner.set_config_variable("profile", profile)
    return inner


class RenewedChain:
    """Takes the place of botocore's chain of providers: its credentials are found anew where AWS refuses them.

    first, again: return botocore's credentials, or None where there are none. again: from sources that were not read
    before.
    """

    def __init__(self, first: Callable[[], Any], again: Callable[[], Any]) -> None:
        self._first, self._again = first, again

    def load_credentials(self) -> Any:
        found = self._first()
        return None if found is None else RenewedCredentials(found, self._again, SystemRuntime())


class RenewedCredentials:
    """Stands in for botocore's credentials. May be used by any number of threads at once.

    botocore reads static ones once: 1) a session token in ~/.aws/credentials expires, and something writes a new one
    there; 2) a client goes on with the old one for ever.
    """

    def __init__(self, found: Any, again: Callable[[], Any], runtime: Runtime) -> None:
        self._found, self._again, self._runtime = found, again, runtime
        # `pop` is atomic: of several threads one searches, and none waits for it.
        self._turn = [None]
        self._renewed_at, self._next_at, self._pause = -math.inf, -math.inf, _FIRST_PAUSE

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_found"], name)

    def get_frozen_credentials(self) -> Any:
        """Raises what `_obtaining` raises."""
        return _obtaining(self._found.get_frozen_credentials)

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        def get_property() -> Any:
            # Of the credentials that are in use when it is asked for.
            return _obtaining(self._found.get_deferred_property(name))

        return get_property

    def renew(self) -> bool:
        """AWS has refused these credentials. Return whether others have taken their place. Never raises.

        Nothing is searched for a while after it was in vain, longer each time.
        """
        now = self._runtime.monotonic()
        if now - self._renewed_at < _MAX_REQUEST:
            return True  # the request was signed before that
        if now < self._next_at:
            return False
        try:
            self._turn.pop()
        except IndexError:
            return False
        try:
            return self._search(now)
        finally:
            self._turn.append(None)

    def _search(self, now: float) -> bool:
        before = _keys_of(self._found)
        found: Any = None
        try:
            found = self._again()
        except Exception as error:  # noqa: BLE001 - a source of credentials may raise anything
            log.debug("AWS credentials could not be searched again: %s", type(error).__name__)
        keys = _keys_of(found)
        if keys is None or keys == before:
            self._next_at, self._pause = now + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            return False
        self._found = found
        self._renewed_at, self._pause = self._runtime.monotonic(), _FIRST_PAUSE
        log.info("AWS refused the credentials; others were found and are used now source=%s", found.method)
        return True


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


_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_MAX_REQUEST = 15.0
"""Seconds in which a request that was signed before is answered."""


def _keys_of(credentials: Any) -> tuple[Any, ...] | None:
    """The keys; None where there are none, or their source raises."""
    try:
        keys = None if credentials is None else credentials.get_frozen_credentials()
    except Exception as error:  # noqa: BLE001 - a source of credentials may raise anything
        log.debug("AWS credentials could not be obtained: %s", type(error).__name__)
        return None
    return None if keys is None else (keys.access_key, keys.secret_key, keys.token)


def client_config(
    *, connect_timeout: float, read_timeout: float, connections: int, validation: bool = True
) -> Any:
    """botocore's configuration of one client: one attempt per call, times in seconds, who we are. validation: whether
    botocore checks the parameters of each call first."""
    from botocore.config import Config as BotocoreConfig

    from pykcl import __version__

    return BotocoreConfig(
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=connections,
        user_agent_extra=f"pykcl/{__version__}",
        tcp_keepalive=True,
        parameter_validation=validation,
    )


def refuse_missing_credentials(session: Any) -> None:
    """Raise SetupError unless boto3 finds credentials, locally or from the service of the instance."""
    try:
        found = calling(session.get_credentials, parses=False)()
        missing = None if found is None else _missing_file(found)
    except aws_errors() as error:
        failure: PyKclError = sort_failure(error, doing="looking for AWS credentials")
    else:
        if found is not None and missing is None:
            return
        failure = SetupError(
            "No AWS credentials. boto3 searched AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the AWS "
            "profile and the role of the container or instance. Provide one, or pass a boto3 session."
            if missing is None
            else f"AWS credentials could not be obtained ({missing}): a file that boto3 takes them from is missing or "
            "may not be read. Check AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, the AWS "
            "profile and the volumes that are mounted."
        ).about("E04")
    # Outside the except block: what boto3 says may quote a line of a credentials file.
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle


def _missing_file(credentials: Any) -> str | None:
    """Obtain the credentials; return the name of an error that only somebody's help can end.

    Whatever else goes wrong may pass. The first request of the worker meets it again, and waits for it to pass.
    """
    try:
        credentials.get_frozen_credentials()
    except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        return type(error).__name__
    except Exception as error:  # noqa: BLE001 - a source of credentials may raise anything
        log.debug("AWS credentials could not be obtained: %s", type(error).__name__)
    return None


def _utc(value: Any) -> datetime:
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, tz=UTC)
    from botocore.utils import parse_timestamp

    parsed: datetime = parse_timestamp(value)
    return parsed
