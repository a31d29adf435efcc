"""boto3 clients of operators: configured by flags, by a worker's file, else as boto3 finds them."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pykcl.aws.clients import client_config, create_client, new_session, refuse_missing_credentials
from pykcl.aws.credentials import ClientSpec, open_session
from pykcl.errors import ConfigError

CONNECTIONS = 32
_CONNECT_TIMEOUT = 5.0
_READ_TIMEOUT = 15.0
_LEASE_TABLE, _LEASE_STORE = "dynamodb/1", "lease store"
_CREDENTIALS_PATIENCE = 60.0
"""A command that prints credentials may ask a person for a code before."""


@dataclass(frozen=True)
class OperatorClients:
    """boto3 clients, each opened once. Used by one thread; the clients themselves are thread-safe.

    profile, region, endpoint (URL, for every service): None for boto3's default. specs: of "kinesis" and "dynamodb" in
    a worker's file; profile, region and endpoint override them. fallback_region: used if neither region nor specs name
    one. hosts: that requests have gone to since `note_hosts`, each with the operations ("kinesis.ListShards").
    """

    profile: str | None = None
    region: str | None = None
    endpoint: str | None = None
    specs: Mapping[str, ClientSpec] = field(default_factory=dict, repr=False)
    fallback_region: str | None = None
    hosts: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False)
    _sessions: dict[object, Any] = field(default_factory=dict, init=False, repr=False)
    _clients: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def client(self, service: str, *, attempts: int = 1) -> Any:
        """Return a boto3 client of "dynamodb", "kinesis", "cloudwatch", "sts" … attempts: per call.

        pykcl's own adapters need one attempt, as they retry by themselves. Raises ConfigError without a
        region, SetupError without credentials, TemporaryError if they could not be fetched.
        """
        key = f"{service}/{attempts}"
        if key not in self._clients:
            self._clients[key] = self._open(service, attempts)
        return self._clients[key]

    def use_lease_store(self, store: Any) -> None:
        """Use this lease table for that of DynamoDB from now on."""
        self._clients[_LEASE_TABLE] = self._clients[_LEASE_STORE] = store

    @property
    def has_lease_store(self) -> bool:
        """True where the lease table is not in DynamoDB."""
        return _LEASE_STORE in self._clients

    def note_hosts(self, client: Any) -> None:
        """Note from now on where the requests of this client go."""
        client.meta.events.register_last("before-send", self._note, unique_id="pykcl-hosts")

    def _note(self, request: Any, event_name: str, **_: object) -> None:
        host = urlsplit(str(request.url)).netloc.rpartition("@")[2]
        self.hosts.setdefault(host, set()).add(event_name.partition(".")[2])

    def session(self, service: str) -> Any:
        """Return the boto3 session of the clients of this service. Raises SetupError, TemporaryError."""
        spec = self._spec(service)
        return self._session(spec, self._named_region(spec))

    def region_of(self, service: str = "dynamodb") -> str:
        """Return the region of a client. Raises ConfigError without one."""
        return str(self.client(service).meta.region_name)

    def known_region(self, service: str = "dynamodb") -> str | None:
        """Return the region from flags, files, the environment and the profile, if any, in boto3's order.

        It does not load boto3, which takes a while.
        """
        return (
            self._named_region(self._spec(service))
            or os.environ.get("AWS_DEFAULT_REGION")
            or _region_of_profile(self.profile or os.environ.get("AWS_PROFILE") or "default")
            or os.environ.get("AWS_REGION")
        )

    def _open(self, service: str, attempts: int) -> Any:
        spec = self._spec(service)
        region = self._named_region(spec)
        session = self._session(spec, region)
        region = region or session.region_name or os.environ.get("AWS_REGION")
        if not region:
            raise ConfigError(
                f"No AWS region for {service}. Checked --region, the stream's ARN, the file of --config or "
                "--properties, AWS_DEFAULT_REGION, the AWS profile and AWS_REGION. Do: --region NAME."
            ).about("E01")
        config = client_config(
            connect_timeout=_CONNECT_TIMEOUT, read_timeout=_READ_TIMEOUT, connections=CONNECTIONS
        )
        if attempts > 1:
            from botocore.config import Config as BotocoreConfig

            config = config.merge(
                BotocoreConfig(retries={"total_max_attempts": attempts, "mode": "standard"})
            )
        return create_client(
            session, service, region_name=region, endpoint_url=self.endpoint or spec.endpoint, config=config
        )

    def _spec(self, service: str) -> ClientSpec:
        return self.specs.get(service, ClientSpec())

    def _named_region(self, spec: ClientSpec) -> str | None:
        return self.region or spec.region or self.fallback_region

    def _session(self, spec: ClientSpec, region: str | None) -> Any:
        if self.profile is None and spec.credentials:
            key: object = (spec.credentials, region)
            if key not in self._sessions:
                self._sessions[key] = open_session(spec.credentials, region)
        else:
            key = self.profile
            if key not in self._sessions:
                session = new_session(profile=self.profile)
                refuse_missing_credentials(session, patience=_CREDENTIALS_PATIENCE)
                self._sessions[key] = session
        return self._sessions[key]


def _region_of_profile(profile: str) -> str | None:
    file = configparser.RawConfigParser(strict=False)
    try:
        path = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
        file.read_string(path.read_text("utf-8"))
    except (OSError, ValueError, RuntimeError, configparser.Error):
        return None
    section = profile if profile == "default" else f"profile {profile}"
    return file.get(section, "region", fallback=None) or None
