"""A Config and its clients as the text of a pykcl.toml that says the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from typing import Any

from pykcl.aws.credentials import tables_of
from pykcl.compat.properties import Interpretation
from pykcl.compat.properties.keys import KEYS_OF_FIELD
from pykcl.config import NO_UTF8, Config, is_utf8
from pykcl.errors import ConfigError

_MANUAL = (
    "a program of amazon_kclpy checkpoints by itself; drop the line with a RecordProcessor of pykcl's own"
)

_USER_IN_URL = re.compile(r"(?<=://).*@", re.DOTALL)


def toml_text(properties: Mapping[str, str], found: Interpretation) -> str:
    """Every option that is not its default, with the key it comes from. Raises ConfigError for a half character."""
    source = getattr(properties, "source", "the properties")
    lines = [f"# Made from {_plain(source)} by `pykcl migrate`. Every option: docs/configuration.md", ""]
    for field in fields(Config):
        value = getattr(found.config, field.name)
        if field.default is MISSING or value != field.default:
            why = _MANUAL if field.name == "checkpoint" else _origin(properties, field.name)
            lines.append(f"{field.name} = {_value(value)}" + (f"  # {why}" if why else ""))
    # Its region is the file's: said once is enough.
    region = found.config.effective_region
    for service, table in tables_of(found.clients).items():
        if "region" in table and table["region"] == region:
            del table["region"]
        sources = table.pop("credentials", [])
        if table:
            lines += [
                "",
                f"[clients.{service}]",
                *(_line(name, value) for name, value in table.items()),
            ]
        for source_table in sources:
            lines += ["", f"[[clients.{service}.credentials]]"]
            lines += [_line(name, value) for name, value in source_table.items()]
    return "\n".join(lines) + "\n"


def _line(name: str, value: str) -> str:
    """Of a client. A password in an endpoint is not copied: it is no part of what AWS is asked with."""
    kept = _USER_IN_URL.sub("", value) if name.endswith("endpoint") else value
    return f"{name} = {_value(kept)}" + ("" if kept == value else "  # its user and password are left out")


def _origin(properties: Mapping[str, str], field: str) -> str:
    keys = [key for key in KEYS_OF_FIELD.get(field, ()) if properties.get(key, "").strip()]
    if field == "processor_warn_after" and not keys:
        return "no later than processor_timeout"
    if field == "max_leases" and not keys:
        return "no limit, as Java has none without maxLeasesForWorker"
    return keys[0] if keys else ""


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, int | float):
        return repr(value)
    return f'"{_escaped(str(value))}"'


def _escaped(text: str) -> str:
    if not is_utf8(text):
        raise ConfigError(f"A value {NO_UTF8}. Write it whole, in UTF-8.")
    return "".join(
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{ord(char):08X}"
        for char in text
    )


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
