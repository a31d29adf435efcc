"""Fault injection between client and local AWS, by rules: set in this process, or over HTTP at `/_pykcl/faults`.

    POST    {"seed": 3, "rules": [{"kind": "throttle", "service": "dynamodb", "probability": 0.2}]}
    GET     the rules in force and how many faults of each kind were injected
    DELETE  no rules, counts from zero

Rules are tried in their order; the first one that matches a request, and whose probability is met, applies. Calls of
the control path never fail and are not logged.
"""

from __future__ import annotations

import asyncio
import difflib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from pykcl.local.errors import AwsError
from pykcl.local.kinesis_api import SUBSCRIBE
from pykcl.local.pushing import PUSH_FAULTS
from pykcl.local.request_log import members_of
from pykcl.local.wire import read_json

CONTROL_PATH = "/_pykcl/faults"
MAX_SECONDS = 600.0
MAX_RULES_BYTES = 64 * 1024

KINDS = {
    "throttle": "refused as too much, not done",
    "error": "answered with a 500, not done",
    "error-after": "done, and answered with a 500 all the same",
    "reset-before": "connection reset, not done",
    "reset-after": "done, then the connection reset instead of an answer",
    "lost-answer": "done, and never answered: the client waits until it gives up",
    "slow": "done, and answered after `seconds`",
    "late": "done only after `seconds`, when the client may have given up",
    **PUSH_FAULTS,
}
"""Kinds of faults. A reset of an HTTP/2 connection hits all requests that are under way on it."""
WITH_SECONDS = frozenset({"slow", "late"})
NOT_DONE = frozenset({"throttle", "error", "reset-before"})
SERVICES = ("kinesis", "dynamodb", "cloudwatch", "sqs", "sns", "s3")
ANY = "*"

_DATA_OPERATIONS = ("GetRecords", "GetShardIterator", "PutRecord", "PutRecords")


class FaultRefused(ValueError):
    """Invalid rules. The text says what, why and what to do."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """Rule about requests that fail. kind: one of KINDS. service, operation: of the requests, "*" for all.

    probability: for each request, 0 to 1. seconds: for "slow" and "late" only, at most 600. times: max number of
    faults; None for no limit.
    """

    kind: str
    service: str = ANY
    operation: str = ANY
    probability: float = 1.0
    seconds: float = 0.0
    times: int | None = None

    def __post_init__(self) -> None:
        """Raise FaultRefused for an invalid rule."""
        _check_choice("kind", self.kind, sorted(KINDS))
        _check_choice("service", self.service, [ANY, *SERVICES])
        # A rule with a misspelt operation would never match.
        services = SERVICES if self.service == ANY else (self.service,)
        known = sorted({name for service in services for name in members_of(service)})
        _check_choice("operation", self.operation, [ANY, *known])
        _check_number("probability", self.probability, 0.0, 1.0)
        _check_number("seconds", self.seconds, 0.0, MAX_SECONDS)
        if (self.kind in WITH_SECONDS) != (self.seconds > 0):
            raise FaultRefused(
                f"kind {self.kind!r} with seconds={self.seconds:g} means nothing: seconds go with "
                f"{' and '.join(sorted(WITH_SECONDS))}, and only there. Give seconds above 0 there, none elsewhere."
            )
        if self.kind in PUSH_FAULTS and not self.fits("kinesis", SUBSCRIBE):
            raise FaultRefused(
                f"kind {self.kind!r} matches no {self.operation} of {self.service}: only {SUBSCRIBE} of kinesis has "
                "events. Leave service and operation out, or name these."
            )
        if self.times is not None and (type(self.times) is not int or self.times < 1):
            raise FaultRefused(
                f"times={_shown(self.times)} is not a number of faults. Give a whole number from 1, or none for "
                "no limit."
            )

    def fits(self, service: str, operation: str) -> bool:
        """Return whether it is about such requests."""
        if self.kind in PUSH_FAULTS and operation != SUBSCRIBE:
            return False
        return self.service in (ANY, service) and self.operation in (ANY, operation)


class Faults:
    """Rules in force, their random numbers and the counts of faults. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[tuple[FaultRule, Counter[str]]] = []
        self._random = Random(0)  # noqa: S311 - reproducible, no secret
        self._counts: Counter[str] = Counter()

    def replace(self, rules: Sequence[FaultRule], *, seed: int | None = None) -> None:
        """Replace the rules; the counts continue. seed: restarts the random numbers."""
        with self._lock:
            self._rules = [(rule, Counter()) for rule in rules]
            if seed is not None:
                self._random.seed(seed)

    def reset(self) -> None:
        """Remove the rules, reset the counts, and restart the random numbers from seed 0."""
        with self._lock:
            self._rules = []
            self._counts.clear()
            self._random.seed(0)

    def choose(self, service: str, operation: str) -> FaultRule | None:
        """Return the fault of one request and count it; None for no fault. Draws a number only for rules that match."""
        with self._lock:
            for rule, used in self._rules:
                if not rule.fits(service, operation) or used["times"] == rule.times:
                    continue
                if self._random.random() < rule.probability:
                    used["times"] += 1
                    self._counts[rule.kind] += 1
                    return rule
        return None

    @property
    def counts(self) -> dict[str, int]:
        """Number of faults since the start or the last reset, for every kind."""
        with self._lock:
            return {kind: self._counts[kind] for kind in KINDS}

    def control(self, method: str, content_type: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Serve a call of the control path; return status and content."""
        try:
            if method == "POST":
                if content_type.partition(";")[0].strip().lower() != "application/json":
                    # A browser sends content types of forms to any site without asking that site first.
                    return 415, {
                        "error": "The rules are not JSON. Send the header Content-Type: application/json."
                    }
                rules, seed = parse_rules(body)
                self.replace(rules, seed=seed)
            elif method == "DELETE":
                self.reset()
            elif method != "GET":
                return 405, {
                    "error": f"{method} is not allowed. GET shows, POST sets, DELETE removes the rules."
                }
        except FaultRefused as refusal:
            return 400, {"error": f"{refusal} Nothing was changed."}
        with self._lock:
            rules = [rule for rule, _ in self._rules]
        return 200, {"rules": [asdict(rule) for rule in rules], "injected": self.counts}


def parse_rules(body: bytes) -> tuple[list[FaultRule], int | None]:
    """Return the rules and the seed of a POST. Raises FaultRefused."""
    if len(body) > MAX_RULES_BYTES:
        raise FaultRefused(f"The rules have {len(body)} bytes. Send at most {MAX_RULES_BYTES}.")
    try:
        given = read_json(body or b"null")
    except AwsError:
        given = None
    if not isinstance(given, dict) or not isinstance(given.get("rules"), list):
        raise FaultRefused(
            'The body is not {"rules": […]}. '
            'Send for example {"rules": [{"kind": "throttle", "service": "dynamodb", "probability": 0.2}]}.'
        )
    _check_names("the body", given, ["rules", "seed"])
    seed = given.get("seed")
    if seed is not None and type(seed) is not int:
        raise FaultRefused(
            f"seed={_shown(seed)} is not a whole number, so the faults could not be repeated. Give one."
        )
    rules = []
    for number, fields in enumerate(given["rules"], start=1):
        try:
            rules.append(_rule(fields))
        except FaultRefused as refusal:
            raise FaultRefused(f"Rule {number}: {refusal}") from None
    return rules, seed


def _rule(fields: Any) -> FaultRule:
    if not isinstance(fields, dict) or "kind" not in fields:
        raise FaultRefused(f"no kind is given. Give one of {', '.join(sorted(KINDS))}.")
    _check_names("a rule", fields, list(FaultRule.__dataclass_fields__))
    return FaultRule(**fields)


def _check_names(where: str, given: dict[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise FaultRefused(f"{where} has no {_shown(name)}. {_instead(name, known)}")


def _check_choice(what: str, given: object, known: Sequence[str]) -> None:
    if given not in known:
        raise FaultRefused(
            f"{what} {_shown(given)} is unknown, so no request would match it. {_instead(given, known)}"
        )


def _shown(given: object) -> str:
    return repr(given)[:200]


def _instead(given: object, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(given), known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known[:20])}."


def _check_number(what: str, given: object, smallest: float, largest: float) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not smallest <= given <= largest:
        raise FaultRefused(
            f"{what}={_shown(given)} is not a number from {smallest:g} to {largest:g}. Give one."
        )


def refusal(rule: FaultRule, service: str, operation: str) -> AwsError:
    """Return the error of AWS for a "throttle", "error" or "error-after"."""
    if rule.kind != "throttle":
        code = "InternalServerError" if service == "dynamodb" else "InternalFailure"
        return AwsError(code, "Failed on purpose: a fault rule of the local AWS.", 500)
    message = "Rate exceeded, on purpose: a fault rule of the local AWS."
    if service == "dynamodb" or operation in _DATA_OPERATIONS:
        return AwsError("ProvisionedThroughputExceededException", message)
    return AwsError("LimitExceededException" if service == "kinesis" else "Throttling", message)


class Connections:
    """Open connections by the client's address, so that one of them can be reset.

    ASGI has no way to reset a connection, so the server has each recorded. Used on its event loop only.
    """

    def __init__(self) -> None:
        self._transports: dict[tuple[str, int], asyncio.WriteTransport] = {}
        self._held: list[Sequence[Any] | None] = []

    @contextmanager
    def recorded(self, transport: asyncio.WriteTransport) -> Iterator[None]:
        """Know a connection meanwhile."""
        peer = transport.get_extra_info("peername") or ("", 0)
        address = (str(peer[0]), int(peer[1]))
        self._transports[address] = transport
        try:
            yield
        finally:
            # The client's port may be that of a new connection by now.
            if self._transports.get(address) is transport:
                del self._transports[address]

    def reset(self, client: Sequence[Any] | None) -> None:
        """Reset a connection. Does nothing if it has ended."""
        transport = self._transports.get((str(client[0]), int(client[1]))) if client else None
        if transport is None or transport.is_closing():
            return
        # With a linger time of zero, closing sends RST instead of FIN and drops what was not sent.
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()

    @contextmanager
    def held(self, client: Sequence[Any] | None) -> Iterator[None]:
        """Register a connection on which a response is held back meanwhile."""
        self._held.append(client)
        try:
            yield
        finally:
            self._held.remove(client)

    def reset_held(self) -> None:
        """Reset those connections for the stop: a request that is cancelled then would be answered with a 500."""
        for client in tuple(self._held):
            self.reset(client)
