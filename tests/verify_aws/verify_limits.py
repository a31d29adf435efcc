"""Steps that do too much, or come too late."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import botocore.auth
from verify_run import FIRST, HORIZON, Run, at_once, code_of, follow, holds, records_of

from pykcl.aws.errors import THROTTLING

CALLS = 40
WRONG_BY = timedelta(minutes=10)


def throttles(run: Run) -> None:
    account, found = run.account, run.findings
    name = account.stream("throttles")
    iterator = account.reader(name).open(FIRST, HORIZON)
    read: Any = lambda: account.once.get_records(ShardIterator=iterator)  # noqa: E731
    codes = at_once(read, CALLS)
    _only_throttled(run, "GetRecords", codes)
    begun = time.monotonic()
    account.wait_for(lambda: code_of(read) == "none", "GetRecords to be served again", 60)
    again = time.monotonic() - begun
    found.answer("Q20", f"{CALLS} calls at once: {codes}; served again after {again:.1f} s.")
    request = {"StreamName": name, "ShardId": FIRST, "ShardIteratorType": "LATEST"}
    codes = at_once(lambda: account.once.get_shard_iterator(**request), CALLS)
    _only_throttled(run, "GetShardIterator", codes)
    found.answer("Q22", f"{CALLS} calls at once: {codes}.")
    _put_too_much(run, name)


def _only_throttled(run: Run, what: str, codes: dict[str, int]) -> None:
    others = codes.keys() - THROTTLING - {"none"}
    run.findings.check(f"{what} is refused by a code that counts as throttling", not others, sorted(others))


def _put_too_much(run: Run, name: str) -> None:
    """Four megabytes into a shard at once, what was refused again, until all is in."""
    waiting = [b"%02d" % number + b"x" * 400_000 for number in range(10)]
    codes: dict[str, int] = {}
    begun, calls = time.monotonic(), 0
    while waiting and time.monotonic() < begun + 120:
        entries = [{"Data": data, "PartitionKey": "k"} for data in waiting]
        answer = run.account.once.put_records(StreamName=name, Records=entries)
        calls += 1
        refused = []
        for data, one in zip(waiting, answer["Records"], strict=True):
            if "ErrorCode" in one:
                codes[one["ErrorCode"]] = codes.get(one["ErrorCode"], 0) + 1
                refused.append(data)
        run.findings.note("put", entries=len(waiting), refused=len(refused))
        waiting = refused
        if waiting:
            run.account.sleep(1.0)
    _only_throttled(run, "an entry of PutRecords", codes)
    run.findings.check("every record is in after repeating what was refused", not waiting, len(waiting))
    records = records_of(follow(run, run.account.reader(name), FIRST, HORIZON, holds(10 - len(waiting))))
    distinct = {record.data[:2] for record in records}
    run.findings.check("what was put is read, each once", len(records) == len(distinct) == 10 - len(waiting))
    run.findings.answer(
        "Q21", f"4 MB at once: {codes or 'nothing'} refused; all in after {calls} call(s) a second apart."
    )


def clock(run: Run) -> None:
    """Requests signed ten minutes ahead of this machine's clock. They change nothing, whatever the answer."""
    now = getattr(botocore.auth, "get_current_datetime", None)
    if now is None:
        run.findings.unanswered("Q23", "this botocore takes its time from elsewhere; use a newer one")
        return
    with patch.object(
        botocore.auth, "get_current_datetime", lambda *args, **how: now(*args, **how) + WRONG_BY
    ):
        codes = {
            "Kinesis": code_of(lambda: run.account.once.list_streams(Limit=1)),
            "DynamoDB": code_of(lambda: run.account.dynamodb.list_tables(Limit=1)),
        }
    if set(codes.values()) == {"none"}:
        run.findings.unanswered("Q23", "this service takes any time")
    else:
        run.findings.answer("Q23", f"{codes}.")
