"""Config fields from `--option NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pykcl.config import from_texts
from pykcl.errors import ConfigError


def from_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """Config fields from NAME=VALUE texts. Raises ConfigError."""
    split = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"--option {pair!r} has no value. Do: --option NAME=VALUE.")
        split.append((name.strip().replace("-", "_"), text))
    return from_texts(split, lambda name: f"--option {name}")
