"""Region, endpoint and credentials of each service, with Java's credentials providers converted for boto3.

Syntax, from Java KCL 3.1.3 `multilang/config/AwsCredentialsProviderPropertyValueDecoder` and `NestedPropertyKey`: class
names, short or fully qualified, in a comma-separated list that is tried in order; arguments after `|`; for an assumed
role further arguments as NAME=VALUE.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Literal

from pykcl.aws.credentials import ClientSpec, CredentialsSource, SourceKind
from pykcl.compat.properties.keys import HIDDEN, Meaning
from pykcl.compat.properties.parsing import Given

_OWN_PACKAGES = ("software.amazon.", "com.amazonaws.")
_CLASS_NAME = re.compile(r"[A-Za-z_][\w.$]{0,199}\Z")
_CLASS_WORDS = re.compile(r"rovider|hain|rapper|redential")
_ROLE_ARN = re.compile(r"arn:[a-z0-9-]+:iam::[0-9]{12}:role/[\w+=,.@/-]+\Z")
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}\Z")

_PLAIN: dict[str, tuple[SourceKind, ...]] = {
    "DefaultCredentialsProvider": ("default",),
    "DefaultAWSCredentialsProviderChain": ("default",),
    "EnvironmentVariableCredentialsProvider": ("environment",),
    "ContainerCredentialsProvider": ("container",),
    "EC2ContainerCredentialsProviderWrapper": ("container", "instance"),
    "InstanceProfileCredentialsProvider": ("instance",),
    "WebIdentityTokenFileCredentialsProvider": ("web identity",),
    "StsWebIdentityTokenFileCredentialsProvider": ("web identity",),
    "WebIdentityTokenCredentialsProvider": ("web identity",),
}
_PROFILE = ("ProfileCredentialsProvider",)
_ROLE = (
    "StsAssumeRoleCredentialsProvider",
    "KclStsAssumeRoleCredentialsProvider",
    "STSAssumeRoleSessionCredentialsProvider",
    "KclSTSAssumeRoleSessionCredentialsProvider",
)
_BY_A_PROFILE = "ProfileCredentialsProvider|NAME, of a profile in ~/.aws/config that says the same"
_INSTEAD = {
    "webidentity": "WebIdentityTokenFileCredentialsProvider; the role and the token's file are in AWS_ROLE_ARN and "
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "saml": _BY_A_PROFILE,
    "getsessiontoken": _BY_A_PROFILE,
    "federationtoken": _BY_A_PROFILE,
    "processcredentials": _BY_A_PROFILE,
    "ssocredentials": _BY_A_PROFILE,
    "logincredentials": _BY_A_PROFILE,
    "static": "EnvironmentVariableCredentialsProvider",
    "propert": "EnvironmentVariableCredentialsProvider",
    "container": "ContainerCredentialsProvider",
}
"""Part of the name of a class of the AWS SDKs -> what to write: the class with the most similar name does something
else."""
KNOWN = (*_PLAIN, *_PROFILE, *_ROLE)
"""Short class names, of the AWS SDKs 1 and 2 and of KCL's own."""


def credentials_sources(given: Given) -> tuple[CredentialsSource, ...]:
    """Return the sources in order. Raises ConfigError for an unknown class or invalid arguments."""
    found: list[CredentialsSource] = []
    for element in filter(None, (part.strip() for part in given.text.split(","))):
        name, *arguments = (part.strip() for part in element.split("|"))
        found += _sources(given, _short_name(given, name), arguments)
    if not found:
        raise given.refuse("names no credentials provider. Write DefaultCredentialsProvider.")
    return tuple(found)


def shown_providers(text: str) -> str:
    """Return the class names without their arguments, which may hold an external id."""
    names = []
    for element in filter(None, (part.strip() for part in text.split(","))):
        name, bar, _ = element.partition("|")
        short = name.strip().rpartition(".")[2]
        names.append((short if short in KNOWN else HIDDEN) + (bar and "|" + HIDDEN))
    return ", ".join(names)


def _sources(given: Given, name: str, arguments: list[str]) -> list[CredentialsSource]:
    if name in _ROLE:
        return [_role(given, name, arguments)]
    if name in _PROFILE:
        if len(arguments) > 1:
            raise given.refuse(
                f"gives {name} more than a profile name. Write {name}|PROFILE; a file other than "
                "~/.aws/credentials is named by AWS_SHARED_CREDENTIALS_FILE."
            )
        profile = arguments[0] if arguments else ""
        return [CredentialsSource(kind="profile", profile=profile or None)]
    if any(arguments):
        raise given.refuse(f"gives arguments to {name}, which takes none. Remove everything after the |.")
    return [CredentialsSource(kind=kind) for kind in _PLAIN[name]]


def _short_name(given: Given, name: str) -> str:
    package, _, short = name.rpartition(".")
    if short in KNOWN and (not package or name.startswith(_OWN_PACKAGES)):
        return short
    # Print it only if it resembles a class name: the value may be an access key.
    is_class = bool(_CLASS_NAME.match(name) and _CLASS_WORDS.search(name))
    near = next((_INSTEAD[part] for part in _INSTEAD if part in short.lower()), None)
    hint = f" Write {near}." if near else ""
    if not near and (similar := difflib.get_close_matches(short, KNOWN, n=1)):
        hint = f" Did you mean {similar[0]}?"
    raise given.refuse(
        f"names {name if is_class else 'something'} that is not a credentials provider pykcl knows."
        + hint
        + f" Known: {', '.join(KNOWN)}. Custom Java classes cannot be loaded: use one of these, or a profile with "
        "credential_process in ~/.aws/config."
    )


def _role(given: Given, name: str, arguments: list[str]) -> CredentialsSource:
    if len(arguments) < 2:
        raise given.refuse(f"gives {name} no role and session name. Write {name}|ROLE_ARN|SESSION_NAME.")
    arn, session, *further = arguments
    if not _ROLE_ARN.match(arn):
        raise given.refuse(
            f"gives {name} something other than a role ARN. Write arn:aws:iam::ACCOUNT:role/NAME."
        )
    if not _SESSION_NAME.match(session):
        raise given.refuse(f"gives {name} no valid session name. Write 2 to 64 letters, digits and _+=,.@- .")
    options: dict[str, str] = {}
    for argument in further:
        option, equals, value = argument.partition("=")
        read = _OPTIONS.get(option) if equals else None
        if read is None or not value:
            raise given.refuse(
                f"gives {name} an argument that is none of {', '.join(f'{known}=…' for known in _OPTIONS)}."
            )
        options.update(read(given, value))
    return CredentialsSource(
        kind="assume role",
        role_arn=arn,
        session_name=session,
        external_id=options.get("external_id"),
        sts_endpoint=options.get("sts_endpoint"),
        sts_region=options.get("sts_region"),
    )


def _endpoint(given: Given, value: str) -> dict[str, str]:
    url, caret, region = value.partition("^")
    if not caret or not url or not region:
        raise given.refuse(
            "has endpoint= without URL^REGION. Write endpoint=https://sts.eu-west-1.amazonaws.com^eu-west-1."
        )
    return {
        "sts_endpoint": given.with_text(url).endpoint(),
        "sts_region": given.with_text(region).region(),
    }


_OPTIONS: dict[str, Callable[[Given, str], dict[str, str]]] = {
    "endpoint": _endpoint,
    "endpointRegion": lambda given, value: {"sts_region": given.with_text(value).region()},
    "externalId": lambda _, value: {"external_id": value},
}
"""Readers of the further arguments of an assumed role."""


Service = Literal["kinesis", "dynamodb", "cloudwatch"]
Sources = tuple[CredentialsSource, ...]


class Services:
    """Settings of the clients; those of one service override those of all. Methods return the meaning of their key."""

    def __init__(self) -> None:
        self.region: str | None = None
        self._own_regions: dict[Service, str] = {}
        self._endpoints: dict[Service, tuple[str, str]] = {}
        self._credentials: Sources = ()
        self._one_services_credentials: dict[Service, Sources] = {}
        self._own_credentials: dict[Service, Sources] = {}

    def region_of_all(self, value: Given) -> Meaning:
        self.region = value.region()
        return "honoured", ""

    def own_region(self, service: Service, value: Given) -> Meaning:
        self._own_regions[service] = value.region()
        return "mapped", f"region of {_NAMES[service]}"

    def endpoint(self, service: Service, value: Given) -> Meaning:
        url = value.endpoint()
        before, key = self._endpoints.setdefault(service, (url, value.key))
        if before != url:
            raise value.refuse(f"and {key} set different endpoints of {_NAMES[service]}. Keep one of them.")
        where = f"endpoint of {_NAMES[service]}"
        return ("honoured", where) if url == value.text else ("mapped", f"{where}, over https")

    def credentials_of_all(self, value: Given) -> Meaning:
        self._credentials = credentials_sources(value)
        return "mapped", _described(self._credentials)

    def credentials_of(self, service: Service, value: Given) -> Meaning:
        """Set those of a key such as AwsCredentialsProviderDynamoDB."""
        self._one_services_credentials[service] = credentials_sources(value)
        return "mapped", f"{_described(self._one_services_credentials[service])}, for {_NAMES[service]}"

    def own_credentials(self, service: Service, value: Given) -> Meaning:
        self._own_credentials[service] = credentials_sources(value)
        return "mapped", f"{_described(self._own_credentials[service])}, for {_NAMES[service]}"

    def specs(self, *, metrics: bool) -> Mapping[str, ClientSpec]:
        """metrics: include CloudWatch."""
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


def _described(sources: Sources) -> str:
    return "boto3: " + ", else ".join(map(str, sources))
