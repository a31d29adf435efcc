"""AWS Signature Version 4 of a POST to one path, with the key of the day kept.

botocore derives the key anew for each request, which costs ten times the signature itself. Protocol: "Signature
Version 4 signing process" of the AWS General Reference.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import datetime, timezone
from hashlib import sha256
from typing import Final

ALGORITHM: Final = "AWS4-HMAC-SHA256"


class Signer:
    """Signs for one region and service. May be used by any number of threads at once."""

    def __init__(self, region: str, service: str) -> None:
        self._region = region
        self._service = service
        # Replaced as wholes, so that threads need no lock: (secret, day, key) and (second, its text).
        self._day_key: tuple[str, str, bytes] = ("", "", b"")
        self._stamp: tuple[int, str] = (-1, "")

    def scope(self, amz_date: str) -> str:
        """What the key is good for. amz_date: as `amz_date` writes it."""
        return f"{amz_date[:8]}/{self._region}/{self._service}/aws4_request"

    def amz_date(self, epoch_seconds: int) -> str:
        """The time of a request as its X-Amz-Date header says it, in UTC."""
        second, text = self._stamp
        if second != epoch_seconds:
            text = datetime.fromtimestamp(epoch_seconds, tz=timezone.utc).strftime("%Y%m%dT%H%M%SZ")
            self._stamp = (epoch_seconds, text)
        return text

    def signature(self, secret: str, amz_date: str, canonical_request: str) -> str:
        """In hexadecimal digits."""
        digest = sha256(canonical_request.encode()).hexdigest()
        to_sign = f"{ALGORITHM}\n{amz_date}\n{self.scope(amz_date)}\n{digest}"
        return hmac.digest(self._key(secret, amz_date[:8]), to_sign.encode(), "sha256").hex()

    def _key(self, secret: str, day: str) -> bytes:
        known_secret, known_day, key = self._day_key
        if known_day != day or known_secret != secret:
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day_key = (secret, day, key)
        return key


def canonical_request(path: str, headers: Mapping[str, str], body: bytes) -> str:
    """Of a POST without a query. headers: those to be signed, lower-case name -> value, in order of the names."""
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return f"POST\n{path}\n\n{lines}\n{';'.join(headers)}\n{sha256(body).hexdigest()}"
