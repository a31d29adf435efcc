"""A boto3 Kinesis client whose HTTP answers are written by the test: everything of botocore runs but the socket."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config

from pykcl.aws.kinesis import KinesisStream
from pykcl.runtime import SystemRuntime

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # 1_700_000_000


class ManualRuntime(SystemRuntime):
    """A real runtime whose two clocks stand still until the test moves them."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 1000.0
        self.millis = 1_600_000_000_123
        self._random = random.Random(1)

    def monotonic(self) -> float:
        return self.seconds

    def utcnow_millis(self) -> int:
        return self.millis


class _Raw:
    def __init__(self, body: bytes) -> None:
        self.body = body

    def stream(self, **_: Any) -> list[bytes]:
        return [self.body]


class Wire:
    """Answers per operation, given in order; the last one is repeated. `requests`: (operation, parameters)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._answers: dict[str, list[Any]] = {}
        self.runtime = ManualRuntime()
        self.date: str | None = DATE
        self.request_id: str | None = "c9b8fa9f"
        self.client = boto3.client(
            "kinesis",
            region_name="eu-west-1",
            endpoint_url="http://127.0.0.1:9",
            aws_access_key_id="local",
            aws_secret_access_key="local",
            config=Config(retries={"total_max_attempts": 1}),
        )
        self.client.meta.events.register("before-send.kinesis.*", self._send)

    def answer(self, operation: str, *answers: Any) -> None:
        """Each: a dict or list (JSON, 200), bytes (the body, 200), (status, body), or an exception to raise."""
        self._answers[operation] = list(answers)

    def fail(self, operation: str, code: str, message: str = "", status: int = 400) -> None:
        self.answer(operation, refusal(code, message, status))

    def asked(self, operation: str) -> list[dict[str, Any]]:
        return [parameters for name, parameters in self.requests if name == operation]

    def stream(self, name: str = "orders", runtime: SystemRuntime | None = None) -> KinesisStream:
        return KinesisStream(self.client, name, runtime or self.runtime)

    def without_hook(self) -> None:
        """As with a botocore that has no before-parse event."""
        self.client.meta.events.unregister(
            "before-parse.kinesis.GetRecords", unique_id="pykcl-set-body-aside"
        )

    def _send(self, request: Any, **_: Any) -> AWSResponse:
        operation = request.headers["X-Amz-Target"].decode().split(".")[1]
        self.requests.append((operation, json.loads(request.body)))
        answers = self._answers[operation]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        headers = {"Content-Type": "application/x-amz-json-1.1", "Content-Length": str(len(body))}
        if self.date is not None:
            headers["Date"] = self.date
        if self.request_id is not None:
            headers["x-amzn-RequestId"] = self.request_id
        return AWSResponse(request.url, status, headers, _Raw(body))


def refusal(code: str, message: str = "", status: int = 400) -> tuple[int, dict[str, str]]:
    return status, {"__type": code, "message": message}


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture(params=["hook", "botocore's parser"])
def either_wire(request: pytest.FixtureRequest) -> Callable[[], tuple[Wire, KinesisStream]]:
    """The same wire, decoded by us or by botocore."""

    def make() -> tuple[Wire, KinesisStream]:
        wire = Wire()
        stream = wire.stream()
        if request.param != "hook":
            wire.without_hook()
        return wire, stream

    return make


@pytest.fixture
def runtime() -> ManualRuntime:
    return ManualRuntime()


@pytest.fixture
def summary() -> Callable[..., dict[str, Any]]:
    def make(created: float = 1_600_000_000.5, status: str = "ACTIVE") -> dict[str, Any]:
        return {
            "StreamDescriptionSummary": {
                "StreamName": "orders",
                "StreamARN": ARN,
                "StreamStatus": status,
                "StreamCreationTimestamp": created,
                "RetentionPeriodHours": 24,
                "EnhancedMonitoring": [],
                "OpenShardCount": 1,
            }
        }

    return make
