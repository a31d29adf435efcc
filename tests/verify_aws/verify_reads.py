"""Steps that put records and read them: starts, a reshard, aggregated, large and sparse ones."""

from __future__ import annotations

import itertools
import time
from hashlib import md5
from statistics import median
from typing import Any

from verify_run import FIRST, HASH_KEYS, HORIZON, Page, Run, code_of, follow, holds, last_code_of, records_of

from pykcl.demo.producer import Mix
from pykcl.demo.record_log import payload_id
from pykcl.model.checkpoint import ReadFrom
from pykcl.model.kpl import deaggregate

ITERATOR_SECONDS = 300.0
LARGE = 10 * 1024 * 1024
"""With the partition key: what a stream takes at most."""


def starts(run: Run) -> None:
    account, found = run.account, run.findings
    name = account.stream("starts")
    stream = account.reader(name, http_transport="boto3")
    stream.describe()
    latest = stream.open(FIRST, ReadFrom("LATEST"))
    numbers = []
    for data in (b"0", b"1", b"2"):
        numbers.append(run.put(name, data)[1])
        account.sleep(1.2 if account.is_aws else 0.02)
    pages = follow(run, stream, FIRST, HORIZON, holds(3))
    if len(records_of(pages)) < len(numbers):
        raise TimeoutError(f"of {len(numbers)} records only {len(records_of(pages))} came")
    empty = next(number for number, page in enumerate(pages) if page.fetched.records)
    found.answer("Q04", f"{empty + 1} call(s), {empty} of them empty.")
    arrived = [round(record.arrived_at_millis) for record in records_of(pages)]
    expected = {
        "TRIM_HORIZON": (HORIZON, 0),
        "AT_SEQUENCE_NUMBER": (ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=numbers[1]), 1),
        "AFTER_SEQUENCE_NUMBER": (ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=numbers[1]), 2),
        "AT_TIMESTAMP of a record": (ReadFrom("AT_TIMESTAMP", at_millis=arrived[1]), 1),
        "AT_TIMESTAMP a millisecond later": (ReadFrom("AT_TIMESTAMP", at_millis=arrived[1] + 1), 2),
        "AT_TIMESTAMP before everything": (ReadFrom("AT_TIMESTAMP", at_millis=arrived[0] - 600_000), 0),
        "LATEST, opened before": (latest, 0),
    }
    wrong = []
    for label, (start, first) in expected.items():
        got = [record.data for record in records_of(follow(run, stream, FIRST, start, holds(3 - first)))]
        right = got == [b"0", b"1", b"2"][first:]
        if not found.check(f"{label} begins with the right record", right, f"{len(got)} records, or others"):
            wrong.append(label)
    found.answer(
        "Q05",
        f"wrong: {', '.join(wrong)}." if wrong else "Yes, each of them; AT_TIMESTAMP to the millisecond.",
    )
    request = {"StreamName": name, "ShardId": FIRST, "ShardIteratorType": "AT_TIMESTAMP"}
    code = last_code_of(run, lambda: account.once.get_shard_iterator(**request, Timestamp=time.time() + 600))
    found.check("a time that has not come is refused", code == "InvalidArgumentException", code)
    found.answer("Q06", f"Ten minutes ahead: {code}.")
    digits = {len(number) for number in numbers}
    found.check("sequence numbers have the same number of digits", len(digits) == 1, digits)
    found.answer("Q07", f"{sorted(digits)} digits in {len(numbers)} records.")
    _compare_ways(run, name, records_of(pages))


def _compare_ways(run: Run, name: str, expected: list[Any]) -> None:
    """The same page over boto3 and over the direct transport, in both forms of it."""
    seen = []
    for way in (
        {"http_transport": "direct", "record_encoding": "json"},
        {"http_transport": "direct", "record_encoding": "cbor"},
    ):
        stream = run.account.reader(name, **way)
        stream.describe()
        # The first page goes over boto3 and teaches; the second is the one that counts.
        follow(run, stream, FIRST, HORIZON, holds(3))
        records = records_of(follow(run, stream, FIRST, HORIZON, holds(3)))
        wanted = f"direct, {way['record_encoding'].upper()}"
        run.findings.check(f"pages come over {wanted}", stream.transport == wanted, stream.transport)
        same = [(one.data, one.sequence_number, round(one.arrived_at_millis)) for one in records] == [
            (one.data, one.sequence_number, round(one.arrived_at_millis)) for one in expected
        ]
        run.findings.check(f"records over {wanted} are those of boto3", same)
        seen.append(f"{wanted}: used {stream.transport}, records {'equal' if same else 'DIFFER'}.")
    run.findings.answer("Q03", " ".join(seen))


def reshard(run: Run) -> None:
    account = run.account
    name = account.stream("reshard")
    stream = account.reader(name)
    stream.describe()
    for number in range(3):
        run.put(name, b"%d" % number)
    middle = str(HASH_KEYS // 2)
    account.kinesis.split_shard(StreamName=name, ShardToSplit=FIRST, NewStartingHashKey=middle)
    children = _read_to_the_end(run, stream, name, FIRST, "split", [(FIRST,), (FIRST,)])
    if len(children) == 2:
        for hash_key in (0, HASH_KEYS - 1):
            run.put(name, b"child", hash_key)
        account.kinesis.merge_shards(
            StreamName=name, ShardToMerge=children[0], AdjacentShardToMerge=children[1]
        )
        _read_to_the_end(run, stream, name, children[1], "merge", [tuple(children)])


def _read_to_the_end(
    run: Run, stream: Any, name: str, parent: str, how: str, parents: list[tuple[str, ...]]
) -> list[str]:
    """From before its end is known until the end; its children. parents: of each child, as expected."""
    account, found = run.account, run.findings
    last = follow(run, stream, parent, HORIZON, lambda pages: False)[-1].fetched
    children = sorted(child.shard_id for child in last.children)
    named = sorted(tuple(sorted(child.parents)) for child in last.children)
    found.check(f"the end after a {how} names its children and their parents", named == parents, named)
    found.answer(
        "Q09", f"After a {how}: {len(children)} child(ren) with {[len(one) for one in named]} parent(s)."
    )
    listed = _listed(stream)
    request = {"StreamName": name, "ShardIteratorType": "TRIM_HORIZON"}
    codes = [
        last_code_of(run, lambda c=child: account.once.get_shard_iterator(ShardId=c, **request))
        for child in children
    ]
    known = sum(child in listed for child in children)
    found.answer(
        "Q10",
        f"After a {how}: {known} of {len(children)} in ListShards, GetShardIterator answered {sorted(set(codes))}.",
    )
    account.await_active(name)
    begun = time.monotonic()
    account.wait_for(lambda: _listed(stream) >= set(children), f"the children of a {how} to be listed", 60)
    found.answer("Q11", f"After a {how}: {time.monotonic() - begun:.1f} s after that.")
    # Once more from the beginning, now that it is closed: does the end come with the last record?
    pages = follow(run, stream, parent, HORIZON, lambda pages: False)
    with_records = [number for number, page in enumerate(pages, 1) if page.fetched.records]
    found.check(
        f"every record before a {how} is there", len(records_of(pages)) == (3 if how == "split" else 1)
    )
    behind = [page.behind for page in pages][-3:]
    found.answer(
        "Q08",
        f"After a {how}: last record in page {max(with_records, default=0)}, end in page {len(pages)}; "
        f"MillisBehindLatest of the last pages {behind}.",
    )
    return children


def _listed(stream: Any) -> set[str]:
    return {shard.shard_id for shard in stream.list_shards().shards}


def aggregated(run: Run) -> None:
    name = run.account.stream("aggregated")
    puts = Mix(7).draw(300)
    for begin in range(0, len(puts), 100):
        entries = [{"Data": put.data, "PartitionKey": put.partition_key} for put in puts[begin : begin + 100]]
        answer = run.account.kinesis.put_records(StreamName=name, Records=entries)
        run.findings.check("no entry was refused", answer["FailedRecordCount"] == 0)
    records = records_of(follow(run, run.account.reader(name), FIRST, HORIZON, holds(len(puts))))
    same = [record.data for record in records] == [put.data for put in puts]
    run.findings.check("Kinesis records come back byte by byte and in order", same)
    users = [payload_id(user.data) for record in records for user in deaggregate(record, None)]
    wanted = [number for put in puts for number in put.ids]
    run.findings.check(
        "every user record is read, in order", users == wanted, f"{len(users)} of {len(wanted)}"
    )
    together = sum(len(put.ids) > 1 for put in puts)
    run.findings.answer(
        "Q12",
        f"{'Yes' if same and users == wanted else 'NO'}: {len(records)} records, {together} of them aggregates, "
        f"{len(users)} user records.",
    )


def large(run: Run) -> None:
    account, found = run.account, run.findings
    name = account.stream("large")
    described = account.reader(name).describe()
    account.kinesis.update_max_record_size(StreamARN=described.arn, MaxRecordSizeInKiB=LARGE // 1024)
    account.await_active(name)
    sizes = [LARGE - 1, *[3 * 1024 * 1024] * 3]
    digests, tries = [], 0
    for number, size in enumerate(sizes):
        data = bytes([65 + number]) * size
        digests.append(md5(data, usedforsecurity=False).hexdigest())
        tries += _put_patiently(run, name, data)
    code = last_code_of(
        run, lambda: account.once.put_record(StreamName=name, Data=b"x" * LARGE, PartitionKey="k")
    )
    found.answer(
        "Q13",
        f"{len(sizes)} records, of 10 MiB with the key and of 3 MiB, went in with {tries} call(s); "
        f"one byte more: {code}.",
    )
    pages = follow(run, account.reader(name), FIRST, HORIZON, holds(len(sizes)))
    got = [md5(record.data, usedforsecurity=False).hexdigest() for record in records_of(pages)]
    found.check("large records come back whole and in order", got == digests)
    full = [page for page in pages if page.fetched.records]
    found.answer(
        "Q14",
        f"Records per page: {[len(page.fetched.records) for page in full]}; refused calls before each: "
        f"{[page.refused for page in full]}; seconds between pages: "
        f"{[round(later.at - page.at, 1) for page, later in itertools.pairwise(full)]}.",
    )


def _put_patiently(run: Run, name: str, data: bytes) -> int:
    """Repeat until it is in: the number of calls."""
    for call in range(1, 61):
        code = code_of(lambda: run.account.once.put_record(StreamName=name, Data=data, PartitionKey="k"))
        run.findings.note("large put", size=len(data), code=code)
        if code == "none":
            return call
        run.account.sleep(1.0)
    raise TimeoutError(f"a record of {len(data)} bytes was refused {call} times, the last time with {code}")


def begin_sparse(run: Run) -> None:
    """A shard without records, and one that gets its first now and its second at the end."""
    name = run.account.stream("sparse", 2)
    stream = run.account.reader(name)
    token = run.account.kinesis.list_shards(StreamName=name, MaxResults=1)["NextToken"]
    iterator = stream.open(FIRST, HORIZON)
    run.put(name, b"early", HASH_KEYS - 1)
    run.kept["sparse"] = (name, time.monotonic(), token, iterator)


def sparse(run: Run) -> None:
    account, found = run.account, run.findings
    name, begun, token, iterator = run.kept["sparse"]
    left = begun + run.minutes * 60 - time.monotonic()
    if left > 0:
        run.say(f"  waiting {left / 60:.1f} minutes: nothing is put meanwhile")
        account.sleep(left)
    stream = account.reader(name)
    stream.describe()
    ages = [time.monotonic() - begun]
    idle = follow(run, stream, FIRST, HORIZON, lambda pages: pages[-1].behind == 0)
    found.check("a shard without records is read to its tip", idle[-1].behind == 0)
    run.put(name, b"late", HASH_KEYS - 1)
    ages.append(time.monotonic() - begun)
    gap = follow(run, stream, "shardId-000000000001", HORIZON, holds(2))
    got = [record.data for record in records_of(gap)]
    found.check("both records around the gap are read", got == [b"early", b"late"], len(got))
    found.answer("Q15", covered(idle, ages[0]))
    found.answer("Q16", covered(gap, ages[1]))
    steps = [page.behind for page in idle]
    falls = all(later <= behind for behind, later in itertools.pairwise(steps))
    found.answer("Q17", f"{'Yes' if falls else 'No'}: {steps[:3]} at first, {steps[-3:]} at last.")
    age = time.monotonic() - begun
    for question, what, call in (
        ("Q18", "iterator", lambda: account.once.get_records(ShardIterator=iterator)),
        ("Q19", "token", lambda: account.once.list_shards(NextToken=token)),
    ):
        if age > ITERATOR_SECONDS:
            code = last_code_of(run, call)
            found.check(f"an old {what} is refused as expired", code.startswith("Expired"), code)
            found.answer(question, f"After {age:.0f} s: {code}.")
        else:
            found.unanswered(question, f"the {what} was {age:.0f} s old; run with --minutes 6 or more")


def covered(pages: list[Page], age: float) -> str:
    """The stream time that each call covered: how much nearer it came to the tip, plus the time that passed meanwhile.

    age: of the stream when the reading began, in seconds.
    """
    # As if a call before the first had stood at the beginning of the stream.
    places = [(age, 0.0), *((page.behind / 1000, page.at) for page in pages)]
    spans = [before[0] - after[0] + after[1] - before[1] for before, after in itertools.pairwise(places)]
    return (
        f"{len(pages)} call(s) for {age:.0f} s of stream; one covered {min(spans):.1f} s at least, "
        f"{median(spans):.1f} s in the median, {max(spans):.1f} s at most."
    )
