"""boto3 clients for whoever looks at a fleet from outside: by flags, by a worker's file, else as boto3 finds them."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pykcl.aws.clients import client_config, create_client, new_session, refuse_missing_credentials
from pykcl.aws.credentials import ClientSpec, open_session
from pykcl.errors import ConfigError

CONNECTIONS = 32
_CONNECT_TIMEOUT = 5.0
_READ_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Access:
    """Which AWS. profile, region, endpoint (URL, for every service): None is what boto3 finds.

    specs: what a worker's file says of "kinesis" and "dynamodb"; profile, region and endpoint come before it.
    fallback_region: where neither region nor specs name one.
    """

    profile: str | None = None
    region: str | None = None
    endpoint: str | None = None
    specs: Mapping[str, ClientSpec] = field(default_factory=dict, repr=False)
    fallback_region: str | None = None


class OperatorClients:
    """Opens each client once. Not for several threads; the clients themselves are."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._sessions: dict[object, Any] = {}
        self._clients: dict[str, Any] = {}

    def client(self, service: str, *, attempts: int = 1) -> Any:
        """A boto3 client of "dynamodb", "kinesis", "cloudwatch", "sts" … attempts: per call.

        One attempt for what pykcl's own adapters are given: they retry by themselves. Raises ConfigError without a
        region, SetupError without credentials, TemporaryError where they could not be asked for.
        """
        key = f"{service}/{attempts}"
        if key not in self._clients:
            self._clients[key] = self._open(service, attempts)
        return self._clients[key]

    def session(self, service: str) -> Any:
        """The boto3 session that the clients of this service are of. Raises SetupError, TemporaryError."""
        spec = self.access.specs.get(service, ClientSpec())
        return self._session(spec, self.access.region or spec.region or self.access.fallback_region)

    def region(self, service: str = "dynamodb") -> str:
        """Raises ConfigError without one."""
        return str(self.client(service).meta.region_name)

    def known_region(self, service: str = "dynamodb") -> str | None:
        """The region of the clients, as far as flags, files, the environment and the profile say. Without boto3, whose
        order this is, because that takes a while to load."""
        access, spec = self.access, self.access.specs.get(service, ClientSpec())
        return (
            access.region
            or spec.region
            or access.fallback_region
            or os.environ.get("AWS_DEFAULT_REGION")
            or _region_of_profile(access.profile or os.environ.get("AWS_PROFILE") or "default")
            or os.environ.get("AWS_REGION")
        )

    def _open(self, service: str, attempts: int) -> Any:
        access, spec = self.access, self.access.specs.get(service, ClientSpec())
        region = access.region or spec.region or access.fallback_region
        session = self._session(spec, region)
        region = region or session.region_name or os.environ.get("AWS_REGION")
        if not region:
            raise ConfigError(
                f"No AWS region for {service}. Looked at --region, the stream's ARN, the file of --config or "
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
            session, service, region_name=region, endpoint_url=access.endpoint or spec.endpoint, config=config
        )

    def _session(self, spec: ClientSpec, region: str | None) -> Any:
        if self.access.profile is None and spec.credentials:
            key: object = (spec.credentials, region)
            if key not in self._sessions:
                self._sessions[key] = open_session(spec.credentials, region)
        else:
            key = self.access.profile
            if key not in self._sessions:
                session = new_session(profile=self.access.profile)
                refuse_missing_credentials(session)
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
