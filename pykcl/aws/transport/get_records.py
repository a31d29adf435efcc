"""The GetRecords call: over the direct transport when nothing stands against it, else over botocore.

The first page of a stream always comes over botocore; what was sent for it is what the direct transport sends from then
on (`request_template`). An answer is the same either way: as botocore gives it, but with its body still to be decoded,
by `page`; errors are botocore's own classes.

Pages are requested in CBOR or in JSON: CBOR is a quarter smaller and much cheaper to decode, JSON is documented.
Kinesis has spoken CBOR to the Java SDK since 2016, but documents it nowhere. So "auto" uses it only after one page was
read both ways and had the same records. That is done once for an endpoint in a process, and only with a page for which
CBOR is of use. Any failure with CBOR leads back to JSON, for good.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pykcl.aws.errors import MALFORMED, aws_errors, error_code
from pykcl.aws.kinesis_decode import page_of_answer, page_of_body, page_of_cbor
from pykcl.aws.transport.cbor import CBOR_TYPE, text_and_numbers
from pykcl.aws.transport.connection import Answer, PendingAnswer
from pykcl.aws.transport.transport import (
    SigningClock,
    Transport,
    TransportSelector,
    client_error,
    is_asking,
    metadata_of,
)
from pykcl.config import HttpTransport, RecordEncoding
from pykcl.errors import AnswerRefused
from pykcl.interfaces import Fetched, PageStatus
from pykcl.model.record import Record
from pykcl.runtime import Runtime

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

log = logging.getLogger("pykcl.kinesis")

MAX_COMPARED: Final = 100
MAX_COMPARED_BYTES: Final = 256 * 1024
"""A comparison reads only the beginning of a page again, because it counts against the shard's limits."""
MIN_COMPARED_PAGE: Final = 16 * 1024
"""Size of the answer from which on CBOR saves more than a second read costs."""
_MAX_PAGES_TO_PASS: Final = 1000

_SUSPECT_AFTER: Final = 3
REFUSALS: Final = frozenset({"SerializationException", "UnknownOperationException", "UnsupportedMediaType"})


class CborProbe:
    """The proof that one endpoint speaks CBOR. Used by the threads of all shards that read from it.

    One comparison runs at a time. One that is throttled or not answered proves nothing, so it is made again; from the
    second failure on, more and more pages pass before that, because each costs a read.
    """

    def __init__(self, choice: RecordEncoding) -> None:
        self.is_cbor = choice == "cbor"
        self.is_open = choice == "auto"
        """True until a comparison has come to an end."""
        self._failures = self._pages_to_pass = 0
        self._only_failures: float = 0
        self._turn = [None]

    def is_suspect(self, status: int) -> bool:
        """Count an answer to CBOR; return True if nothing but failures of the service came so far, several in a row."""
        self._only_failures = self._only_failures + 1 if status >= 500 else -math.inf
        return self._only_failures >= _SUSPECT_AFTER

    def distrust(self, reason: str) -> None:
        """JSON from now on."""
        if self.is_cbor or self.is_open:
            log.warning("reading JSON, which costs more CPU, instead of CBOR: %s", reason)
        self.is_cbor = self.is_open = False

    def is_due(self) -> bool:
        """Count a page that could be compared; return True if it should be."""
        self._pages_to_pass -= 1
        return self.is_open and self._pages_to_pass < 0

    def begin(self) -> bool:
        """Return True if the caller may compare; it calls `end` then."""
        try:
            # `pop` is atomic: of several threads one gets the turn.
            self._turn.pop()
        except IndexError:
            return False
        if self.is_open:
            return True
        # Another thread came to a result between the caller's `is_due` and this.
        self._turn.append(None)
        return False

    def end(self) -> None:
        """Let the next comparison begin. One that left the question open counts as failed."""
        if self.is_open:
            self._failures += 1
            self._pages_to_pass = min(2**self._failures - 2, _MAX_PAGES_TO_PASS)
        self._turn.append(None)

    def compare(self, json: Sequence[Record], cbor: Sequence[Record]) -> None:
        """json, cbor: records from the same iterator, of which there may be more in one than in the other."""
        common = min(len(json), len(cbor))
        if not common or not self.is_open:
            return
        if list(json[:common]) != list(cbor[:common]):
            self.distrust("the same place read both ways had other records")
            return
        self.is_cbor, self.is_open = True, False
        log.debug("reading CBOR")


PROBES: Final[dict[str, CborProbe]] = {}
"""Probes of "auto" in this process, by the URL of the endpoint."""


def probe_of(endpoint: str, choice: RecordEncoding) -> CborProbe:
    """Return the probe of an endpoint; where the encoding is chosen there is nothing to prove or to remember."""
    return PROBES.setdefault(endpoint, CborProbe(choice)) if choice == "auto" else CborProbe(choice)


def to_compare(records: Sequence[Record]) -> int:
    """Return how many of a page's records are read again."""
    total = 0
    for number, record in enumerate(records[:MAX_COMPARED]):
        total += len(record.data)
        if total > MAX_COMPARED_BYTES:
            return max(number, 1)
    return min(len(records), MAX_COMPARED)


_BODY: Final = "pykcl_body"
_IS_CBOR: Final = "pykcl_cbor"
_METHOD: Final = "get_records"
_OPERATION: Final = "GetRecords"
_JSON = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class PendingPage:
    """An `interfaces.PendingRead`: a request that was sent, and whose answer has not been waited for.

    clock_ahead_millis: of the time it was signed at. wait: for the page, given this.
    """

    request: Mapping[str, Any] = field(repr=False)
    transport: Transport
    underway: PendingAnswer
    is_cbor: bool
    clock_ahead_millis: int
    wait: Callable[[PendingPage], Fetched] = field(repr=False)

    def poll(self) -> PageStatus:
        return self.underway.poll()

    def page(self) -> Fetched:
        return self.wait(self)

    def drop(self) -> None:
        self.transport.drop(self.underway)


class PageReads:
    """`get_records` of one stream. May be used by any number of threads at once.

    clock: what all requests of the client are to be signed with.
    """

    def __init__(
        self, client: KinesisClient, runtime: Runtime, transport: HttpTransport, wire: RecordEncoding
    ) -> None:
        self._client = client
        self._probe = probe_of(client.meta.endpoint_url, wire)
        # Records have come by `begin`: the next page is left to `get_records`, which may ask once more to compare.
        self._is_to_compare = False
        self.clock = SigningClock(client, runtime, log=log, service="Kinesis")
        client.meta.events.register(
            "before-parse.kinesis.GetRecords", _set_body_aside, unique_id="pykcl-set-body-aside"
        )
        self._selector = TransportSelector(
            client,
            runtime,
            transport,
            (_METHOD,),
            self.clock,
            handlers=(_set_body_aside,),
            log=log,
            doing="reading",
        )

    @property
    def transport(self) -> str:
        """Transport of the next page: "boto3", "direct, JSON" or "direct, CBOR"."""
        if not self._selector.has_template(_METHOD):
            return "boto3"
        return "direct, CBOR" if self._probe.is_cbor else "direct, JSON"

    def get_records(self, **request: Any) -> dict[str, Any]:
        """Raises `aws_errors`, what botocore's parser raises; SetupError where the direct transport is insisted on and
        cannot be."""
        arn = request.get("StreamARN")
        transport = self._selector.direct(_METHOD, arn)
        if transport is not None:
            return self._direct(transport, request)
        answer = self._selector.over_botocore(_METHOD, arn, request)
        self._selector.require_direct(_METHOD)
        return answer

    def page(
        self,
        answer: Mapping[str, Any],
        request: Mapping[str, Any],
        shard_id: str,
        stream: str,
        *,
        begun: bool = False,
    ) -> Fetched:
        """The page in an answer to `request`; of one that was begun, without asking for anything more.

        Raises AnswerRefused.
        """
        body = answer.get(_BODY)
        if body is None:
            return page_of_answer(answer, shard_id, stream)
        if answer.get(_IS_CBOR) and not body.startswith(b"{"):
            try:
                return page_of_cbor(body, shard_id, stream)
            except AnswerRefused:
                self._probe.distrust("a page of it could not be read")
                raise
        page = page_of_body(body, shard_id, stream)
        if page.records and len(body) >= MIN_COMPARED_PAGE and self._probe.is_open and self._probe.is_due():
            self._is_to_compare = begun
            if not begun:
                self._compare(request, page, shard_id, stream)
        return page

    @property
    def max_pending(self) -> int:
        """The maximum of requests pending at a time; 0: none can be sent now."""
        return 0 if self._probe.is_open and self._is_to_compare else self._selector.connections_kept(_METHOD)

    def begin(self, request: Mapping[str, Any], wait: Callable[[PendingPage], Fetched]) -> PendingPage | None:
        """Send the request, and let `wait` get the answer from `finish`. None where it must go another way:
        `get_records`."""
        if not self.max_pending:
            return None
        is_cbor, clock_ahead = self._probe.is_cbor, 0
        try:
            transport = self._selector.direct(_METHOD, request.get("StreamARN"), renewing=False)
            clock_ahead = 0 if transport is None else transport.clock_ahead_millis
            underway = None if transport is None else transport.begin(*_body(request, is_cbor))
        except Exception as error:  # noqa: BLE001 - a provider of credentials may raise anything; `get_records` sorts it
            log.debug("a page could not be asked for: %s", type(error).__name__)
            return None
        if transport is None or underway is None:
            return None
        return PendingPage(request, transport, underway, is_cbor, clock_ahead, wait)

    def finish(self, begun: PendingPage) -> dict[str, Any]:
        """Raises as `get_records`."""
        return self._direct(begun.transport, begun.request, begun)

    def _direct(
        self, transport: Transport, request: Mapping[str, Any], begun: PendingPage | None = None
    ) -> dict[str, Any]:
        is_cbor = self._probe.is_cbor if begun is None else begun.is_cbor
        answer = self._post(transport, request, is_cbor, begun)
        if is_cbor:
            refused = answer.status >= 300 and self._is_refusal_of_cbor(answer)
            suspect = self._probe.is_suspect(answer.status)
            if refused:
                self._probe.distrust("it is refused")
            if refused or suspect:
                status, is_cbor = answer.status, False
                answer = self._post(transport, request, is_cbor)
                if suspect and answer.status < 300:
                    self._probe.distrust(f"it is answered with HTTP {status}, and JSON with records")
        if answer.status >= 300:
            raise client_error(self._client, _OPERATION, answer)
        return {_BODY: answer.body, _IS_CBOR: is_cbor, "ResponseMetadata": metadata_of(answer)}

    def _post(
        self,
        transport: Transport,
        request: Mapping[str, Any],
        is_cbor: bool,
        begun: PendingPage | None = None,
    ) -> Answer:
        """Post the request, and a second time if its signature was refused and is another one now.

        begun: the request, if it is sent already.
        """
        clock_ahead = begun.clock_ahead_millis if begun else transport.clock_ahead_millis
        answer = transport.finish(begun.underway) if begun else _posted(transport, request, is_cbor)
        if answer.status >= 300 and self.clock.may_repeat(
            self._code(answer), answer.status, answer.headers.get("date"), clock_ahead
        ):
            answer = _posted(transport, request, is_cbor)
        return answer

    def _is_refusal_of_cbor(self, answer: Answer) -> bool:
        return answer.status == 415 or self._code(answer) in REFUSALS

    def _code(self, answer: Answer) -> str | None:
        return error_code(client_error(self._client, _OPERATION, answer))

    def _compare(self, request: Mapping[str, Any], page: Fetched, shard_id: str, stream: str) -> None:
        """Read the beginning of `page` again, as CBOR. Nothing of that is delivered."""
        again = {**request, "Limit": to_compare(page.records)}
        unanswered: tuple[type[Exception], ...] = (*aws_errors(), *MALFORMED)
        if not self._probe.begin():
            return
        try:
            transport = self._selector.direct(_METHOD, request.get("StreamARN"))
            if transport is None:
                return
            answer = self._post(transport, again, is_cbor=True)
            if answer.status < 300:
                self._probe.compare(page.records, page_of_cbor(answer.body, shard_id, stream).records)
            elif self._is_refusal_of_cbor(answer):
                self._probe.distrust("it is refused")
        except AnswerRefused:
            self._probe.distrust("a page of it could not be read")
        except unanswered as error:
            # Throttled, timed out, whatever: the page that was asked for is there, and a later one will do.
            log.debug("comparing CBOR with JSON failed: %s", type(error).__name__)
        finally:
            self._probe.end()


def _posted(transport: Transport, request: Mapping[str, Any], is_cbor: bool) -> Answer:
    body, content_type = _body(request, is_cbor)
    return transport.post(body, may_repeat=True, content_type=content_type)


def _body(request: Mapping[str, Any], is_cbor: bool) -> tuple[bytes, str | None]:
    """Return the body and its content type; None: the one that botocore sends."""
    return (text_and_numbers(request), CBOR_TYPE) if is_cbor else (_JSON.encode(request).encode(), None)


def _set_body_aside(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    """before-parse handler: keep a good GetRecords body from botocore's parser, to be decoded by us.

    Errors stay with botocore. Where the event never comes (old botocore), botocore's parsed answer is used.
    """
    body = response_dict.get("body")
    if not is_asking() or response_dict.get("status_code", 500) >= 300 or not isinstance(body, bytes):
        return
    customized_response_dict[_BODY] = body
    response_dict["body"] = b""
