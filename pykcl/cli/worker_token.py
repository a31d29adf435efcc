"""The token that the workers' /status needs, for the commands that ask workers."""

from __future__ import annotations

import os
from pathlib import Path

from pykcl.config import HTTP_TOKEN


def worker_token(path: Path | None) -> str | None:
    """Of the file, else of the environment, else none. Raises ConfigError for one that no worker has."""
    from pykcl.health.pages import checked_token, token_from_file

    if path is not None:
        return token_from_file(path)
    text = os.environ.get(HTTP_TOKEN)
    return checked_token(text, f"The environment variable {HTTP_TOKEN}") if text else None
