"""boto3 clients of operators: configured by flags, by a worker's file, else as boto3 finds them."""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pykcl.aws.clients import client_config, create_client, new_session, refuse_missing_credentials
from pykcl.aws.credentials import ClientSpec, open_session
from pykcl.aws.errors import MALFORMED, OPERATOR, aws_errors, calling, error_code, sort_failure, unreadable
from pykcl.errors import ConfigError, PyKclError

CONNECTIONS = 32
_CONNECT_TIMEOUT = 5.0
_READ_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Access:
    """The AWS account and region. profile, region, endpoint (URL, for every service): None for boto3's default.

    specs: of "kinesis" and "dynamodb" in a worker's file; profile, region and endpoint override them.
    fallback_region: used if neither region nor specs name one.
    """

    profile: str | None = None
    region: str | None = None
    endpoint: str | None = None
    specs: Mapping[str, ClientSpec] = field(default_factory=dict, repr=False)
    fallback_region: str | None = None


class OperatorClients:
    """Opens each client once. Used by one thread; the clients themselves are thread-safe."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._sessions: dict[object, Any] = {}
        self._clients: dict[str, Any] = {}

    def client(self, service: str, *, attempts: int = 1) -> Any:
        """Return a boto3 client of "dynamodb", "kinesis", "cloudwatch", "sts" … attempts: per call.

        pykcl's own adapters need one attempt, as they retry by themselves. Raises ConfigError without a
        region, SetupError without credentials, TemporaryError if they could not be fetched.
        """
        key = f"{service}/{attempts}"
        if key not in self._clients:
            self._clients[key] = self._open(service, attempts)
        return self._clients[key]

    def session(self, service: str) -> Any:
        """Return the boto3 session of the clients of this service. Raises SetupError, TemporaryError."""
        spec = self.access.specs.get(service, ClientSpec())
        return self._session(spec, self.access.region or spec.region or self.access.fallback_region)

    def region(self, service: str = "dynamodb") -> str:
        """Return the region of a client. Raises ConfigError without one."""
        return str(self.client(service).meta.region_name)

    def known_region(self, service: str = "dynamodb") -> str | None:
        """Return the region from flags, files, the environment and the profile, if any, in boto3's order.

        It does not load boto3, which takes a while.
        """
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


def answer_of(
    doing: str,
    method: Callable[..., Mapping[str, Any]],
    request: Mapping[str, Any],
    *,
    refusal: Callable[[str | None, PyKclError], PyKclError] = lambda _, failure: failure,
) -> Mapping[str, Any]:
    """Call a method of a boto3 client once, and return the answer. doing: the beginning of the text of an error.

    refusal: called with AWS' code, if any, and the error to raise; returns the one that is raised instead.
    """
    try:
        return calling(method)(**request)
    except aws_errors() as error:
        failure = refusal(error_code(error), sort_failure(error, doing=doing, who=OPERATOR))
    except MALFORMED as error:
        failure = unreadable(error, doing=doing)
    # Outside the except blocks: botocore's errors may quote the request, and a traceback prints the whole chain.
    raise failure


def _region_of_profile(profile: str) -> str | None:
    file = configparser.RawConfigParser(strict=False)
    try:
        path = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
        file.read_string(path.read_text("utf-8"))
    except (OSError, ValueError, RuntimeError, configparser.Error):
        return None
    section = profile if profile == "default" else f"profile {profile}"
    return file.get(section, "region", fallback=None) or None
