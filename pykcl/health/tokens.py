"""The secret that opens /status from elsewhere: where it comes from, and how it is compared."""

from __future__ import annotations

import hmac
import secrets
from pathlib import Path

from pykcl.errors import ConfigError

SHORTEST = 16
_MOST_BYTES = 4096


def new_token() -> str:
    """192 bits of chance, in letters."""
    return secrets.token_urlsafe(24)


def checked_token(text: str, origin: str) -> str:
    """`text` as a token. Raises ConfigError, without the text. origin: what to call its place."""
    token = text.strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{origin} holds no token: use {SHORTEST} or more letters, digits and signs without a blank, such as "
            "the output of: openssl rand -hex 24"
        )
    return token


def token_from_file(path: Path) -> str:
    """Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
        text = content.decode("ascii")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(
            f"The token file {str(path)!r} cannot be read: {why}. Check path and permission."
        ) from None
    return checked_token(text, f"The token file {str(path)!r}")


def is_authorized(header: str | None, token: str) -> bool:
    """Whether an Authorization header bears the token. The time it takes tells nothing of the token."""
    scheme, _, given = (header or "").partition(" ")
    matches = hmac.compare_digest(given.strip().encode(), token.encode())
    return matches and scheme.lower() == "bearer"
