"""One boto3 client per service, shared by all threads of a worker, and the adapters over them.

boto3 is imported on the first call, so that `import pykcl` stays fast. A session per thread would cost 9.7 MB
each.
"""

from __future__ import annotations

import copy
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pykcl.aws.errors import CredentialsFailed, aws_errors, calling, sort_failure
from pykcl.aws.instruments import untraced
from pykcl.aws.network_errors import bundle_of, refused_setting, unreadable_bundle, way_of
from pykcl.aws.renewed_credentials import (
    Asked,
    RenewedChain,
    RenewedCredentials,
    be_patient,
    search_providers,
)
from pykcl.aws.table_admin import METRICS_SUFFIX, NewTable, state_table_of
from pykcl.config import Config
from pykcl.errors import ConfigError, PyKclError, SetupError
from pykcl.interfaces import LeaseTable, Stream
from pykcl.model.absence import GONE_AFTER
from pykcl.runtime import Event, Runtime

if TYPE_CHECKING:
    from pykcl.aws.kinesis import KinesisStream

log = logging.getLogger("pykcl.aws")

SERVICES = ("kinesis", "dynamodb")
ALL_SERVICES = (*SERVICES, "cloudwatch")
"""With the one that is asked only where `Config.metrics` names it."""
LETTER_SERVICES = ("sqs", "sns", "s3", "sts")
"""Asked only where dead letters go to AWS."""
_SPARE_CONNECTIONS = 12
_MAX_CONNECTIONS = 512
_KINESIS_TIMEOUT = 10.0


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
    from pykcl.aws.lease_table import DynamoDBLeaseTable

    given = given_clients(clients)
    unknown = sorted(given.keys() - {*ALL_SERVICES, *LETTER_SERVICES})
    if unknown:
        raise ConfigError(
            f"clients= has {', '.join(map(repr, unknown))}; it may have 'kinesis', 'dynamodb' and 'cloudwatch', "
            "and for dead letters 'sqs', 'sns', 's3' and 'sts'."
        )
    for client in given.values():
        _refuse_unreadable_bundle(client)
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
    stream = _stream_class(config, stop)
    return table, stream(
        given["kinesis"],
        config.stream,
        runtime,
        http_transport=config.http_transport,
        record_encoding=config.record_encoding,
        gone_after=gone_after,
    )


def _stream_class(config: Config, stop: Event | None) -> Callable[..., Stream]:
    """Return the class of the stream, with what only one that pushes has to know."""
    if config.retrieval == "polling":
        from pykcl.aws.kinesis import KinesisStream

        return KinesisStream
    from pykcl.aws.push.stream import FanOutStream

    return partial(
        FanOutStream,
        consumer=config.consumer or config.application,
        register=config.register_consumer,
        stop=stop,
        push_transport=config.fanout_transport,
    )


def connect_stream(
    config: Config,
    runtime: Runtime,
    *,
    connections: int,
    session: Any = None,
    clients: Mapping[str, Any] | None = None,
) -> KinesisStream:
    """The stream of `config` alone, for somebody who puts records. connections: requests that may be sent at once.

    session, clients: as for `connect`; only the client of "kinesis" is used. Raises as `connect`.
    """
    from pykcl.aws.kinesis import KinesisStream

    client = given_clients(clients).get("kinesis")
    if client is None:
        session = session_for(session)
        refuse_missing_credentials(session)
        region = region_of(config, session)
        client = open_client(session, "kinesis", config, region=region, connections=connections)
    else:
        _refuse_unreadable_bundle(client)
    return KinesisStream(
        client, config.stream, runtime, http_transport=config.http_transport, who="this producer"
    )


def given_clients(clients: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the clients that are given, by service; None is none. Raises ConfigError for what is no mapping."""
    if clients is not None and not isinstance(clients, Mapping):
        raise ConfigError(
            f"clients={type(clients).__name__} is no dict. Do: clients={{'kinesis': client, 'dynamodb': client}}, with "
            "clients of boto3."
        )
    return {service: client for service, client in (clients or {}).items() if client is not None}


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
    session = session_for(session)
    region = region_of(config, session)
    refuse_missing_credentials(session)
    return {
        service: open_client(session, service, config, region=region, connections=max_pool_connections)
        for service in SERVICES
    }


def cloudwatch_client(config: Config, *, session: Any = None) -> Any:
    """A boto3 client for CloudWatch, for one thread. Raises ConfigError without a region, SetupError without
    credentials."""
    session = session_for(session)
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
    """`session.client`. Raises ConfigError for a region, an endpoint or another setting that no request could be sent
    with, SetupError for authorities that cannot be read."""
    from botocore.exceptions import BotoCoreError, NoRegionError

    try:
        client = session.client(service, **how)
    except NoRegionError:
        raise
    except (ValueError, BotoCoreError) as error:
        shown = refused_setting(error)
    else:
        _refuse_unreadable_bundle(client)
        return untraced(client)
    raise ConfigError(
        f"A client of {service} cannot be made: {shown}. Do: correct the setting, one of region=, the "
        "endpoint in the file or the command, AWS_REGION, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL, "
        f"AWS_ENDPOINT_URL_{service.upper()}, another AWS_ variable and the AWS profile."
    )


def _refuse_unreadable_bundle(client: Any) -> None:
    """Raise SetupError where the client cannot read the authorities that it is to trust: it would never get an answer.

    In a worker that runs this is temporary: the file may be replaced at that moment.
    """
    way = way_of(client)
    if way is None or not isinstance(way.trusts, str | os.PathLike) or not way.url.startswith("https:"):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=os.path.expanduser(way.trusts))
    except OSError as error:
        why = unreadable_bundle(error) or type(error).__name__
    else:
        return
    raise SetupError(
        f"The authorities to trust cannot be read from {bundle_of(way.trusts)}: {why}. No server could be trusted. "
        "Do: correct the path or the file, which has certificates in PEM."
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
            chain = RenewedChain(partial(search_providers, found.providers), partial(_search_anew, profile))
            session._session.register_component("credential_provider", chain)
        return session
    except aws_errors() as error:
        failure = sort_failure(error, doing="opening an AWS session")
    except ValueError as error:
        failure = ConfigError(
            f"An AWS session cannot be opened: {refused_setting(error)}. Do: check AWS_METADATA_SERVICE_TIMEOUT, "
            "AWS_METADATA_SERVICE_NUM_ATTEMPTS, other AWS_ variables and the AWS profile."
        )
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle


def session_for(given: Any) -> Any:
    """Return the session for a worker's clients. given: somebody else's boto3 session, which stays as it is; or None.

    Credentials of a given one are waited for, and renewed, as those of our own.
    """
    import boto3

    if given is None:
        return new_session()
    if type(given) is not boto3.Session:
        return given
    inner: Any = given._session

    def search(asked: Asked) -> Any:
        if inner._credentials is not None:
            return inner._credentials
        chain = inner.get_component("credential_provider")
        providers = getattr(chain, "providers", None)
        return chain.load_credentials() if providers is None else search_providers(providers, asked)

    ours, own = copy.copy(given), copy.copy(inner)
    ours._session = own
    try:
        own._credentials = RenewedChain(search, search).load_credentials()
    except CredentialsFailed as error:
        failure = error.failure("opening an AWS session")
    else:
        return ours
    raise failure


def botocore_session() -> Any:
    """Return the botocore session for `new_session`."""
    from botocore.session import Session

    class Untraced(Session):
        """Makes the clients that providers of credentials use, too."""

        def create_client(self, *given: Any, **named: Any) -> Any:
            return untraced(super().create_client(*given, **named))

    inner = Untraced()
    inner.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_utc)
    return inner


def _search_anew(profile: str | None, asked: Asked) -> Any:
    inner = botocore_session()
    if profile is not None:
        inner.set_config_variable("profile", profile)
    be_patient(inner)
    return search_providers(inner.get_component("credential_provider").providers, asked)


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


def refuse_missing_credentials(session: Any, *, patience: float = 0.0) -> None:
    """Raise SetupError unless boto3 finds credentials, locally or from a service.

    Those of a source that fails or hangs are waited for by whoever uses them. patience: seconds that are spent waiting
    here for the first ones, such as those of a command that asks a person; then TemporaryError.
    """
    try:
        found = calling(session.get_credentials, parses=False)()
        if isinstance(found, RenewedCredentials):
            if patience:
                found.wait(patience)
        elif found is not None:
            _refuse_missing_file(found)
    except aws_errors() as error:
        failure: PyKclError = sort_failure(error, doing="looking for AWS credentials")
    else:
        if found is not None:
            return
        failure = CredentialsFailed(None, "", is_none=True).failure("")
    # Outside the except block: what boto3 says may quote a line of a credentials file.
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle


def _refuse_missing_file(credentials: Any) -> None:
    """Obtain the credentials of somebody else's session. Raises CredentialsFailed where only somebody's help can end
    what is wrong.

    Whatever else goes wrong may pass. The first request of the worker meets it again, and waits for it to pass.
    """
    try:
        credentials.get_frozen_credentials()
        return
    except Exception as error:  # noqa: BLE001 - a source of credentials may raise anything
        log.debug("AWS credentials could not be obtained: %s", type(error).__name__)
        failure = CredentialsFailed.of(error, "", is_start=True)
    if failure.is_missing_file:
        raise failure


def _utc(value: Any) -> datetime:
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, tz=UTC)
    from botocore.utils import parse_timestamp

    parsed: datetime = parse_timestamp(value)
    return parsed
