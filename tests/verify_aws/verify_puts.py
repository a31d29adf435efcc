"""The step that puts by `Producer`: as much as a shard takes, then in order over a split, and reads all of it back."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from verify_report import Findings
from verify_run import FIRST, HASH_KEYS, HORIZON, Page, Run, follow, holds, last_code_of, records_of

from pykcl import Producer, PutResult
from pykcl.model.kpl import MAGIC, deaggregate_batch
from pykcl.model.record import Record

RECORDS, ON_A_STAND_IN = 40_000, 2_000
"""Put at once: five seconds of a shard of AWS."""
SIZE = 100
ORDERED, KEYS, BETWEEN_PAUSES = 3_000, 8, 50
"""With pauses of a second it takes a minute, of which a split takes half."""
DRY = b"dry run"


@dataclass(frozen=True)
class Sent:
    """A record that was put. number: rising; of its key."""

    number: int
    key: str
    data: bytes
    result: PutResult


@dataclass(frozen=True)
class Read:
    """What consumers get of the stream, parents before children. records: of Kinesis; refused: those that consumers drop."""

    users: Sequence[Record]
    records: Sequence[Record]
    refused: int


def producer(run: Run) -> None:
    account = run.account
    name = account.stream("producer")
    sent = _at_once(run, name, RECORDS if account.is_aws else ON_A_STAND_IN)
    ordered = _over_a_split(run, name)
    _dry_run(run, name)
    read = _read_back(run, name, [*sent, *ordered])
    check_places(run.findings, [*sent, *ordered], read)
    check_order(run.findings, ordered, read)
    twice = [one for one in ordered if one.result.perhaps_twice]
    together = sum(record.data.startswith(MAGIC) for record in read.records)
    run.findings.answer(
        "Q45",
        f"{len(sent) + len(ordered)} records in {len(read.records)} of Kinesis, {together} of them aggregates.",
    )
    run.findings.answer(
        "Q46",
        f"{read.refused} aggregate(s) in a shard that they were not for; {len(twice)} of {len(ordered)} records put "
        f"again for that, or for an answer that was lost; "
        f"{sum(one.result.shard_id != FIRST for one in ordered)} in the new shards.",
    )


def _at_once(run: Run, name: str, count: int) -> list[Sent]:
    begun, worked = time.monotonic(), time.process_time()
    with Producer(name) as producer:
        puts = [
            (str(number), _data(number), producer.put(_data(number), str(number))) for number in range(count)
        ]
    seconds, work = time.monotonic() - begun, time.process_time() - worked
    sent = _results(puts, 0)
    again = sum(one.result.attempts - 1 for one in sent)
    run.findings.answer(
        "Q44",
        f"{count} records of {SIZE} bytes into one shard in {seconds:.1f} s: {count / seconds:,.0f} a second; "
        f"{work / count * 1e6:.1f} µs of CPU for each; {again} put again.",
    )
    return sent


def _over_a_split(run: Run, name: str) -> list[Sent]:
    account, puts = run.account, []
    with Producer(name, ordered=True) as producer:
        for number in range(ORDERED):
            if number == ORDERED // 4:
                account.kinesis.split_shard(
                    StreamName=name, ShardToSplit=FIRST, NewStartingHashKey=str(HASH_KEYS // 2)
                )
            key, data = f"key-{number % KEYS}", _data(RECORDS + number)
            hash_key = HASH_KEYS - 1 if key == "key-0" else None
            puts.append((key, data, producer.put(data, key, hash_key)))
            if account.is_aws and number % BETWEEN_PAUSES == 0:
                account.sleep(1.0)
    account.await_active(name)
    return _results(puts, RECORDS)


def _data(number: int) -> bytes:
    return b"%08d" % number + b"x" * (SIZE - 8)


def _results(puts: Iterable[tuple[str, bytes, Future[PutResult]]], first: int) -> list[Sent]:
    return [
        Sent(number, key, data, future.result()) for number, (key, data, future) in enumerate(puts, first)
    ]


def _dry_run(run: Run, name: str) -> None:
    client = run.account.once
    if "DryRun" not in client.meta.service_model.operation_model("PutRecords").input_shape.members:
        run.findings.unanswered(
            "Q47", "this botocore has no dry runs of Kinesis: they came in September 2026"
        )
        return
    entry = {"Data": DRY, "PartitionKey": "k"}
    code = last_code_of(run, lambda: client.put_records(StreamName=name, Records=[entry], DryRun=True))
    run.findings.check(
        "a dry run of a put ends as the doctor expects", code == "DryRunOperationException", code
    )
    run.findings.answer("Q47", f"{code}.")


def _read_back(run: Run, name: str, sent: Sequence[Sent]) -> Read:
    stream = run.account.reader(name)
    stream.describe()
    last: dict[str, int] = defaultdict(int)
    for one in sent:
        last[one.result.shard_id] = max(last[one.result.shard_id], int(one.result.sequence_number))
    users: list[Record] = []
    records: list[Record] = []
    refused: list[str] = []
    shards = sorted(stream.list_shards().shards, key=lambda shard: shard.shard_id)
    for shard in shards:
        pages = follow(run, stream, shard.shard_id, HORIZON, _until(last[shard.shard_id]))
        records += records_of(pages)
        users += deaggregate_batch(
            records_of(pages), shard.hash_range, on_refused=lambda _, problem: refused.append(problem)
        )
    explicit = [one.result.shard_id for one in sent if one.key == "key-0"]
    ends = {shard.shard_id for shard in shards if shard.hash_range.last == HASH_KEYS - 1}
    run.findings.check(
        "records with an explicit hash key are in its shard", set(explicit) <= ends, Counter(explicit)
    )
    return Read(users, records, len(refused))


def _until(last: int) -> Callable[[list[Page]], bool]:
    """For `follow`: until the record with this number, or nothing more at the tip. 0: a shard without any."""
    quiet = holds(RECORDS + ORDERED)
    return lambda pages: (
        quiet(pages)
        or (not last and not pages[-1].behind)
        or any(int(record.sequence_number) >= last > 0 for record in pages[-1].fetched.records)
    )


def check_places(found: Findings, sent: Sequence[Sent], read: Read) -> None:
    """Check that each record is where its result says, that nothing else is there, and that doubles were announced."""
    places = {_place(record): record.data for record in read.users}
    lost = [one.number for one in sent if places.get(_place_of(one.result)) != one.data]
    found.check("every record is where its result says", not lost, f"{len(lost)} are not")
    copies = Counter(record.data for record in read.users)
    strange = copies.keys() - {one.data for one in sent}
    found.check(
        "nothing else is in the stream, not what a dry run had", not strange, f"{len(strange)} records"
    )
    unsaid = [one.number for one in sent if copies[one.data] > 1 and not one.result.perhaps_twice]
    found.check("a record that is there twice says so", not unsaid, f"{len(unsaid)} do not")


def check_order(found: Findings, sent: Sequence[Sent], read: Read) -> None:
    """Check that the first occurrences of the records of each key are in the order of their puts."""
    numbers = {one.data: one.number for one in sent}
    by_key: dict[str, list[int]] = defaultdict(list)
    for data in dict.fromkeys(bytes(record.data) for record in read.users):
        if data in numbers:
            by_key[f"key-{(numbers[data] - sent[0].number) % KEYS}"].append(numbers[data])
    wrong = [key for key, order in by_key.items() if order != sorted(order)]
    found.check("records of each key are in the order of their puts", not wrong, wrong)


def _place(record: Record) -> tuple[Any, ...]:
    return record.shard_id, int(record.sequence_number), record.sub_sequence_number


def _place_of(result: PutResult) -> tuple[Any, ...]:
    return result.shard_id, int(result.sequence_number), result.sub_sequence_number
