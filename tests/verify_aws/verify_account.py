"""The account a run works in: what it makes there carries a prefix and a tag, and by both it is found and removed."""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from pykcl.aws.clients import client_config, new_session, refuse_missing_credentials
from pykcl.aws.errors import error_code, sort_failure
from pykcl.aws.kinesis import KinesisStream
from pykcl.errors import PyKclError, Throttled
from pykcl.runtime import SystemRuntime

TAG = "pykcl-verify"
PREFIX = re.compile(r"pykcl-verify-[0-9a-f]{8}\Z")
ACTIVE_SECONDS = 300.0
"""For a stream to become ACTIVE; AWS takes half a minute."""
REMOVE_SECONDS = 300.0
NOT_TAGGED = f"it lacks the tag {TAG} of this prefix, so it is not deleted"
TAG_ROUNDS = 5
"""Rounds in which a tag may be missing: a new one may be seen only after a moment."""
AWS_ERRORS = (BotoCoreError, ClientError)


def new_prefix() -> str:
    return f"pykcl-verify-{secrets.token_hex(4)}"


class PatientStream(KinesisStream):
    """Asks again when it was throttled, for a minute. Pages are left to who counts their refusals."""

    def describe(self) -> Any:
        return patiently(super().describe)

    def list_shards(self) -> Any:
        return patiently(super().list_shards)

    def open(self, shard_id: str, start: Any) -> Any:
        return patiently(super().open, shard_id, start)


def patiently(ask: Callable[..., Any], *arguments: Any) -> Any:
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask(*arguments)
        except Throttled:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.25)


class Account:
    """Clients, and names that nobody else has. Region, credentials and endpoint are those of the environment.

    kinesis, dynamodb: with patience. once: Kinesis with one attempt a call, for what shall be refused.
    """

    def __init__(self, prefix: str) -> None:
        if not PREFIX.match(prefix):
            raise ValueError(f"{prefix!r} is no prefix of this command, such as pykcl-verify-0123abcd")
        self.prefix = prefix
        self.is_aws = not os.environ.get("AWS_ENDPOINT_URL")
        self._session = new_session()
        self.region = str(self._session.region_name)
        patient = Config(
            retries={"max_attempts": 10, "mode": "standard"}, read_timeout=60, connect_timeout=10
        )
        self.kinesis = self._session.client("kinesis", config=patient)
        self.dynamodb = self._session.client("dynamodb", config=patient)
        impatient = client_config(connect_timeout=10.0, read_timeout=60.0, connections=16)
        self.once = self._session.client("kinesis", config=impatient)
        self.pause = 2.0 if self.is_aws else 0.05
        # With the request that makes it, so that there is no moment in which it is there without.
        for client, event in (
            (self.kinesis, "kinesis.CreateStream"),
            (self.dynamodb, "dynamodb.CreateTable"),
        ):
            client.meta.events.register(f"provide-client-params.{event}", self._tagged)

    def _tagged(self, params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
        tags = {TAG: self.prefix} if model.name == "CreateStream" else [{"Key": TAG, "Value": self.prefix}]
        return {**params, "Tags": tags}

    def require_access(self) -> None:
        """Raise SetupError or TemporaryError unless this account can be listed; nothing is made before that."""
        refuse_missing_credentials(self._session)
        try:
            list(self.found())
        except AWS_ERRORS as error:
            failure = sort_failure(error, doing="listing streams and tables")
        else:
            return
        raise failure

    # -- making ------------------------------------------------------------------------------------------------

    def stream(self, what: str, shards: int = 1) -> str:
        """A new stream that is ACTIVE: its name."""
        name = f"{self.prefix}-{what}"
        self.kinesis.create_stream(StreamName=name, ShardCount=shards)
        self.await_active(name)
        return name

    def await_active(self, name: str) -> None:
        def is_active() -> bool:
            answer = self.kinesis.describe_stream_summary(StreamName=name)
            return bool(answer["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE")

        self.wait_for(is_active, f"stream {name} to become ACTIVE", ACTIVE_SECONDS)

    def reader(self, name: str, **how: Any) -> PatientStream:
        """As a worker reads it. how: transport, wire."""
        return PatientStream(self.once, name, SystemRuntime(), **how)

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        """Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
            self.sleep(self.pause)

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    # -- removing ----------------------------------------------------------------------------------------------

    def remove_all(self, seconds: float = REMOVE_SECONDS) -> list[str]:
        """Delete every stream and table that has the prefix and the tag, again and again until none is there.

        What is left then, each with the reason and the command that removes it.
        """
        deadline, empty, rounds, reasons = time.monotonic() + seconds, 0, 0, {}
        asked: set[str] = set()
        found: list[tuple[str, str]] = []
        # Twice empty: what was asked for right before an interrupt may be listed a moment later.
        while empty < 2:
            reasons = {}
            try:
                found = list(self.found())
            except AWS_ERRORS as error:
                found, reasons = found or [("anything", "that may be there")], {"listing": why(error)}
            for kind, name in found:
                reason = self.remove(kind, name)
                if reason is None:
                    asked.add(name)
                elif name not in asked:  # one that is being deleted may lose its tags first
                    reasons[name] = reason
            empty, rounds = 0 if found else empty + 1, rounds + 1
            foreign = found and all(NOT_TAGGED in reasons.get(name, "") for _, name in found)
            if time.monotonic() > deadline or (foreign and rounds >= TAG_ROUNDS):
                break
            self.sleep(self.pause)
        return [
            f"{kind} {name} ({reasons.get(name) or reasons.get('listing') or 'still there'}): {self._command(kind, name)}"
            for kind, name in found
        ]

    def found(self) -> Iterator[tuple[str, str]]:
        """("stream" or "table", name) of what carries the prefix."""
        for kind, client, operation, names in (
            ("stream", self.kinesis, "list_streams", "StreamNames"),
            ("table", self.dynamodb, "list_tables", "TableNames"),
        ):
            for page in client.get_paginator(operation).paginate():
                yield from ((kind, name) for name in page[names] if name.startswith(f"{self.prefix}-"))

    def remove(self, kind: str, name: str) -> str | None:
        """Ask for its end; why that was not possible, or None."""
        try:
            if self._tag(kind, name) != self.prefix:
                return NOT_TAGGED
            if kind == "stream":
                # Consumers, which are billed by the hour, go with it.
                self.kinesis.delete_stream(StreamName=name, EnforceConsumerDeletion=True)
            else:
                self.dynamodb.delete_table(TableName=name)
        except AWS_ERRORS as error:
            # Gone meanwhile, or on its way: the next listing shows it.
            if error_code(error) not in ("ResourceNotFoundException", "ResourceInUseException"):
                return why(error)
        return None

    def _tag(self, kind: str, name: str) -> str | None:
        if kind == "stream":
            tags = self.kinesis.list_tags_for_stream(StreamName=name)["Tags"]
        else:
            arn = self.dynamodb.describe_table(TableName=name)["Table"]["TableArn"]
            tags = self.dynamodb.list_tags_of_resource(ResourceArn=arn)["Tags"]
        return next((one["Value"] for one in tags if one["Key"] == TAG), None)

    def _command(self, kind: str, name: str) -> str:
        commands = {
            "stream": f"aws kinesis delete-stream --enforce-consumer-deletion --stream-name {name}",
            "table": f"aws dynamodb delete-table --table-name {name}",
        }
        again = f"make verify-aws ARGS='--region {self.region} --clean-up {self.prefix}'"
        return f"{commands[kind]} --region {self.region}" if kind in commands else again


def why(error: Exception) -> str:
    """The name of the failure and its code, never AWS' own words, which quote ARNs."""
    if isinstance(error, AWS_ERRORS):
        return error_code(error) or type(error).__name__
    if isinstance(error, PyKclError | TimeoutError):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__
