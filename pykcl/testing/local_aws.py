"""Streams and workers of a local AWS for one test, in real time; and the environment that keeps requests there."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from pykcl.handlers.functions import processor_of
from pykcl.local import local_environment
from pykcl.local.faults import FaultRule
from pykcl.model.record import Record
from pykcl.processor import ProcessorFactory
from pykcl.testing.input_records import checked_records, put_all, records
from pykcl.testing.recorder import Recorder
from pykcl.testing.result import Result, refuse_unfinished
from pykcl.worker.options import WorkerSeams
from pykcl.worker.processor_factory import checked_processor
from pykcl.worker.worker import Worker

if TYPE_CHECKING:
    from pykcl.local.server import LocalAws

_POLL_SECONDS = 0.02
_QUICK: dict[str, Any] = {
    "initial_position": "TRIM_HORIZON",
    "idle_time_between_reads": 0.2,
    "parent_shard_poll_interval": 0.1,
    "shard_sync_interval": 1.0,
    "shutdown_grace": 5.0,
}
"""Values that suit a test better than the defaults of Config."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_METADATA = ("169.254.169.254", "169.254.170.2", "fd00:ec2::254")


class RequestRefused(AssertionError):
    """A client was about to leave this machine for AWS during a test with a local AWS. The message names the host."""


class LocalStreams:
    """Streams of a local AWS, and the records that were put into them. numbers: of the workers that are started."""

    def __init__(self, aws: LocalAws) -> None:
        self.aws = aws
        self.numbers = itertools.count(1)
        self._rules: list[FaultRule] = []
        self._put: dict[str, list[Record]] = {}
        self._recorders: dict[tuple[str, str], Recorder] = {}

    @property
    def url(self) -> str:
        """The endpoint URL of all services."""
        return self.aws.url

    def create_stream(self, name: str, shards: int = 1) -> str:
        """Create a stream; return its name."""
        self.aws.kinesis.create_stream(name, shards)
        return name

    def put(
        self,
        stream: str,
        *data: Any,
        partition_key: str | Callable[[Any], str] | None = None,
        aggregated: bool = False,
    ) -> list[Record]:
        """Put values, or what `records` has returned for them; return every user record. Raises ConfigError."""
        __tracebackhide__ = True
        given = checked_records(data) if not aggregated and partition_key is None else None
        inputs = given or records(*data, partition_key=partition_key, aggregated=aggregated)
        put = put_all(self.aws.kinesis, stream, inputs)
        self._put.setdefault(stream, []).extend(put)
        return put

    def records(self, stream: str) -> list[Record]:
        """Return every user record that `put` has put into the stream."""
        return list(self._put.get(stream, ()))

    def recorder(self, stream: str, application: str) -> Recorder:
        """Return the record of all workers of one application: they share the shards."""
        return self._recorders.setdefault((stream, application), Recorder())

    def shards(self, stream: str) -> list[str]:
        """Return the ids of the open shards."""
        return [s.shard_id for s in self.aws.kinesis.list_shards(stream, operation=None) if s.is_open]

    def split(self, stream: str, shard: str | None = None) -> None:
        """Split a shard in its middle, by default the first open one."""
        self.aws.kinesis.split(stream, shard or self.shards(stream)[0])

    def merge(self, stream: str, shard: str | None = None, adjacent: str | None = None) -> None:
        """Merge two adjacent shards, by default the first two open ones."""
        first, second, *_ = [shard, adjacent] if shard and adjacent else self.shards(stream)
        self.aws.kinesis.merge(stream, str(first), str(second))

    def throttle(
        self, operation: str, *, service: str = "kinesis", times: int | None = None, probability: float = 1.0
    ) -> None:
        """Throttle an operation such as "GetRecords", for so many requests or until the end of the test."""
        self.fault(FaultRule("throttle", service, operation, probability=probability, times=times))

    def fault(self, *rules: FaultRule) -> None:
        """Add rules about requests that fail; without any, remove those that are in force."""
        self._rules = [*self._rules, *rules] if rules else []
        self.aws.faults.replace(self._rules)


class RunningWorker:
    """A real worker on a local AWS, with a record of what the processors of its application did.

    Raises ConfigError for a processor or options that cannot be used.
    """

    def __init__(
        self,
        streams: LocalStreams,
        what: ProcessorFactory | Callable[..., object],
        stream: str,
        application: str,
        **options: Any,
    ) -> None:
        self._streams, self._stream = streams, stream
        self._recorder = recorder = streams.recorder(stream, application)
        options = {**_QUICK, **options}
        recorder.is_manual = options.get("checkpoint_mode") == "manual"
        create = recorder.factory(checked_processor(processor_of(what)), f"worker-{next(streams.numbers)}")
        seams = WorkerSeams(listeners=[recorder.hear])
        self.worker = Worker._with(seams, application, stream=stream, processor=create, **options)
        self._started = time.monotonic()
        self.worker.start()

    @property
    def result(self) -> Result:
        """Everything that happened until now, for the assertions of `pykcl.testing`."""
        self._recorder.records = self._streams.records(self._stream)
        seconds = time.monotonic() - self._started
        return Result(self._recorder, seconds=seconds, error=self.worker.failure, seed=None)

    def wait_delivered(self, timeout: float = 30.0) -> Result:
        """Wait until every record that was put is processed or skipped. Raises RunFailed."""
        __tracebackhide__ = True
        return self._wait(self._recorder.is_settled, "processed", timeout)

    def wait_checkpointed(self, timeout: float = 30.0) -> Result:
        """Wait until every record that was put is checkpointed. Raises RunFailed."""
        __tracebackhide__ = True
        return self._wait(self._recorder.is_checkpointed, "checkpointed", timeout)

    def stop(self) -> None:
        """Stop the worker as a signal would. Raises StopTimedOut."""
        self.worker.stop()

    def _wait(self, is_done: Callable[[Record], bool], what: str, timeout: float) -> Result:
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout
        while missing := [record for record in self.result.records if not is_done(record)]:
            if self.worker.failure is not None:
                why = f"The worker has stopped: {self.worker.failure}"
                refuse_unfinished(self.result, why, missing=missing)
            if time.monotonic() > deadline:
                why = f"Not all records were {what} within {timeout:g} s"
                refuse_unfinished(self.result, why, missing=missing)
            time.sleep(_POLL_SECONDS)
        return self.result


@contextmanager
def confined_to(url: str) -> Iterator[None]:
    """Let AWS clients that are created meanwhile talk to `url`, and none to AWS; restore the environment afterwards.

    Settings that a client was created with before are not changed; its requests to AWS raise RequestRefused.
    """
    import boto3

    lookup = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        name = host.decode("idna") if isinstance(host, bytes) else host
        if isinstance(name, str) and name.lower().rstrip(".").endswith((*_AWS, *_METADATA)):
            raise RequestRefused(
                f"A client asked for {name} while the local AWS at {url} is in use. "
                "Do: create the client inside the test, without endpoint_url=."
            )
        return lookup(host, *args, **options)

    kept = {name: value for name, value in os.environ.items() if not _is_about_clients(name)}
    with (
        mock.patch.dict(os.environ, {**kept, **_settings(url)}, clear=True),
        mock.patch.object(boto3, "DEFAULT_SESSION", None),
        mock.patch.object(socket, "getaddrinfo", getaddrinfo),
    ):
        yield


def _settings(url: str) -> dict[str, str]:
    return {
        **local_environment(url),
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _is_about_clients(name: str) -> bool:
    return name.startswith("AWS_") or name.lower() in _PROXIES
