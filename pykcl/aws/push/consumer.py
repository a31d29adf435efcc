"""The consumer of enhanced fan-out: found by name or ARN, registered where it is missing, waited for.

As Java KCL does it (v3.5.1 `FanOutConsumerRegistration`): describe; register what is missing; describe again until it
is ACTIVE. One given by ARN is never registered. Nothing here deregisters: other workers may read by it.

LimitExceededException of RegisterStreamConsumer means one of three: five calls a second, five consumers in CREATING, or
as many consumers as the stream may have. Only the last one needs a person, so ConsumerCount of the stream decides, once
the call was refused a few times.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pykcl.aws.errors import answer_of
from pykcl.errors import AnswerRefused, PyKclError, SetupError, TemporaryError, Throttled

log = logging.getLogger("pykcl.kinesis")

MAX_CONSUMERS = 20
"""Of one stream; 50 with On-demand Advantage."""
MAX_TRIES = 10
_MAX_REFUSALS = 3
_CONSUMER_ARN = re.compile(
    r"(?P<stream>arn:[^\s]+:stream/[^/\s]+)/consumer/(?P<name>[A-Za-z0-9_.-]+):[0-9]+\Z"
)


class _MissingError(PyKclError):
    """ResourceNotFoundException."""


class _InUseError(PyKclError):
    """ResourceInUseException: somebody else has registered it meanwhile."""


@dataclass(frozen=True, slots=True)
class ConsumerCalls:
    """The calls about one consumer of one stream.

    client: a boto3 Kinesis client. calling: wraps its methods. stream: name, for texts and commands. consumer: name or
    ARN. who: as in `sort_failure`.
    """

    client: Any
    calling: Callable[..., Any]
    stream: str
    stream_arn: str
    consumer: str
    who: str = "this worker"

    @property
    def is_given_by_arn(self) -> bool:
        return self.consumer.startswith("arn:")

    def refuse_other_stream(self) -> None:
        """Raise SetupError for the ARN of no consumer, or of one that gets the records of another stream."""
        found = _CONSUMER_ARN.match(self.consumer)
        if self.is_given_by_arn and (found is None or found["stream"] != self.stream_arn):
            raise SetupError(
                f"{self.consumer} is not the ARN of a consumer of stream {self.stream_arn}. Do: give the name of the "
                f"consumer instead, or the ARN that pykcl fanout list {self.stream} shows."
            )

    def describe(self) -> tuple[str, str] | None:
        """Return ARN and status; None: there is no such consumer, or no such stream.

        Raises TemporaryError and SetupError.
        """
        named = {"ConsumerARN": self.consumer} if self.is_given_by_arn else self._by_name
        try:
            answer = self._answer("Describing", self.client.describe_stream_consumer, named)
        except _MissingError:
            return None
        return _arn_and_status(answer.get("ConsumerDescription"))

    def register(self) -> None:
        """Return even if somebody else was first. Raises Throttled for LimitExceededException."""
        try:
            self._answer("Registering", self.client.register_stream_consumer, self._by_name)
        except _InUseError:
            log.debug("the consumer was registered by another worker at the same time")
        except _MissingError as error:
            raise TemporaryError(f"{error} It is asked for again.") from None
        else:
            log.info(
                "registered consumer %r of stream %r for enhanced fan-out: each shard is billed by the hour until "
                "pykcl fanout deregister removes it",
                self.consumer,
                self.stream,
            )

    def count(self) -> int:
        """Return how many consumers the stream has; 0 where that is not known."""
        answer = answer_of(
            f"Describing stream {self.stream!r}",
            self.calling(self.client.describe_stream_summary),
            {"StreamARN": self.stream_arn},
        )
        summary = answer.get("StreamDescriptionSummary")
        found = summary.get("ConsumerCount") if isinstance(summary, Mapping) else None
        return found if isinstance(found, int) else 0

    @property
    def _by_name(self) -> dict[str, str]:
        return {"StreamARN": self.stream_arn, "ConsumerName": self.consumer}

    def _answer(self, verb: str, method: Any, request: dict[str, str]) -> Mapping[str, Any]:
        doing = f"{verb} consumer {self.consumer!r} of stream {self.stream!r}"

        def sorted_failure(code: str | None, failure: PyKclError) -> PyKclError:
            if code == "ResourceNotFoundException":
                return _MissingError(f"{doing} found nothing.")
            return _InUseError(doing) if code == "ResourceInUseException" else failure

        return answer_of(doing, self.calling(method), request, who=self.who, refusal=sorted_failure)


def find_active(
    calls: ConsumerCalls, *, register: bool, check_stream: Callable[[], object], pause: Callable[[], bool]
) -> str:
    """Return the ARN of the consumer once it is ACTIVE.

    register: where it is missing, and not given by ARN. check_stream: raises StreamMissing where there is no stream.
    pause: waits about a second; returns True if the worker stops. Raises SetupError, TemporaryError and StreamMissing.
    """
    calls.refuse_other_stream()
    refusals, failure = 0, TemporaryError("The worker stops.")
    for attempt in range(MAX_TRIES):
        if attempt and pause():
            break
        is_registering = False
        try:
            found = calls.describe()
            if found is not None and found[1] == "ACTIVE":
                return found[0]
            status = "registered just now" if found is None else found[1]
            if found is None:
                check_stream()
                if not register or calls.is_given_by_arn:
                    raise _missing(calls)
                is_registering = True
                calls.register()
            failure = TemporaryError(
                f"Consumer {calls.consumer!r} of stream {calls.stream!r} is not ACTIVE yet ({status}). It is asked for "
                "again."
            )
        except Throttled as error:
            failure = error
            refusals += is_registering
        if refusals >= _MAX_REFUSALS and (count := calls.count()) >= MAX_CONSUMERS:
            raise _full(calls, count)
    try:
        raise failure
    finally:
        del failure  # its traceback holds this frame: no cycle


def _missing(calls: ConsumerCalls) -> SetupError:
    if calls.is_given_by_arn:
        return SetupError(
            f"Stream {calls.stream!r} has no consumer {calls.consumer}, and one that is given by ARN is not registered."
            f" Do: give its name, or the ARN that pykcl fanout list {calls.stream} shows."
        )
    return SetupError(
        f"Stream {calls.stream!r} has no consumer {calls.consumer!r}, and this worker may not register it "
        f"(register_consumer). Do: pykcl fanout register {calls.stream} --consumer {calls.consumer}."
    )


def _full(calls: ConsumerCalls, count: int) -> SetupError:
    return SetupError(
        f"Consumer {calls.consumer!r} cannot be registered: stream {calls.stream!r} has {count} consumers, and a "
        f"stream has {MAX_CONSUMERS} at most, or 50 with On-demand Advantage. Do: see with pykcl fanout list "
        f"{calls.stream} which one is no longer used, and remove it with pykcl fanout deregister; or read by polling."
    )


def _arn_and_status(described: Any) -> tuple[str, str]:
    values = described if isinstance(described, Mapping) else {}
    arn, status = values.get("ConsumerARN"), values.get("ConsumerStatus")
    if not isinstance(arn, str) or not arn or not isinstance(status, str):
        raise AnswerRefused("The description of a consumer lacks its ARN or status. It is asked for again.")
    return arn, status
