"""Region, endpoint and credentials of each service, as the keys of a file say them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pykcl.aws.specified_clients import ClientSpec, CredentialsSource
from pykcl.compat.properties.credentials import credentials_sources
from pykcl.compat.properties.values import Given
from pykcl.compat.properties.verdicts import Verdict

Service = Literal["kinesis", "dynamodb", "cloudwatch"]
Sources = tuple[CredentialsSource, ...]
Said = tuple[Verdict, str]


class Services:
    """What is told of one service goes before what is told of all. Its methods give the row of the key they read."""

    def __init__(self) -> None:
        self.region: str | None = None
        self._own_regions: dict[Service, str] = {}
        self._endpoints: dict[Service, tuple[str, str]] = {}
        self._credentials: Sources = ()
        self._one_services_credentials: dict[Service, Sources] = {}
        self._own_credentials: dict[Service, Sources] = {}

    def region_of_all(self, value: Given) -> Said:
        self.region = value.region()
        return "honoured", ""

    def own_region(self, service: Service, value: Given) -> Said:
        self._own_regions[service] = value.region()
        return "mapped", f"region of {_NAMES[service]}"

    def endpoint(self, service: Service, value: Given) -> Said:
        url = value.endpoint()
        before, key = self._endpoints.setdefault(service, (url, value.key))
        if before != url:
            raise value.refuse(f"and {key} say different endpoints of {_NAMES[service]}. Keep one of them.")
        where = f"endpoint of {_NAMES[service]}"
        return ("honoured", where) if url == value.text else ("mapped", f"{where}, over https")

    def credentials_of_all(self, value: Given) -> Said:
        self._credentials = credentials_sources(value)
        return "mapped", _told(self._credentials)

    def credentials_of(self, service: Service, value: Given) -> Said:
        """Of a key such as AwsCredentialsProviderDynamoDB."""
        self._one_services_credentials[service] = credentials_sources(value)
        return "mapped", f"{_told(self._one_services_credentials[service])}, for {_NAMES[service]}"

    def own_credentials(self, service: Service, value: Given) -> Said:
        self._own_credentials[service] = credentials_sources(value)
        return "mapped", f"{_told(self._own_credentials[service])}, for {_NAMES[service]}"

    def specs(self, *, metrics: bool) -> Mapping[str, ClientSpec]:
        """metrics: whether they go to CloudWatch; else it is not among the services."""
        return {service: self.spec(service) for service in _NAMES if metrics or service != "cloudwatch"}

    def spec(self, service: Service) -> ClientSpec:
        of_all = self._one_services_credentials.get(service, self._credentials)
        endpoint = self._endpoints.get(service)
        return ClientSpec(
            region=self._own_regions.get(service, self.region),
            endpoint=endpoint[0] if endpoint else None,
            credentials=self._own_credentials.get(service, of_all),
        )


_NAMES: Mapping[Service, str] = {"kinesis": "Kinesis", "dynamodb": "DynamoDB", "cloudwatch": "CloudWatch"}


def _told(sources: Sources) -> str:
    return "boto3: " + ", else ".join(map(str, sources))
