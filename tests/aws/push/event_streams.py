"""Messages of event streams, encoded for tests."""

from __future__ import annotations

import json
import struct
from typing import Any
from zlib import crc32


def header(name: str, value: str) -> bytes:
    encoded = value.encode()
    return bytes([len(name)]) + name.encode() + struct.pack(">BH", 7, len(encoded)) + encoded


def framed(headers: bytes, payload: bytes) -> bytes:
    """One message with these encoded headers."""
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    whole = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return whole + struct.pack(">I", crc32(whole))


def message(headers: dict[str, str], payload: bytes = b"{}") -> bytes:
    return framed(b"".join(header(name, value) for name, value in headers.items()), payload)


def event(members: dict[str, Any], kind: str = "SubscribeToShardEvent") -> bytes:
    headers = {":message-type": "event", ":event-type": kind, ":content-type": "application/json"}
    return message(headers, json.dumps(members).encode())


def exception(code: str, text: str = "", members: dict[str, Any] | None = None) -> bytes:
    headers = {":message-type": "exception", ":exception-type": code, ":content-type": "application/json"}
    return message(headers, json.dumps({"message": text, **(members or {})}).encode())
