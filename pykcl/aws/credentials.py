"""boto3 clients whose region, endpoint and credentials are given per service, also as tables of a TOML file."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pykcl.aws.clients import (
    ALL_SERVICES,
    SERVICES,
    botocore_session,
    client_config,
    connections_for,
    create_client,
    new_session,
    open_client,
)
from pykcl.aws.errors import MALFORMED, CredentialsFailed, aws_errors, calling, sort_failure
from pykcl.aws.renewed_credentials import (
    Asked,
    RenewedChain,
    RenewedCredentials,
    Search,
    search_providers,
)
from pykcl.config import Config
from pykcl.errors import ConfigError, PyKclError, SetupError, TemporaryError
from pykcl.runtime import SystemRuntime

SourceKind = Literal[
    "default", "profile", "environment", "container", "instance", "web identity", "assume role"
]

log = logging.getLogger("pykcl.aws")

_ASSUMED_ROLE = re.compile(r"arn:([a-z0-9-]+):sts::([0-9]{12}):assumed-role/([^/]+)/")
_METHODS: Mapping[str, frozenset[str]] = {
    "profile": frozenset(
        {"assume-role", "assume-role-with-web-identity", "sso", "login", "shared-credentials-file"}
        | {"custom-process", "config-file"}
    ),
    "environment": frozenset({"env"}),
    "container": frozenset({"container-role"}),
    "instance": frozenset({"iam-role"}),
    "web identity": frozenset({"assume-role-with-web-identity"}),
}
"""Kind of source -> botocore's providers of that kind, by their METHOD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsSource:
    """One place credentials come from.

    profile: of "profile", by default AWS_PROFILE, else "default". All others: of "assume role"; sts_endpoint (URL) and
    sts_region of the STS that is asked are by default boto3's.
    """

    kind: SourceKind
    profile: str | None = None
    role_arn: str | None = None
    session_name: str | None = None
    external_id: str | None = field(default=None, repr=False)
    sts_endpoint: str | None = None
    sts_region: str | None = None

    def __str__(self) -> str:
        if self.kind == "assume role":
            return f"role {self.role_arn}"
        if self.kind == "profile":
            return f"profile {self.profile}" if self.profile else "the profile"
        return "boto3's default chain" if self.kind == "default" else f"the {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    """One service. credentials: tried in order, the first that has any is used; none: boto3's default chain."""

    region: str | None = None
    endpoint: str | None = None
    credentials: tuple[CredentialsSource, ...] = ()

    def is_found_by_boto3(self, region: str | None) -> bool:
        """Return whether a client that boto3 creates by itself for this region is the same."""
        default = (CredentialsSource(kind="default"),)
        return not self.endpoint and self.credentials in ((), default) and self.region in (None, region)


def open_specified_clients(config: Config, specs: Mapping[str, ClientSpec]) -> dict[str, Any]:
    """Clients for `Worker(clients=…)`, by service: "kinesis", "dynamodb", and "cloudwatch" where metrics go there.

    Asks for the credentials now (files, STS, the service of the container or instance), so that what is wrong with them
    is reported at the start. Where a source fails for the moment and no other has any, the clients wait for it, as a
    worker does. Raises ConfigError without a region, SetupError without credentials.
    """
    unknown = sorted(specs.keys() - set(ALL_SERVICES))
    if unknown:
        raise ConfigError(
            f"There are no clients for {', '.join(unknown)}: only for {', '.join(ALL_SERVICES)}."
        )
    sessions: dict[object, Any] = {}
    clients = {}
    for service in ALL_SERVICES if "cloudwatch" in config.metrics_sinks else SERVICES:
        spec = specs.get(service, ClientSpec())
        region = spec.region or config.effective_region
        wanted = (spec.credentials, region)
        if wanted not in sessions:
            sessions[wanted] = open_session(spec.credentials, region)
        session = sessions[wanted]
        region = region or session.region_name or os.environ.get("AWS_REGION")
        if not region:
            raise ConfigError(
                f"No AWS region for {service}. Do: set regionName (or region), give the stream as ARN, "
                "or set AWS_REGION."
            ).about("E01")
        clients[service] = open_client(
            session,
            service,
            config,
            region=region,
            endpoint=spec.endpoint,
            connections=connections_for(config),
        )
    return clients


def identity_arn(config: Config, spec: ClientSpec | None) -> str:
    """ARN of the role, or the user, whose credentials the client of `spec` has; "" if STS does not say.

    spec: None: boto3 finds everything. One request of at most a few seconds. The path of a role is not in the answer.
    """
    spec = spec or ClientSpec()
    region = spec.region or config.effective_region
    expected: tuple[type[Exception], ...] = (*aws_errors(), PyKclError, LookupError)
    try:
        session = open_session(spec.credentials, region)
        sts = create_client(
            session,
            "sts",
            region_name=region or session.region_name or os.environ.get("AWS_REGION"),
            endpoint_url=spec.endpoint,
            config=client_config(connect_timeout=2.0, read_timeout=3.0, connections=1),
        )
        arn = str(calling(sts.get_caller_identity)()["Arn"])
    except expected as error:
        log.info(
            "the identity of the worker is not known, and left out of events cause=%s", type(error).__name__
        )
        return ""
    found = _ASSUMED_ROLE.match(arn)
    return f"arn:{found[1]}:iam::{found[2]}:role/{found[3]}" if found else arn


def open_session(sources: Sequence[CredentialsSource], region: str | None) -> Any:
    """A session with the credentials of the first source that has any. region: of who wants them.

    Where one source fails or hangs for the moment and no other has any, all are asked again by whoever uses the
    session. Raises SetupError without credentials.
    """
    sources = tuple(sources) or (CredentialsSource(kind="default"),)
    failure = None
    try:
        return _first_session(sources, region)
    except CredentialsFailed as error:
        failure = error.again()
    if failure.is_final:
        raise failure.failure("")

    def search(_: Asked) -> Any:
        return _first_session(sources, region).get_credentials()

    profile = next((source.profile for source in sources if source.kind == "profile"), None)
    return _session_with(RenewedCredentials(search, search, SystemRuntime(), failure), profile)


def _first_session(sources: Sequence[CredentialsSource], region: str | None) -> Any:
    """Raises CredentialsFailed."""
    troubles: list[tuple[CredentialsSource, str]] = []
    is_temporary = False
    for source in sources:
        try:
            session = _session_of(source, region)
        except TemporaryError as error:
            is_temporary = True
            troubles.append((source, str(error)))
        except (SetupError, ConfigError) as error:
            troubles.append((source, str(error)))
        else:
            if session is not None:
                return session
            troubles.append((source, "has none"))
    reasons = "; ".join(f"{source}: {trouble.rstrip('.')}" for source, trouble in troubles)
    text = f"No AWS credentials. Asked in this order: {reasons}. Provide one of them, or name another provider class."
    raise CredentialsFailed(None, text, is_final=not is_temporary, text=text)


def _session_of(source: CredentialsSource, region: str | None) -> Any:
    """A session with the credentials of `source` only; None where it has none. Raises PyKclError."""
    doing = "getting AWS credentials"
    failure: PyKclError
    try:
        if source.kind == "default":
            session = new_session()
        elif source.kind == "assume role":
            assume = partial(_assumed, source, region)
            session = _session_with(_obtained(assume))
        else:
            session = _session_of_kind(source)
        found = session.get_credentials()
        if found is not None:
            found.get_frozen_credentials()
        return None if found is None else session
    except PyKclError:
        raise
    except aws_errors() as error:
        failure = sort_failure(error, doing=doing)
    except (*MALFORMED, OSError) as error:
        failure = SetupError(
            f"{doing} failed ({type(error).__name__}). Check the file or the service."
        ).about("E04")
    # Outside the except block: what boto3 says may quote a line of a credentials file.
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle


class _Found:
    """Takes the place of botocore's chain of providers."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def load_credentials(self) -> Any:
        return self._credentials


def _session_with(credentials: Any, profile: str | None = None) -> Any:
    inner = botocore_session()
    inner.register_component("credential_provider", _Found(credentials))
    return new_session(inner, profile=profile)


def _obtained(search: Search) -> RenewedCredentials | None:
    return RenewedChain(search, search).load_credentials()


def _session_of_kind(source: CredentialsSource) -> Any:
    """Return a session with the credentials of botocore's first provider of this kind; it has none where none has."""
    profile = None
    if source.kind == "profile":
        # By name, also where it is the default one: what the environment holds besides is then ignored.
        profile = source.profile or os.environ.get("AWS_PROFILE") or "default"

    def search(asked: Asked) -> Any:
        inner = botocore_session()
        new_session(inner, profile=profile)
        providers = inner.get_component("credential_provider").providers
        methods = _METHODS[source.kind]
        return search_providers((one for one in providers if one.METHOD in methods), asked)

    return _session_with(_obtained(search), profile)


def _assumed(source: CredentialsSource, region: str | None, asked: Asked) -> Any:
    """Credentials of a role, asked for with those of boto3's default chain and renewed in time."""
    from botocore.credentials import RefreshableCredentials

    request = {"RoleArn": source.role_arn, "RoleSessionName": source.session_name}
    if source.external_id:
        request["ExternalId"] = source.external_id
    asking = new_session()
    sts_region = source.sts_region or asking.region_name or os.environ.get("AWS_REGION") or region
    sts = create_client(asking, "sts", region_name=sts_region, endpoint_url=source.sts_endpoint)
    asked.method = "assume-role"

    def refresh() -> dict[str, str]:
        # By `calling`: the credentials that ask may have been renewed meanwhile.
        found = calling(sts.assume_role)(**request)["Credentials"]
        return {
            "access_key": found["AccessKeyId"],
            "secret_key": found["SecretAccessKey"],
            "token": found["SessionToken"],
            "expiry_time": found["Expiration"].isoformat(),
        }

    # Now, not at the first request: another source of the list has its turn if this one does not work.
    return RefreshableCredentials.create_from_metadata(refresh(), refresh, "assume-role")


_KINDS: tuple[str, ...] = get_args(SourceKind)
_SOURCE = tuple(field.name for field in fields(CredentialsSource))
_OF_A_ROLE = ("role_arn", "session_name", "external_id", "sts_endpoint", "sts_region")


def specs_of(tables: Mapping[str, Any], source: str) -> dict[str, ClientSpec]:
    """Return the specifications in the tables below `clients`, by service. source: name of the file.

    Raises ConfigError with file and key: an unknown name or kind, a value that is no text, a source that lacks what its
    kind needs or has what it does not take. Values are never quoted.
    """
    return {service: _spec(table, f"clients.{service}", source) for service, table in _named(tables, source)}


def tables_of(specs: Mapping[str, ClientSpec]) -> dict[str, dict[str, Any]]:
    """The tables that `specs_of` reads as these specs; what boto3 finds by itself is left out."""
    found: dict[str, dict[str, Any]] = {}
    for service, spec in specs.items():
        table: dict[str, Any] = {}
        if spec.region:
            table["region"] = spec.region
        if spec.endpoint:
            table["endpoint"] = spec.endpoint
        if spec.credentials not in ((), (CredentialsSource(kind="default"),)):
            table["credentials"] = [_table_of(one) for one in spec.credentials]
        if table:
            found[service] = table
    return found


def _table_of(source: CredentialsSource) -> dict[str, str]:
    values = {name: getattr(source, name) for name in _SOURCE}
    return {name: value for name, value in values.items() if value is not None}


def _named(tables: Mapping[str, Any], source: str) -> list[tuple[str, Mapping[str, Any]]]:
    for service, table in tables.items():
        _refuse_unknown(service, ALL_SERVICES, f"clients.{service}", source)
        if not isinstance(table, Mapping):
            raise ConfigError(f"{source}: clients.{service} is no table. Write [clients.{service}].")
    return list(tables.items())


def _spec(table: Mapping[str, Any], place: str, source: str) -> ClientSpec:
    for name in table:
        _refuse_unknown(name, ("region", "endpoint", "credentials"), f"{place}.{name}", source)
    listed = table.get("credentials", [])
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
        raise ConfigError(
            f"{source}: {place}.credentials is a list of tables, such as [[{place}.credentials]]."
        )
    return ClientSpec(
        region=_text(table, "region", place, source),
        endpoint=_url(table, "endpoint", place, source),
        credentials=tuple(_source(one, f"{place}.credentials", source) for one in listed),
    )


def _source(table: Mapping[str, Any], place: str, source: str) -> CredentialsSource:
    for name in table:
        _refuse_unknown(name, _SOURCE, f"{place}.{name}", source)
    kind = _text(table, "kind", place, source)
    if kind not in _KINDS:
        near = difflib.get_close_matches(kind or "", _KINDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{source}: {place}.kind is none of {', '.join(_KINDS)}.{hint}")
    takes = {"profile": ("profile",), "assume role": _OF_A_ROLE}.get(kind, ())
    for name in table:
        if name != "kind" and name not in takes:
            raise ConfigError(
                f"{source}: {place}.{name} has no meaning with kind {kind!r}. Drop one of them."
            )
    for name in ("role_arn", "session_name") if kind == "assume role" else ():
        if name not in table:
            raise ConfigError(f"{source}: {place} has kind {kind!r} and no {name}. Add it.")
    texts = {name: _text(table, name, place, source) for name in _SOURCE if name != "sts_endpoint"}
    return CredentialsSource(**{**texts, "sts_endpoint": _url(table, "sts_endpoint", place, source)})  # type: ignore[arg-type]


def _text(table: Mapping[str, Any], name: str, place: str, source: str) -> str | None:
    value = table.get(name)
    if name in table and (not isinstance(value, str) or not value):
        raise ConfigError(f"{source}: {place}.{name} is text in quotes, and not empty.")
    return value


def _url(table: Mapping[str, Any], name: str, place: str, source: str) -> str | None:
    url = _text(table, name, place, source)
    try:
        parts = urlsplit(url or "https://none")
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(f"{source}: {place}.{name} is no http or https URL.")
    return url


def _refuse_unknown(name: str, known: Iterable[str], place: str, source: str) -> None:
    known = tuple(known)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
        raise ConfigError(f"{source}: {place} is nothing that is read here. {hint}")
