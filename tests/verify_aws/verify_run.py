"""The surroundings of every step, and the reading of a shard page by page with everything noted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from verify_account import AWS_ERRORS, Account, why
from verify_report import Findings

from pykcl.aws.errors import THROTTLING
from pykcl.errors import Throttled
from pykcl.interfaces import Fetched
from pykcl.model.checkpoint import ReadFrom

FIRST = "shardId-000000000000"
HORIZON = ReadFrom("TRIM_HORIZON")
HASH_KEYS = 2**128
MOST_CALLS = 3000
"""Pages after which a shard is given up: a minute of stream time a call is two days."""
QUIET_CALLS = 60
READ_PAUSE = 0.25
"""Between two reads of a shard, of which Kinesis allows five a second."""


@dataclass
class Run:
    """minutes: how old the sparse stream gets. cases: of the suites, as pytest's -k; "" for all of them. kept: what a
    step that begins early leaves for its end."""

    account: Account
    findings: Findings
    minutes: float
    cases: str
    folder: Path
    say: Callable[[str], None]
    kept: dict[str, Any] = field(default_factory=dict)

    def put(self, stream: str, data: bytes, hash_key: int | None = None) -> tuple[str, str]:
        """(shard id, sequence number)."""
        where = {} if hash_key is None else {"ExplicitHashKey": str(hash_key)}
        answer = self.account.kinesis.put_record(StreamName=stream, Data=data, PartitionKey="k", **where)
        return answer["ShardId"], answer["SequenceNumber"]


@dataclass(frozen=True)
class Page:
    """A page, and when it came: seconds since the reading began. refused: throttled calls before it."""

    fetched: Fetched
    at: float
    refused: int

    @property
    def behind(self) -> int:
        return self.fetched.millis_behind_latest or 0


def follow(
    run: Run, stream: Any, shard: str, start: ReadFrom | str, enough: Callable[[list[Page]], bool]
) -> list[Page]:
    """Page after page until `enough` of them, the end of the shard, or MOST_CALLS. start: where to open, or an iterator.

    Raises TimeoutError when every call was throttled.
    """
    iterator = start if isinstance(start, str) else stream.open(shard, start)
    pages: list[Page] = []
    begun, refused = time.monotonic(), 0
    for _ in range(MOST_CALLS):
        try:
            fetched = stream.fetch(shard, iterator, 10_000)
        except Throttled:
            refused += 1
            run.account.sleep(READ_PAUSE)
            continue
        pages.append(Page(fetched, time.monotonic() - begun, refused))
        run.findings.note(
            "page",
            shard=shard,
            number=len(pages),
            seconds=round(pages[-1].at, 3),
            records=len(fetched.records),
            bytes=fetched.body_bytes,
            behind=fetched.millis_behind_latest,
            end=fetched.next_iterator is None,
            children=len(fetched.children),
            refused=refused,
        )
        refused = 0
        if fetched.next_iterator is None or enough(pages):
            return pages
        iterator = fetched.next_iterator
        if run.account.is_aws:
            run.account.sleep(READ_PAUSE)
    if not pages:
        raise TimeoutError(f"each of {MOST_CALLS} reads of {shard} was throttled")
    return pages


def holds(count: int) -> Callable[[list[Page]], bool]:
    """For `follow`: until so many records have come, or nothing more at the tip for QUIET_CALLS."""

    def enough(pages: list[Page]) -> bool:
        quiet = pages[-QUIET_CALLS:]
        is_quiet = len(quiet) == QUIET_CALLS and not any(
            page.fetched.records or page.behind for page in quiet
        )
        return is_quiet or len(records_of(pages)) >= count

    return enough


def records_of(pages: Iterable[Page]) -> list[Any]:
    return [record for page in pages for record in page.fetched.records]


def code_of(call: Callable[[], object]) -> str:
    """The error code of a call, "none" when it succeeded."""
    try:
        call()
    except AWS_ERRORS as error:
        if isinstance(error, ClientError) and is_unknown(error):
            raise
        return why(error)
    return "none"


def last_code_of(run: Run, call: Callable[[], object]) -> str:
    """`code_of`, but not of a call that was throttled: then it is made again."""
    for _ in range(20):
        code = code_of(call)
        if code not in THROTTLING:
            break
        run.account.sleep(READ_PAUSE)
    return code


def is_unknown(error: ClientError) -> bool:
    return error.response.get("Error", {}).get("Code") == "UnknownOperationException"


def at_once(call: Callable[[], object], times: int) -> dict[str, int]:
    """Make a call so many times, eight at a time: {error code: how often it came}."""
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: code_of(call), range(times)))
    return {code: codes.count(code) for code in sorted(set(codes))}
