"""JSON from strangers for each reader of it: good values or errors of ours, soon, and in little memory.

`python tests/security/json_fuzz.py 200000 [SEED]` gives that many inputs to every reader, and prints the worst of each.
"""

from __future__ import annotations

import asyncio
import ctypes
import gzip
import json
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypedDict

sys.path.insert(0, str(Path(__file__).parents[2]))

import boto3
import botocore.config
import msgspec
import pydantic

from pykcl.aws.errors import MALFORMED
from pykcl.aws.kinesis_decode import page_of_body
from pykcl.aws.transport.connection import Answer
from pykcl.aws.transport.table_requests import RowCache, decoded
from pykcl.aws.transport.transport import parsed_by_botocore
from pykcl.cli.dead_letters import _shown
from pykcl.compat.multilang import protocol
from pykcl.errors import AnswerRefused, ConfigError
from pykcl.handlers.decode import decoder_of
from pykcl.handlers.event_source_mapping import mapping_of
from pykcl.handlers.filters import criteria_of
from pykcl.local import wire
from pykcl.local.errors import AwsError
from pykcl.local.faults import FaultRefused, parse_rules
from pykcl.metrics import host_cpu
from pykcl.model.kpl import deaggregate_batch
from pykcl.model.lambda_event import EventSource, event_of, records_of
from pykcl.model.letter_json import NotALetter, letter_text, read_letter
from pykcl.model.metered_json import read_json
from pykcl.model.record import Record
from pykcl.operate.checkpoints.backup import read_backup, read_positions
from pykcl.operate.dead_letters.sources import Found
from pykcl.operate.streams.formats import BadLine, LineReader, json_lines
from pykcl.operate.worker_status import parse_status
from pykcl.ui import app as ui
from tests.letters import ARN, letter
from tests.letters import record as letter_record

MIB = 1024 * 1024
MAX_SECONDS, MAX_SECONDS_BY_HAND = 5.0, 1.0
"""Of CPU, for one input in one reader. In tests it is for hours where the cost is quadratic, as timing decides nothing there."""
MAX_BYTES = 64 * MIB
"""Beyond what the process had at the beginning, inputs included where they are small."""
SHARD, STREAM = "shardId-000000000000", "orders"
SOURCE = EventSource(ARN)
_PATTERNS = (
    {"data": {"a": [1]}},
    {"data": {"a": {"b": [{"prefix": "x"}, {"exists": False}]}}},
    {"data": {"$or": [{"a": [{"anything-but": ["x"]}]}, {"b": [{"numeric": [">", 0, "<=", 5]}]}]}},
)


class Typed(TypedDict):
    a: int


@dataclass
class Data:
    a: int
    more: Any = None
    inner: list[Data] = field(default_factory=list)


class Model(pydantic.BaseModel):
    a: int
    more: Any = None
    inner: list[Model] = []


class Struct(msgspec.Struct):
    a: int
    more: Any = None
    inner: list[Struct] = []


_DECODERS = {
    "dict": dict, "list": list, "anything": Any, "TypedDict": Typed, "dataclass": Data, "msgspec": Struct,
}  # fmt: skip
_CLIENTS = {
    service: boto3.client(
        service,
        region_name="eu-west-1",
        aws_access_key_id="AK",
        aws_secret_access_key="SK",
        config=botocore.config.Config(retries={"total_max_attempts": 1}),
    )
    for service in ("kinesis", "dynamodb")
}


# -- readers ---------------------------------------------------------------------------------------------------


def _record_of(data: bytes) -> Record:
    return Record(
        data, "k", "49546986683135544286507457936321625675700192471156785154", 1.7e12, SHARD, STREAM
    )


def _page(body: bytes) -> None:
    page = page_of_body(body, SHARD, STREAM)
    assert all(isinstance(record.data, bytes) for record in page.records)
    list(deaggregate_batch(page.records, None))


def _letter(text: bytes) -> None:
    found = read_letter(text)
    _ = _shown([Found("x:1", found)], show_data=True)
    found.records()


def _as_payload(text: bytes, *, compressed: bool) -> bytes:
    """Return a letter with this text as its payload, also as one that came through SNS."""
    found = json.loads(_GOOD_LETTER)
    found["payload"] = text.decode("latin-1")
    if compressed:
        found |= {"payload": b64encode(gzip.compress(text, 1)).decode(), "payloadEncoding": "gzip"}
    wrapped = json.dumps(found)
    if len(text) % 2:
        wrapped = json.dumps({"Type": "Notification", "Message": wrapped})
    return wrapped.encode()


def _filter(data: bytes, *, pattern: Any) -> None:
    criteria = criteria_of({"Filters": [{"Pattern": json.dumps(pattern)}]})
    assert criteria is not None
    assert criteria(_record_of(data), SOURCE) in (True, False)


def _pattern(text: bytes) -> None:
    criteria_of({"Filters": [{"Pattern": text.decode("utf-8", "replace")}]})


def _line(line: bytes, *, form: Any, name: str | None) -> None:
    LineReader(form, lambda: "k", MIB, key_field=name).record(1, line)


def _rows(body: bytes) -> None:
    for method in ("scan", "get_item", "update_item"):
        decoded(body, method)
    RowCache().answer_of(body, 0)


def _over_botocore(body: bytes) -> None:
    for service, operation in (
        ("kinesis", "ListShards"),
        ("kinesis", "DescribeStreamSummary"),
        ("dynamodb", "Scan"),
    ):
        for status in (200, 400):
            try:
                parsed_by_botocore(_CLIENTS[service], operation, Answer(status, {}, body))
            except MALFORMED:
                continue


def _exports(text: bytes) -> None:
    for read in (read_positions, read_backup):
        try:
            read(text.decode("utf-8", "replace"), "file")
        except ConfigError:
            continue


class _Request:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def stream(self):
        yield self._body


def _body(body: bytes) -> None:
    asyncio.run(ui._body(_Request(body)))


@dataclass(frozen=True)
class Reader:
    """read: uses what it reads as its caller does. allowed: errors that the caller expects. most: bytes of an input.
    prepare: puts it where it comes from."""

    read: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...] = ()
    most: int = MIB
    prepare: Callable[[bytes], Any] = bytes


_NOT_THE_FORM = (ValueError, msgspec.DecodeError)
READERS: dict[str, Reader] = {
    "page of Kinesis": Reader(_page, (AnswerRefused,), 32 * MIB),
    "rows of DynamoDB": Reader(_rows, (), 32 * MIB),
    "answers over botocore": Reader(_over_botocore, (), 32 * MIB),
    "letter": Reader(_letter, (NotALetter,), 16 * MIB),
    "payload of a letter": Reader(_letter, (NotALetter,), prepare=partial(_as_payload, compressed=False)),
    "compressed payload": Reader(_letter, (NotALetter,), 32 * MIB, partial(_as_payload, compressed=True)),
    "Lambda event": Reader(lambda text: records_of(read_json(text)), (ValueError,)),
    "status of a worker": Reader(lambda body: parse_status("http://w:1", body), (), 8 * MIB),
    **{
        f"data in filter {number}": Reader(partial(_filter, pattern=pattern))
        for number, pattern in enumerate(_PATTERNS, 1)
    },
    **{f"data as {name}": Reader(decoder_of(kind), _NOT_THE_FORM) for name, kind in _DECODERS.items()},
    "data as pydantic": Reader(decoder_of(Model), _NOT_THE_FORM),
    "json() of a record": Reader(lambda data: _record_of(data).json(), (ValueError,)),
    "pattern of a filter": Reader(_pattern, (ConfigError,)),
    "event source mapping": Reader(lambda text: mapping_of(text.decode("utf-8", "replace")), (ConfigError,)),
    **{
        f"put {form}{' by field' if name else ''}": Reader(partial(_line, form=form, name=name), (BadLine,))
        for form, name in (("jsonl", None), ("records", None), ("lines", "a.b"))
    },
    "data for tail": Reader(lambda data: json_lines("json")(_record_of(data))),
    "checkpoints from a file": Reader(_exports),
    "line of a child": Reader(protocol.parse),
    "metadata of a container": Reader(
        lambda text: host_cpu._json(text.decode("utf-8", "replace")), (ValueError,)
    ),
    "body for the web page": Reader(_body, (), ui.MAX_BODY_BYTES),
    "request to pykcl local": Reader(wire.decode, (AwsError,), 16 * MIB),
    "fault rules": Reader(parse_rules, (FaultRefused,)),
}


# -- inputs ----------------------------------------------------------------------------------------------------

_GOOD_LETTER = letter_text(letter(letter_record(100), letter_record(101)))
_GOOD = [
    text.encode() if isinstance(text, str) else json.dumps(text).encode()
    for text in (
        {
            "Records": [
                {
                    "SequenceNumber": "49546986683135544286507457936321625675700192471156785154",
                    "ApproximateArrivalTimestamp": 1_700_000_000.123,
                    "Data": "eHh4",
                    "PartitionKey": "k",
                }
            ]
            * 2,
            "NextShardIterator": "AAAA",
            "MillisBehindLatest": 0,
        },
        {"Items": [{"leaseKey": {"S": SHARD}, "leaseCounter": {"N": "7"}, "checkpoint": {"S": "10"}}], "Count": 1},
        {"Shards": [{"ShardId": SHARD, "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"}}]},
        _GOOD_LETTER,
        json.dumps({"Type": "Notification", "Message": _GOOD_LETTER}),
        event_of([letter_record(100)], SOURCE),
        {"ready": True, "worker": {"worker_id": "w", "state": "running", "troubles": [], "leases": [{"shard": SHARD, "millis_behind_latest": 5, "lag_age": 0.5, "call": None}]}},
        {"processes": [{"process": 1, "worker": None}]},
        {"a": 1, "b": {"b": ["x", 2]}, "inner": [{"a": 2}]},
        {"EventSourceArn": ARN, "BatchSize": 10, "FilterCriteria": {"Filters": [{"Pattern": "{\"data\": {\"a\": [1]}}"}]}},
        {"data": {"a": [1, {"prefix": "x"}], "$or": [{"b": [1]}, {"c": [{"exists": False}]}]}},
        {"partition_key": "k", "data": {"a": 1}},
        {"action": "checkpoint", "sequenceNumber": "10", "subSequenceNumber": 0},
        {"rules": [{"kind": "throttle", "service": "dynamodb", "probability": 0.2}]},
        {"StreamName": "s", "Records": [{"Data": "eA==", "PartitionKey": "k"}]},
    )
]  # fmt: skip
_TOKENS = [
    b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b'\\"', b'"a"', b'"Records"', b'"a":', b"1", b"-1e999", b"NaN", b"null",
    b"true", b" ", b"\n", b"\xff", b"\xe2\x88\xa2", b"\\u0000", b"\\ud800", b"9" * 400, b"9" * 5000, b"0.5", b"[]", b"{}",
]  # fmt: skip
_UNITS = [
    b"[", b'{"a":', b"[],", b"{},", b'"",', b'"ab",', b"1,", b"[[]],", b'{"a":0},', b'[{"a":[', b"null,", b'"\\\\",', b"-1e5,",
    b'"\\u2222",', "∢".encode(), b"\\", b'"', b" ", b"9", b"[[[[[]]]]],", b'{"":{"":1}},', b"\\\"",
]  # fmt: skip

_CHOSEN = [
    # Values that do not fit the models, flat and deep: pydantic has an error for each, with the way to it.
    b'{"a":1,"inner":[' + b"1," * (MIB // 2 - 20) + b'{"a":1}]}',
    b'{"a":0,"inner":[' * 90 + b'{"a":"x"},' * 100_000 + b'{"a":1}' + b"]}" * 90,
]


def inputs(count: int, seed: int) -> Iterator[bytes]:
    """Return that many inputs, the same for the same seed."""
    draw = Random(seed)
    makers = [_soup, _value, _mutated, _mutated, _mutated]
    yield from _CHOSEN
    for number in range(len(_CHOSEN), count):
        yield _bomb(draw) if number % 100 == 99 else draw.choice(makers)(draw)


def _soup(draw: Random) -> bytes:
    return b"".join(draw.choices(_TOKENS, k=draw.randrange(40)))


def _value(draw: Random) -> bytes:
    return json.dumps(_made_up(draw, 0), ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def _made_up(draw: Random, depth: int) -> Any:
    kind = draw.random()
    if depth > 5 or kind < 0.4:
        return draw.choice(
            [None, True, 0, -1, 2**70, 0.5, 1e308, "", "a", "x" * 50, "∢\ud800", '[{"', "\\", SHARD]
        )
    if kind < 0.7:
        return [_made_up(draw, depth + 1) for _ in range(draw.randrange(5))]
    names = [
        "a",
        "b",
        "Records",
        "inner",
        "more",
        "data",
        "worker",
        "leases",
        "Items",
        "S",
        "B",
        "M",
        "L",
        "$or",
        "",
    ]
    return {draw.choice(names): _made_up(draw, depth + 1) for _ in range(draw.randrange(5))}


def _mutated(draw: Random) -> bytes:
    text = bytearray(draw.choice(_GOOD))
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(text) + 1)
        until = min(len(text), at + draw.randrange(1, 30))
        text[at:until] = draw.choice([b"", draw.choice(_TOKENS), bytes(text[at:until]) * 2, _value(draw)])
    return bytes(text)


def _bomb(draw: Random) -> bytes:
    """Millions of values, or thousands of levels, perhaps within something good. Most of them are small."""
    unit = draw.choice(_UNITS)
    size = int(2 ** draw.uniform(10, 25 if draw.random() < 0.1 else 21))
    if draw.random() < 0.15:
        filled = (
            b"{"
            + b",".join(b'"%x":%d' % (number, number) for number in range(min(size, 2 * MIB) // 12))
            + b"}"
        )
    else:
        filled = unit * (size // len(unit))
        close = {b"[": b"]", b'{"a":': b"}", b'[{"a":[': b"]}]"}.get(unit)
        if close is not None and draw.random() < 0.5:
            levels = draw.choice([50, 199, 201, 900, size // len(unit)])
            filled = unit * levels + b"1" + close * levels
            filled = b"[" + b",".join([filled] * max(1, size // len(filled))) + b"]"
        elif draw.random() < 0.7:
            filled = b"[" + filled + b"1]"
    if draw.random() < 0.4:
        good = draw.choice(_GOOD)
        at = draw.choice([at for at, sign in enumerate(good) if sign in b"0123456789[{"] or [0])
        filled = good[:at] + filled + good[at:]
    elif draw.random() < 0.4:
        filled = b'{"Records":[],"NextShardIterator":"A","a":1,"more":' + filled + b"}"
    return filled


# -- runs ------------------------------------------------------------------------------------------------------

_SMALL = 4096
"""Bytes of an input whose values, however many, take less than a megabyte."""
_STATUS = Path("/proc/self/status")


@dataclass
class Worst:
    """Of one reader: seconds of CPU for one input, and bytes of memory beside it, with the sizes of those inputs."""

    calls: int = 0
    refused: int = 0
    seconds: float = 0.0
    slow: int = 0
    bytes: int = 0
    large: int = 0


def run(count: int, seed: int, max_seconds: float = MAX_SECONDS) -> dict[str, Worst]:
    """Give the inputs to all readers. Raises AssertionError for one that takes too long or too much memory."""
    for text in _GOOD:  # whatever is created once, such as a model of botocore
        for reader in READERS.values():
            _call(reader, reader.prepare(text))
    worst = {name: Worst() for name in READERS}
    for text in inputs(count, seed):
        for name, reader in READERS.items():
            given = reader.prepare(text[: reader.most])
            grown = _Growth() if len(text) > _SMALL else None
            began = time.thread_time()
            is_refused = _call(reader, given)
            seconds = time.thread_time() - began
            _note(worst[name], given, is_refused, seconds, grown.bytes() if grown else 0)
            seen = f"for {len(given):,} bytes {given[:80]!r}"
            assert worst[name].seconds <= max_seconds, f"{name}: {seconds:.2f} s {seen}"
            assert worst[name].bytes <= MAX_BYTES, f"{name}: {worst[name].bytes / MIB:.0f} MiB {seen}"
    return worst


def _call(reader: Reader, given: Any) -> bool:
    try:
        reader.read(given)
    except reader.allowed:
        return True
    return False


def _note(worst: Worst, given: Any, is_refused: bool, seconds: float, grown: int) -> None:
    worst.calls += 1
    worst.refused += is_refused
    if seconds > worst.seconds:
        worst.seconds, worst.slow = seconds, len(given)
    if grown > worst.bytes:
        worst.bytes, worst.large = grown, len(given)


class _Growth:
    """The most memory from here on beyond what is in use now. Linux has the two numbers, elsewhere it is 0."""

    def __init__(self) -> None:
        self._before = 0
        if _STATUS.exists():
            ctypes.CDLL(None).malloc_trim(0)  # else memory that was freed is used again, unseen
            Path("/proc/self/clear_refs").write_text("5")
            self._before = _number("VmRSS")

    def bytes(self) -> int:
        return _number("VmHWM") - self._before if self._before else 0


def _number(name: str) -> int:
    return int(_STATUS.read_text().partition(f"{name}:")[2].split()[0]) * 1024


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 34
    began = time.monotonic()
    for name, worst in run(count, seed, MAX_SECONDS_BY_HAND).items():
        print(
            f"{name:26}{worst.calls:9,} inputs {worst.refused:9,} refused  at most {worst.seconds:6.3f} s (of "
            f"{worst.slow:12,} bytes) {worst.bytes / MIB:6.1f} MiB (of {worst.large:12,} bytes)"
        )
    print(
        f"seed {seed}: {count:,} inputs for each of {len(READERS)} readers in {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
