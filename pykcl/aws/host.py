"""`metrics.host_cpu.HostSource` over this host: its files, the endpoint of an ECS task, the metadata service of EC2."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

from pykcl.aws.clients import botocore_session
from pykcl.aws.errors import aws_errors
from pykcl.runtime import Runtime

_WAIT: Final = 1
"""Seconds for a connection, and for each piece of an answer: both services are on this host."""
_LONGEST: Final = 2.0
"""Seconds for a whole answer."""
_MOST_BYTES: Final = 1024 * 1024


class SystemHost:
    """Contacts nothing before it is asked for it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def environment(self, name: str) -> str:
        return os.environ.get(name, "")

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read(self, path: str) -> str:
        """Raises OSError."""
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES).decode("ascii", "replace")

    def get(self, url: str) -> str:
        """See `HostSource`. Without a proxy, and without following the answer to another host."""
        from http.client import HTTPConnection, HTTPException

        address = urlsplit(url)
        if address.scheme != "http" or not address.hostname:
            raise ValueError("its address is not of the form http://HOST/PATH")
        connection = HTTPConnection(address.hostname, address.port, timeout=_WAIT)
        try:
            connection.request("GET", address.path or "/")
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"it answered with status {answer.status}")
            until = self._runtime.monotonic() + _LONGEST
            body = bytearray()
            while piece := answer.read1(65_536):
                body += piece
                if len(body) > _MOST_BYTES or self._runtime.monotonic() > until:
                    raise ValueError("its answer is too long or too slow")
        except HTTPException as error:
            raise ValueError(f"its answer is not HTTP ({type(error).__name__})") from None
        finally:
            connection.close()
        return body.decode("utf-8", "replace")

    def is_ec2(self) -> bool:
        """See `HostSource`. AWS_EC2_METADATA_DISABLED and the endpoint of the AWS configuration count.

        One attempt of a second each for token and answer, whatever time-outs the configuration has: they are for
        credentials, for which a start may wait.
        """
        from botocore.utils import InstanceMetadataRegionFetcher, resolve_imds_endpoint_mode

        try:
            session = botocore_session()
            names = ("ec2_metadata_service_endpoint", "ec2_metadata_v1_disabled")
            service = {name: session.get_config_variable(name) for name in names}
            service["ec2_metadata_service_endpoint_mode"] = resolve_imds_endpoint_mode(session)
            fetcher = InstanceMetadataRegionFetcher(
                timeout=_WAIT, num_attempts=1, user_agent=session.user_agent(), config=service
            )
            return bool(fetcher.retrieve_region())
        except aws_errors():
            return False
