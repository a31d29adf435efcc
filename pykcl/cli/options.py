"""Config fields as text: from `--option NAME=VALUE` and from PYKCL_* environment variables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from pykcl.config import Config
from pykcl.errors import ConfigError

PREFIX = "PYKCL_"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_FLOATS_WITHOUT_DEFAULT = ("processor_timeout",)


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Config fields set by PYKCL_NAME variables. Raises ConfigError for a PYKCL_ variable that names none."""
    pairs = [
        (name[len(PREFIX) :].lower(), text)
        for name, text in sorted(environment.items())
        if name.startswith(PREFIX) and name != PREFIX
    ]
    return _typed(pairs, lambda name: f"environment variable {PREFIX}{name.upper()}")


def from_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """Config fields from NAME=VALUE texts. Raises ConfigError."""
    split = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"--option {pair!r} has no value. Do: --option NAME=VALUE.")
        split.append((name.strip().replace("-", "_"), text))
    return _typed(split, lambda name: f"--option {name}")


def _typed(pairs: Iterable[tuple[str, str]], origin: Any) -> dict[str, Any]:
    known = {field.name: field.default for field in fields(Config)}
    result: dict[str, Any] = {}
    for name, text in pairs:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."
            raise ConfigError(f"{origin(name)} names no option.{hint}")
        try:
            result[name] = _value(name, known[name], text)
        except ValueError:
            raise ConfigError(
                f"{origin(name)}: {text!r} is not what {name} takes (default: {known[name]!r})."
            ) from None
    return result


def _value(name: str, default: Any, text: str) -> Any:
    if isinstance(default, bool):
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(text)
        return text.lower() in _TRUE
    if isinstance(default, int):
        return int(text)
    if isinstance(default, float) or name in _FLOATS_WITHOUT_DEFAULT:
        return float(text)
    return None if default is None and text == "" else text
