"""Clients as tables of a TOML file: `[clients.kinesis]` with region, endpoint and credentials, to and fro."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, get_args
from urllib.parse import urlsplit

from pykcl.aws.clients import ALL_SERVICES
from pykcl.aws.specified_clients import ClientSpec, CredentialsSource, SourceKind
from pykcl.errors import ConfigError

_KINDS: tuple[str, ...] = get_args(SourceKind)
_SOURCE = tuple(field.name for field in fields(CredentialsSource))
_OF_A_ROLE = ("role_arn", "session_name", "external_id", "sts_endpoint", "sts_region")


def specs_of(tables: Mapping[str, Any], source: str) -> dict[str, ClientSpec]:
    """What the tables below `clients` say, by service. source: name of the file.

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
