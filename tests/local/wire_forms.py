"""Requests and answers of the local Kinesis in JSON and CBOR, written and read without its own format modules.

Here a blob is `bytes` and a timestamp a `Stamp`, as in no format.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cbor2

from pykcl.local.server import AwsApp

JSON = "application/x-amz-json-1.1"
CBOR = "application/x-amz-cbor-1.1"


@dataclass(frozen=True)
class Stamp:
    """Milliseconds since the epoch."""

    millis: int


@dataclass
class Exchange:
    """What one request was answered with."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def members(self) -> Any:
        return READERS[self.headers["content-type"]](self.body)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _changed(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_changed(inner, change) for inner in value]
    return change(value)


def to_json(members: Any) -> bytes:
    def change(value: Any) -> Any:
        if isinstance(value, Stamp):
            return value.millis / 1000
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    return json.dumps(_changed(members, change)).encode()


def to_cbor(members: Any) -> bytes:
    """Timestamps as the Java SDK sends them."""

    def default(encoder: cbor2.CBOREncoder, value: Stamp) -> None:
        encoder.encode_semantic(1, value.millis)

    return cbor2.dumps(members, default=default)


def from_json(body: bytes) -> Any:
    def hook(members: dict[str, Any]) -> dict[str, Any]:
        for name, value in members.items():
            if name.endswith("Timestamp"):
                members[name] = Stamp(round(value * 1000))
            elif name == "Data":
                members[name] = base64.b64decode(value)
        return members

    return json.loads(body, object_hook=hook)


def from_cbor(body: bytes) -> Any:
    def stamp(value: Any, _: bool) -> Stamp:
        assert type(value) is int  # the Java SDK reads no fraction
        return Stamp(value)

    return cbor2.loads(body, semantic_decoders={1: stamp})


WRITERS = {JSON: to_json, CBOR: to_cbor}
READERS = {JSON: from_json, CBOR: from_cbor}


def exchange(app: AwsApp, operation: str, body: bytes, content_type: str, **headers: str) -> Exchange:
    """One request to the application, without a socket."""
    sent = {"x-amz-target": f"Kinesis_20131202.{operation}", "content-type": content_type, **headers}
    scope = {
        "type": "http",
        "path": "/",
        "method": "POST",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }
    answer = Exchange()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]

    asyncio.run(app(scope, receive, send))
    return answer


def ask(app: AwsApp, operation: str, members: Any, content_type: str) -> Exchange:
    """One request in that format."""
    return exchange(app, operation, WRITERS[content_type](members), content_type)
