"""`ports.Stream` over an ordinary boto3 Kinesis client.

The client is handed in and shared by all threads; it should not retry by itself (one attempt), because the
worker paces and retries per shard, and it must be able to wait for a page of 10 MiB. Two event handlers are
registered on it. They act on this module's own GetRecords calls only: the same client may serve others. Pages
may come past the client, over `transport.get_records`, and records go past it, over `transport.put_records`; all else
goes through it.

Facts of the Kinesis API (2013-12-02) this rests on:

* AT_SEQUENCE_NUMBER with a trimmed number is accepted and starts at the trim horizon: a gap shows only in the
  first record. InvalidArgumentException means the number is no position of this shard at all.
* AT_TIMESTAMP in the future is refused. An older botocore cuts the time to whole seconds: that is earlier,
  and records come twice rather than never.
* ListShards takes either the stream or a NextToken, never both. A NextToken lives 300 seconds.
* ResourceNotFoundException does not say reliably whether it means the shard or the stream;
  DescribeStreamSummary does.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from pykcl.aws.errors import BAD_ARGUMENT, MALFORMED, WORKER, aws_errors, error_code, sort_failure, unreadable
from pykcl.aws.kinesis_decode import (
    NO_END,
    UnprovenEnd,
    description_of,
    put_answers,
    refused,
    shards_of,
)
from pykcl.aws.renewed_credentials import trouble_of
from pykcl.aws.server_clock import ServerClock, date_of
from pykcl.aws.transport.connection import wait_for_any
from pykcl.aws.transport.get_records import PageReads, PendingPage
from pykcl.aws.transport.put_records import PutRequests
from pykcl.config import HttpTransport, RecordEncoding
from pykcl.errors import (
    AnswerRefused,
    IteratorExpired,
    PositionRefused,
    PyKclError,
    SetupError,
    ShardGone,
    StreamMissing,
    SubscriptionTaken,
    TemporaryError,
    Throttled,
    WrongStream,
)
from pykcl.interfaces import Fetched
from pykcl.model.absence import GONE_AFTER, Absence
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.new_record import NewRecord, PutAnswer
from pykcl.model.shard import STREAM_ARN, Shard, ShardListing, StreamDescription
from pykcl.runtime import Runtime

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

log = logging.getLogger("pykcl.kinesis")

LARGEST_LIMIT = 10_000
"""Most records Kinesis returns per GetRecords call; a larger limit is refused by it."""

_ACCOUNT = re.compile(r"account ([0-9]{12})")


class KinesisStream:
    """One stream, by name or ARN. May be used by any number of threads at once.

    client: a boto3 Kinesis client. stream: name or ARN. runtime: for carrying the server's clock forward.
    http_transport, record_encoding: as in Config. who: as in `sort_failure`. gone_after: as in `Absence`; the stream
    that was not found or is another one is a TemporaryError before.
    Until `describe` has returned the ARN, a stream given by name is asked for by name; for good by an endpoint that
    refuses ARNs, such as kinesalite. One given by ARN never is: another account may have a stream of that name.
    """

    def __init__(
        self,
        client: KinesisClient,
        stream: str,
        runtime: Runtime,
        *,
        http_transport: HttpTransport = "auto",
        record_encoding: RecordEncoding = "auto",
        gone_after: float = 0.0,
        who: str = WORKER,
    ) -> None:
        self._who = who
        self._absence, self._another = Absence(gone_after), Absence(gone_after)
        found = STREAM_ARN.match(stream)
        self._client = client
        self._runtime = runtime
        self._name = found["name"] if found else stream
        self._arn = stream if found else None
        self._is_given_by_name, self._goes_by_name, self._is_arn_taken = found is None, False, False
        self._first_seen: StreamDescription | None = None
        self._unproven_ends: dict[str, Absence] = {}
        self._clock = ServerClock(runtime, log)
        self._reads = PageReads(client, runtime, http_transport, record_encoding)
        self._calling = self._reads.clock.calling
        self._puts = PutRequests(client, runtime, http_transport, self._reads.clock)

    @property
    def name(self) -> str:
        return self._name

    @property
    def arn(self) -> str | None:
        """The stream's ARN, once known."""
        return self._arn

    @property
    def transport(self) -> str:
        """Transport of the next page: "boto3", "direct, JSON" or "direct, CBOR"."""
        return self._reads.transport

    def describe(self) -> StreamDescription:
        """Ask Kinesis what the stream is; from then on it is asked for by ARN.

        Raises StreamMissing when there is none or it is being deleted, TemporaryError, SetupError.
        """
        try:
            answer = self._call(
                f"Describing stream {self._name!r}",
                self._calling(self._client.describe_stream_summary),
                self._stream(),
            )
        except NotFoundError as error:
            missing = self._missing(str(error))
        else:
            description = description_of(answer, self._name)
            if description.status != "DELETING":
                self._absence.found()
                self._arn = description.arn
                # The first one is kept: it shows for good whether a later stream of this name is another one.
                self._first_seen = self._first_seen or description
                return description
            missing = StreamMissing(
                f"Stream {self._name!r} ({description.arn}) is being deleted. Make it again or name another."
            )
        if self._absence.is_proven(self._runtime.monotonic()):
            try:
                raise missing
            finally:
                del missing  # its traceback holds this frame: no cycle
        raise TemporaryError(f"{missing} It is asked for again: one such answer proves nothing.").about("E03")

    def list_shards(self) -> ShardListing:
        """Every shard Kinesis still lists, open and closed. `complete=False` when a later page failed.

        Raises Throttled, TemporaryError, StreamMissing or SetupError when the first page fails.
        """
        try:
            answer = self._call(self._listing, self._calling(self._client.list_shards), self._stream())
        except NotFoundError as error:
            message = str(error)
        else:
            return self._whole_listing(answer)
        # Outside the except block. It raises what is the matter where DescribeStreamSummary finds no stream, either.
        self.describe()
        raise TemporaryError(f"{message}, and DescribeStreamSummary shows the stream. Listing again.")

    def _whole_listing(self, answer: Mapping[str, Any]) -> ShardListing:
        shards = shards_of(answer)
        try:
            self._list_further(answer.get("NextToken"), shards)
        except PyKclError:
            # Throttled, token expired, network: the pages we have are true, what is absent proves nothing.
            return ShardListing(tuple(shards.values()), complete=False)
        return ShardListing(tuple(shards.values()))

    def put(self, records: Sequence[NewRecord]) -> list[PutAnswer]:
        """Send one PutRecords request; see `interfaces.PutStream`. Raises StreamMissing when there is no stream."""
        doing = f"Putting records into stream {self._name!r}"
        try:
            answer = self._call(doing, partial(self._puts.put, records), self._stream())
        except NotFoundError as error:
            message = str(error)
        else:
            return put_answers(answer, len(records))
        # Outside the except block. It raises what is the matter where DescribeStreamSummary finds no stream, either.
        self.describe()
        raise Throttled(f"{message}, and DescribeStreamSummary shows the stream. Nothing was put.")

    def open(self, shard_id: str, start: ReadFrom) -> str:
        """A shard iterator, good for five minutes.

        Raises ShardGone, StreamMissing, WrongStream (deleted and made again since `describe`); TemporaryError
        for a start time Kinesis' clock has not reached; SetupError when `start` is no position of this shard.
        """
        request = {**self._stream(), "ShardId": shard_id, "ShardIteratorType": start.kind}
        request |= place_of(start, "StartingSequenceNumber")
        try:
            answer = self._call(
                f"Opening {shard_id} of stream {self._name!r}",
                self._calling(self._client.get_shard_iterator),
                request,
            )
        except NotFoundError as error:
            failure = self._gone(shard_id, str(error))
        except BadArgumentError as error:
            failure = self._start_refused(shard_id, start, str(error))
        else:
            iterator = answer.get("ShardIterator")
            if isinstance(iterator, str) and iterator:
                return iterator
            failure = AnswerRefused(
                f"GetShardIterator for {shard_id} answered without an iterator. Asking again."
            )
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def fetch(self, shard_id: str, iterator: str, limit: int) -> Fetched:
        """One page of at most `limit` Kinesis records, not de-aggregated.

        Raises IteratorExpired, Throttled, ShardGone, StreamMissing, WrongStream, AnswerRefused (the page
        cannot be true; ask for it again), TemporaryError or SetupError. No text carries data, partition keys
        or the iterator.
        """
        request = self._page_request(iterator, limit)
        return self._page(shard_id, request, self._reads.get_records)

    @property
    def max_pending_pages(self) -> int:
        """Number of connections that are kept; 0 unless pages come over the direct transport."""
        return self._reads.max_pending

    def request_page(self, shard_id: str, iterator: str, limit: int) -> PendingPage | None:
        """Send the request for a page and do not wait. None where that cannot be: `fetch` has to do it.

        Never raises: what stands in the way, `fetch` meets, too.
        """
        return self._reads.begin(self._page_request(iterator, limit), partial(self._page_of, shard_id))

    def _page_of(self, shard_id: str, pending: PendingPage) -> Fetched:
        return self._page(shard_id, pending.request, lambda **_: self._reads.finish(pending), begun=True)

    def wait_for_any(self, asked: Sequence[PendingPage], timeout: float) -> None:
        """Wait until something has come for one of them; see `ports.NonBlockingStream`."""
        wait_for_any([one.underway for one in asked], timeout)

    def _page_request(self, iterator: str, limit: int) -> dict[str, Any]:
        request: dict[str, Any] = {"ShardIterator": iterator, "Limit": min(limit, LARGEST_LIMIT)}
        if self._arn is not None and not self._goes_by_name:
            request["StreamARN"] = self._arn
        return request

    def _page(
        self,
        shard_id: str,
        request: Mapping[str, Any],
        method: Callable[..., Mapping[str, Any]],
        *,
        begun: bool = False,
    ) -> Fetched:
        try:
            answer = self._call(f"Reading {shard_id} of stream {self._name!r}", method, request)
        except NotFoundError as error:
            failure = self._gone(shard_id, str(error))
        except BadArgumentError as error:
            failure = IteratorExpired(f"{error}. Open a new iterator at the last delivered record.")
        else:
            try:
                page = self._reads.page(answer, request, shard_id, self._name, begun=begun)
            except UnprovenEnd as error:
                page = error.page
            else:
                if self._unproven_ends:
                    self._unproven_ends.pop(shard_id, None)
                return page
            return self._page_of_end(page, shard_id, begun=begun)
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def _page_of_end(self, page: Fetched, shard_id: str, *, begun: bool) -> Fetched:
        """Return a page without NextShardIterator and ChildShards, as older emulators end a shard, with what it lacks.

        ListShards decides, once the page has come again for some seconds. Records come before an end: the shard is
        opened behind them, and the end is an empty page. Raises AnswerRefused until then, or if there is no end.
        """
        absence = self._unproven_ends.setdefault(shard_id, Absence(GONE_AFTER))
        if not absence.is_proven(self._runtime.monotonic()) or begun:
            raise refused(shard_id, NO_END)
        listing = self.list_shards()
        children = listing.children_of_closed(shard_id)
        still_open = next((shard.shard_id for shard in listing.shards if shard.is_open), None)
        if not children or still_open is None:
            raise refused(
                shard_id, f"{NO_END}, and ListShards does not show a closed shard with all its children"
            )
        if page.records:
            behind = ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=page.records[-1].sequence_number)
            page = replace(page, next_iterator=self.open(shard_id, behind))
        else:
            # Something on the way may leave the fields out of every answer, and this be an empty page before the end. A
            # shard that is open shows whether they come at all.
            self.fetch(still_open, self.open(still_open, ReadFrom("LATEST")), 1)
            page = replace(page, children=children)
        self._unproven_ends.pop(shard_id, None)
        return page

    def server_time_millis(self, *, as_seen: bool = False) -> int:
        """Kinesis' clock, epoch milliseconds, rounded down to the second; see `interfaces.Stream`."""
        millis = self._clock.seen_millis() if as_seen else self._clock.bound_millis()
        return millis // 1000 * 1000

    def credentials_trouble(self) -> PyKclError | None:
        """See `interfaces.HasCredentials`."""
        return trouble_of(self._client)

    def _stream(self) -> dict[str, Any]:
        if self._arn is None or self._goes_by_name:
            return {"StreamName": self._name}
        return {"StreamARN": self._arn}

    def _call(
        self, doing: str, method: Callable[..., Mapping[str, Any]], request: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Call once, note the server's clock, sort what goes wrong."""
        code, is_about_arn = None, False
        try:
            answer = dict(method(**request))
        except ClientError as error:
            failure = refusal_of(error, doing, self._who)
            code = error_code(error)
            is_about_arn = code in BAD_ARGUMENT and "StreamARN" in request and not self._is_arn_taken
        except aws_errors() as error:
            failure = sort_failure(error, doing=doing, who=self._who)
        except MALFORMED as error:
            failure = unreadable(error, doing=doing)
        else:
            self._clock.note(date_of(answer))
            if "StreamARN" in request:
                self._is_arn_taken = True
            return answer
        if is_about_arn and not self._is_given_by_name:
            failure = SetupError(
                f"{doing} failed: the endpoint refuses its ARN ({code}). Do: check account and region in it; for an "
                f"emulator that knows no ARNs, such as kinesalite, give the name, stream={self._name!r}."
            )
        elif is_about_arn and (by_name := self._call_by_name(doing, method, request)) is not None:
            return by_name
        # Raised outside the except blocks: botocore's errors may quote the iterator or the body, and a
        # traceback prints the whole chain.
        try:
            raise failure
        finally:
            del failure  # its traceback holds this frame: no cycle

    def _call_by_name(
        self, doing: str, method: Callable[..., Mapping[str, Any]], request: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Send the request with the name in the place of the ARN; once that works, all others, too. None if not."""
        others = {key: value for key, value in request.items() if key != "StreamARN"}
        try:
            answer = self._call(doing, method, {"StreamName": self._name, **others})
        except PyKclError:
            return None
        if not self._goes_by_name:
            log.warning(
                "the endpoint refuses the ARN of the stream, which is asked for by its name from now on stream=%r",
                self._name,
            )
        self._goes_by_name = True
        return answer

    def _list_further(self, token: Any, shards: dict[str, Shard]) -> None:
        seen = set()
        while token is not None:
            if not isinstance(token, str) or token in seen:
                raise AnswerRefused(f"Listing the shards of {self._name!r} goes round in a circle.")
            seen.add(token)
            # Never with the stream: Kinesis refuses a NextToken beside it.
            answer = self._call(self._listing, self._calling(self._client.list_shards), {"NextToken": token})
            shards.update(shards_of(answer))
            token = answer.get("NextToken")

    @property
    def _listing(self) -> str:
        return f"Listing the shards of stream {self._name!r}"

    def _gone(self, shard_id: str, message: str) -> PyKclError:
        """Kinesis knows no such resource: find out which one, or whether the stream is another one now."""
        before = self._first_seen
        try:
            now = self.describe()
        except StreamMissing as error:
            return error
        except PyKclError as error:
            # Without knowing what is gone, nothing may be concluded from it.
            return TemporaryError(
                f"{message}, and asking whether the stream still exists failed too: {error}"
            )
        if before is not None and before.created_at != now.created_at:
            if not self._another.is_proven(self._runtime.monotonic()):
                return TemporaryError(
                    f"{message}, and the stream seems to be another one. It is asked again."
                )
            return WrongStream(
                f"Stream {self._name!r} was deleted and created again while it was read (first "
                f"{_utc(before.created_at)}, now {_utc(now.created_at)}). The positions in its lease table "
                "are the old one's. Use a new application name, or delete the lease table to start afresh."
            )
        self._another.found()
        return ShardGone(
            f"Kinesis knows no shard {shard_id} in stream {self._name!r}: it was trimmed after its retention "
            "period, or it is of another stream."
        )

    def _missing(self, message: str) -> StreamMissing:
        arn = STREAM_ARN.match(self._arn or "")
        account = arn["account"] if arn else _account_in(message)
        region = self._client.meta.region_name
        where = f"region {region}" + (f", account {account}" if account else "")
        other = f" Its ARN names region {arn['region']}." if arn and arn["region"] != region else ""
        return StreamMissing(
            f"There is no stream {self._name!r} in {where}.{other} Check the spelling, the region and whose "
            f"credentials these are; `aws kinesis list-streams --region {region}` shows what is there."
        ).about(
            "E03",
            f"pykcl streams list --region {region} shows what is there; correct the name, region or credentials",
        )

    def _start_refused(self, shard_id: str, start: ReadFrom, message: str) -> PyKclError:
        """Kinesis calls the place to start invalid: not yet come, of another stream, or not a position."""
        is_time = start.kind == "AT_TIMESTAMP"
        if is_time and (start.at_millis or 0) >= self.server_time_millis():
            return self._too_early(shard_id, start.at_millis or 0)
        gone = self._gone(shard_id, message)
        if not isinstance(gone, ShardGone):
            return gone
        if is_time:
            return self._too_early(shard_id, start.at_millis or 0)
        place = f"{start.kind} {start.sequence_number or start.at_millis or ''}".strip()
        return PositionRefused(
            f"Kinesis refuses to open {shard_id} of stream {self._name!r} at {place}: that is no position of "
            "this shard. The checkpoint in the lease table was made for another stream or shard, or was "
            "changed by hand. Correct the row, or use a new application name."
        )

    def _too_early(self, shard_id: str, at_millis: int) -> TemporaryError:
        """A time to come is the one reason for which Kinesis refuses a time; its clock need not be the one we see."""
        return TemporaryError(
            f"Kinesis refuses to open {shard_id} of stream {self._name!r} at {_utc(at_millis)}: by its clock that is a "
            f"time in the future. The clock of this machine says {_utc(self._runtime.utcnow_millis())}, the latest "
            f"answer of AWS {_utc(self._clock.seen_millis())}. Waiting until then. If that time is not meant, choose "
            "an earlier start, and set the clock that is wrong."
        ).about("E30")


def place_of(start: ReadFrom, number_name: str) -> dict[str, Any]:
    """Return the members of a request that say the place, beside its kind. number_name: of a sequence number."""
    if start.kind == "AT_TIMESTAMP":
        return {"Timestamp": datetime.fromtimestamp((start.at_millis or 0) / 1000, tz=UTC)}
    return {} if start.sequence_number is None else {number_name: start.sequence_number}


class NotFoundError(PyKclError):
    """ResourceNotFoundException; the text is for deriving a better error, never for the user alone."""


class BadArgumentError(PyKclError):
    """InvalidArgumentException."""


def refusal_of(error: ClientError, doing: str, who: str = WORKER) -> PyKclError:
    code = error_code(error)
    if code == "ResourceNotFoundException":
        account = _account_in(str(error.response.get("Error", {}).get("Message", "")))
        return NotFoundError(f"{doing} found nothing" + (f" (account {account})" if account else ""))
    if code == "ExpiredIteratorException":
        return IteratorExpired(f"{doing} came with an iterator older than five minutes. Open a new one.")
    if code == "ExpiredNextTokenException":
        return TemporaryError(f"{doing} took too long between two pages ({code}). List again.")
    if code in BAD_ARGUMENT and error.operation_name in _OF_ONE_SHARD:
        # Not the set-up of the whole worker: what was refused came out of one lease row or one answer.
        return BadArgumentError(f"{doing} was refused as invalid ({code})")
    if code in _KEY_TROUBLE:
        return SetupError(
            f"{doing} failed: the stream is encrypted with a KMS key that {_KEY_TROUBLE[code]} ({code}). "
            "Nothing can be read or put until that is put right; no record is lost before the retention period ends."
        )
    failure = sort_failure(error, doing=doing, who=who)
    if code == "ResourceInUseException" and error.operation_name == "SubscribeToShard":
        failure = SubscriptionTaken(
            f"{doing} was refused, or ended: the same consumer has another subscription to it ({code}). It is the next "
            "owner of the lease, or another application that uses the same consumer. Subscribing again takes over "
            "once the other one is five seconds old."
        )
    if code == "ProvisionedThroughputExceededException" and error.operation_name == "GetRecords":
        # The shard's own limit, which all applications that read the stream share; not the account's for a call.
        failure.about("E19")
    return failure


_OF_ONE_SHARD = ("GetShardIterator", "GetRecords", "SubscribeToShard")
_KEY_TROUBLE = {
    "KMSDisabledException": "is disabled: enable it",
    "KMSInvalidStateException": "is not in a usable state (pending deletion or import?): restore it",
    "KMSNotFoundException": "does not exist, or not in this account and region",
    "KMSOptInRequired": "cannot be used, as the account has not signed up for AWS KMS",
}


def _account_in(text: str) -> str | None:
    found = _ACCOUNT.search(text)
    return found.group(1) if found else None


def _utc(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, tz=UTC).isoformat(timespec="milliseconds")
