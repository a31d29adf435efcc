"""Which setting a key of the file means, as Java looks keys up, and how its value may be shown."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from pykcl.compat.properties.credentials import shown_providers
from pykcl.compat.properties.keys import AS_JAVA, KEYS, NO_KEYS
from pykcl.compat.properties.services import Service
from pykcl.compat.properties.verdicts import HIDDEN, Verdict, shown_command, shown_endpoint, shown_value

_CREDENTIALS = "AwsCredentialsProvider"
_ENDPOINTS = ("kinesisEndpoint", "dynamoDBEndpoint")
_ALIASES = {"workerIdentifier": "workerId"}
_BEANS: dict[str, Service | None] = {
    "kinesisClient": "kinesis",
    "dynamoDbClient": "dynamodb",
    "cloudWatchClient": "cloudwatch",
    "kinesisCredentialsProvider": None,
    "dynamoDBCredentialsProvider": None,
    "cloudWatchCredentialsProvider": None,
}
_OF_CLIENTS: dict[str, Literal["region", "endpoint", "credentials"]] = {
    "region": "region",
    "endpointOverride": "endpoint",
    "credentialsProvider": "credentials",
}


@dataclass(frozen=True, slots=True)
class NestedKey:
    """A key below one of Java's beans. service, what: None where it is nothing that pykcl has."""

    service: Service | None
    what: Literal["region", "endpoint", "credentials"] | None


def canonical(key: str) -> str:
    """The name of the setting. Java ignores the case of AwsCredentialsProvider, but not of what follows it."""
    if key.lower().startswith(_CREDENTIALS.lower()):
        return _CREDENTIALS + re.sub(_CREDENTIALS, "", key, count=1, flags=re.IGNORECASE)
    return _ALIASES.get(key, key)


def nested_key(name: str) -> NestedKey | None:
    """None where it is no nested key of a bean that Java has."""
    bean, dot, rest = name.partition(".")
    if not dot or bean not in _BEANS:
        return None
    service = _BEANS[bean]
    return NestedKey(service, _OF_CLIENTS.get(rest) if service else None)


def unknown_row(name: str) -> tuple[Verdict, str]:
    """Of a key that is none of Java's."""
    if name in NO_KEYS:
        return AS_JAVA, NO_KEYS[name]
    near = nearest(name)
    hint = f"Did you mean {near}?" if near else "No key is called anything like it."
    return "unknown", f"nothing reads it, Java neither. {hint}"


def nearest(name: str) -> str | None:
    """The key that is called most like it, in any case; None where none is."""
    by_lower = {known.lower(): known for known in (*KEYS, *_ALIASES)}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


def is_unknown(key: str) -> bool:
    """Whether it is none of Java's, of whatever time and place."""
    name = canonical(key)
    return name not in KEYS and name not in NO_KEYS and nested_key(name) is None


def shown(key: str, name: str, value: str) -> str:
    """The value as it may be printed; *** for what nobody knows, or may hold a secret."""
    nested = nested_key(name)
    if name in (_CREDENTIALS, _CREDENTIALS + "DynamoDB", _CREDENTIALS + "CloudWatch") or (
        nested is not None and nested.what == "credentials"
    ):
        return shown_providers(value)
    if name == "executableName":
        return shown_command(value)
    if name in _ENDPOINTS or (nested is not None and nested.what == "endpoint"):
        return shown_endpoint(value)
    is_known = name in KEYS or name in NO_KEYS or name == "RetrievalMode"
    if not is_known and (nested is None or nested.what is None):
        return HIDDEN
    return shown_value(key, value)
