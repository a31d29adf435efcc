"""Values as Java's converters take them; what they would silently turn into 0 or false is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from urllib.parse import urlsplit

from pykcl.errors import ConfigError

WHOLE = re.compile(r"[+-]?[0-9]{1,19}\Z")
_DIGITS = re.compile(r"[+-]?[0-9]+\Z")
_GREATEST_INT, _GREATEST_LONG = 2**31 - 1, 2**63 - 1
_DECIMAL = re.compile(r"[+-]?[0-9]*\.[0-9]+\Z")
_TRUE = frozenset({"true", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "no", "n", "off", "0"})
"""Those of commons-beanutils' BooleanConverter."""
_REGION = re.compile(r"[a-z0-9-]{2,40}\Z")


class Given:
    """One key with its value, and where it stands."""

    def __init__(self, key: str, text: str, place: str) -> None:
        self.key = key
        self.text = text.strip()
        self._place = place

    def with_text(self, text: str) -> Given:
        """A part of the value, of the same place."""
        return Given(self.key, text, self._place)

    def refuse(self, what: str) -> ConfigError:
        """The error that says what is wrong. what: without the value, which may be a secret in the wrong place."""
        return ConfigError(f"{self._place}: {self.key} {what}")

    def number(self, *, unit: str = "") -> int:
        """Of what is a mere count, without a unit, Java makes an int; of others a long.

        Raises ConfigError for what Java would take for its default.
        """
        most = _GREATEST_LONG if unit else _GREATEST_INT
        if WHOLE.match(self.text) and abs(int(self.text)) <= most:
            return int(self.text)
        kind = "a decimal number" if _DECIMAL.match(self.text) else "no number"
        if _DIGITS.match(self.text):
            kind = "too small" if self.text.startswith("-") else "too large"
        wanted = f"a whole number of {unit}" if unit else "a whole number"
        raise self.refuse(
            f"is {kind}. Write {wanted}, digits only. (Java would silently take its default instead.)"
        )

    def flag(self) -> bool:
        """Raises ConfigError for what Java would take for false."""
        text = self.text.lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise self.refuse("is neither true nor false. Write one of them. (Java would silently take false.)")

    def choice(self, allowed: tuple[str, ...]) -> str:
        """One of `allowed`, in any case, as Java's enums are read here. Raises ConfigError."""
        if self.text.upper() in allowed:
            return self.text.upper()
        raise self.refuse(f"is none of {', '.join(allowed)}. Write one of them.")

    def endpoint(self) -> str:
        """A URL; https:// is put before a bare host name. Raises ConfigError."""
        url = self.text if "://" in self.text else f"https://{self.text}"
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_url = False
        if not is_url or any(char.isspace() for char in url):
            raise self.refuse(
                "is no http or https URL. Write one, such as https://kinesis.eu-west-1.amazonaws.com."
            )
        return url

    def region(self) -> str:
        """Raises ConfigError."""
        if not _REGION.match(self.text):
            raise self.refuse("is no AWS region. Write one, such as eu-west-1.")
        return self.text

    def epoch_seconds(self) -> datetime:
        """Raises ConfigError for what is no time, or one in milliseconds."""
        seconds = self.number(unit="seconds since 1970")
        try:
            if seconds < 0:
                raise ValueError
            return datetime.fromtimestamp(seconds, tz=timezone.utc)
        except (ValueError, OverflowError, OSError):
            raise self.refuse(
                "is no time in seconds since 1970. Write seconds, not milliseconds, such as 1767225600."
            ) from None


def given(properties: Mapping[str, str], key: str) -> Given:
    """The key as it is in the file."""
    place = getattr(properties, "place", None)
    return Given(key, properties[key], place(key) if place else "the properties")
