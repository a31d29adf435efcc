"""boto3 clients whose HTTP answers the test writes: everything of botocore runs but the socket."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config

from pykcl.aws.transport import connection as direct
from pykcl.errors import InternalError, PyKclError
from pykcl.runtime import SystemRuntime

ACCESS = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}


@dataclass(repr=False)
class Answer:
    """One HTTP answer. body: bytes as they are, anything else as JSON."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Answer({self.raw[:800]!r}, {self.status}, {str(self.headers)[:200]})"

    @property
    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class HostileWire:
    """`kinesis` and `dynamodb` clients. `answers`: given in order, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [Answer({})]
        self.asked: list[str] = []
        self.kinesis = self._client("kinesis")
        self.dynamodb = self._client("dynamodb")

    def say(self, *answers: Answer) -> None:
        self.answers, self.asked = list(answers), []

    def _client(self, service: str) -> Any:
        client = boto3.client(
            service,
            region_name="eu-west-1",
            endpoint_url="http://127.0.0.1:9",
            config=Config(retries={"total_max_attempts": 1}),
            **ACCESS,
        )
        client.meta.events.register(f"before-send.{service}.*", self._send)
        return client

    def _send(self, request: Any, **_: Any) -> AWSResponse:
        self.asked.append(request.headers["X-Amz-Target"].decode().split(".")[1])
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        version = "1.1" if b"Kinesis" in request.headers["X-Amz-Target"] else "1.0"
        headers = {"content-type": f"application/x-amz-json-{version}", **answer.headers}
        return AWSResponse(request.url, answer.status, headers, _Raw(answer.raw))


class NoSockets:
    """A transport of the direct kind whose answers are those of a wire. version: of AWS' JSON."""

    def __init__(self, wire: HostileWire, version: str) -> None:
        self._wire, self._version = wire, version
        self.clock_ahead_millis = 0

    def is_current(self) -> bool:
        return True

    def post(
        self, body: bytes, *, may_repeat: bool, content_type: str | None = None, is_page: bool = True
    ) -> direct.Answer:
        told = self._wire.answers
        self._wire.asked.append("direct")
        answer = told.pop(0) if len(told) > 1 else told[0]
        headers = {"content-type": f"application/x-amz-json-{self._version}", **answer.headers}
        return direct.Answer(
            answer.status, {name.lower(): value for name, value in headers.items()}, answer.raw
        )


class _Raw:
    def __init__(self, body: bytes) -> None:
        self.body = body

    def stream(self, **_: Any) -> list[bytes]:
        return [self.body]


class ImpatientRuntime(SystemRuntime):
    """Time goes on only by waiting, and waiting takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._random = random.Random(1)

    def monotonic(self) -> float:
        return self.now

    def utcnow_millis(self) -> int:
        return 1_600_000_000_123

    def event(self) -> Any:
        return _Passing(self)


class _Passing:
    def __init__(self, runtime: ImpatientRuntime) -> None:
        self._runtime, self._set = runtime, False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._runtime.now += timeout or 0.0
        return self._set


def assert_ours(error: BaseException) -> None:
    """An error of the documented tree, in one line, that drags nothing else along."""
    assert isinstance(error, PyKclError), repr(error)
    assert not isinstance(error, InternalError)
    assert str(error).isprintable()
    seen: list[BaseException | None] = [error.__cause__, error.__context__]
    while seen:
        other = seen.pop()
        if other is None:
            continue
        assert isinstance(other, PyKclError), f"{error!r} drags {other!r} along"
        seen += [other.__cause__, other.__context__]
