"""A Kinesis with prepared pages that go on for ever, and the DynamoDB for the leases: what a real worker needs to run.

It takes every record that is put. In a process of its own, one for each reader, so that its CPU does not count. Every page is the prepared one with its number
put into each sequence number, so they rise as they should and the same iterator gives the same page. While nothing is
served, pages are empty, and the next read goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from benchmarks.canned import CBOR, JSON, Shape, as_cbor, as_json
from benchmarks.server_process import Answers, server_process
from pykcl.model.kpl import aggregate
from pykcl.testing.memory.dynamodb import MemoryDynamoDB

STREAM = "orders"
ARN = f"arn:aws:kinesis:eu-west-1:123456789012:stream/{STREAM}"
BEHIND_MILLIS = 60_000
_PAGE, _NEXT = b"7070707077", b"8181818188"
"""Stand for the number of a page and of the next one, in ten digits; replaced in each answer."""
_ITERATOR = re.compile(rb"~([0-9]{6})~([0-9]{10})~")
_TARGET = re.compile(rb"x-amz-target: ([A-Za-z0-9_]+)\.([A-Za-z]+)", re.IGNORECASE)
_KEY_OF_RECORD = b'"PartitionKey"'
_HIGHEST = 2**128
Bodies = dict[tuple[str, int, bool], bytes]


def iterator_of(shard: int, page: str) -> str:
    return f"AAAAAAAAAAE{'x' * 190}~{shard:06d}~{page}~"


def shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


def hash_range(shard: int, shards: int) -> tuple[int, int]:
    return _HIGHEST * shard // shards, _HIGHEST * (shard + 1) // shards - 1


def key_within(shard: int, shards: int) -> str:
    """A partition key of that shard. Records of an aggregate that belong elsewhere would be dropped."""
    low, high = hash_range(shard, shards)
    for number in range(100_000):
        key = f"device-{number:05d}"
        if low <= int.from_bytes(hashlib.md5(key.encode()).digest(), "big") <= high:
            return key
    raise AssertionError("no key for this shard")


def page_of(shape: Shape, shard: int, shards: int) -> dict[str, Any]:
    """One page, with markers where its number belongs. An empty one is for a reader that is behind."""
    chance = random.Random(shard)
    key = key_within(shard, shards)

    def data() -> bytes:
        if shape.in_each == 1:
            return chance.randbytes(shape.size)
        (blob,) = aggregate([(key, None, chance.randbytes(shape.size)) for _ in range(shape.in_each)])
        return blob.data

    records = [
        {
            "ApproximateArrivalTimestamp": 1_700_000_000_000 + index,
            "Data": data(),
            "PartitionKey": key,
            "SequenceNumber": f"4966{_PAGE.decode()}{'0' * 36}{index:06d}",
        }
        for index in range(shape.records)
    ]
    return {
        "MillisBehindLatest": BEHIND_MILLIS,
        "NextShardIterator": iterator_of(shard, _NEXT.decode()),
        "Records": records,
    }


def bodies_of(shapes: tuple[Shape, ...], shards: int) -> Bodies:
    """By shape, shard and whether it is CBOR; "" is the page of a reader that has caught up."""
    found: Bodies = {}
    at_rest = Shape("", 0, 0)
    for shape in (*shapes, at_rest):
        for shard in range(shards):
            page = page_of(shape, shard, shards)
            if shape is at_rest:
                page["MillisBehindLatest"] = 0
            found[shape.name, shard, False], found[shape.name, shard, True] = as_json(page), as_cbor(page)
    return found


class LiveShards:
    """The answers. serving: the name of the shape of the pages, "" for none. polls, puts: pages asked for
    and Kinesis records put, since ever."""

    def __init__(self, bodies: Bodies, shapes: tuple[Shape, ...], shards: int) -> None:
        self.serving = ""
        self.polls = self.puts = 0
        self._accepted: dict[int, bytes] = {}  # 0: of PutRecord
        self._bodies, self._shards = bodies, shards
        self._parts: dict[tuple[str, int, bool], list[bytes]] = {}
        self._rests = {"", *(shape.name for shape in shapes if not shape.records)}
        self._dynamodb = MemoryDynamoDB()
        self._lock = threading.Lock()

    def answer(self, head: bytes, body: bytes) -> bytes:
        found = _TARGET.search(head)
        assert found is not None
        service, operation = found[1].decode(), found[2].decode()
        if service.startswith("DynamoDB"):
            return self._of_table(operation, json.loads(body))
        if operation == "GetRecords":
            return self._records(body, CBOR.encode() in head)
        if operation in ("PutRecord", "PutRecords"):
            return http(self._put(body.count(_KEY_OF_RECORD), is_single=operation == "PutRecord"), JSON)
        return http(json.dumps(self._of_stream(operation, body)).encode(), JSON)

    def _records(self, body: bytes, is_cbor: bool) -> bytes:
        asked = _ITERATOR.search(body)
        assert asked is not None
        shard, page = int(asked[1]), int(asked[2])
        with self._lock:
            self.polls += 1
        # What brings nothing does not go on: the number of a page tells how much was served.
        following = page if self.serving in self._rests else page + 1
        return self._page(shard, is_cbor, page, following)

    def _put(self, count: int, *, is_single: bool) -> bytes:
        """Take all records, into the first shard: an answer is prepared for each number of records."""
        which = 0 if is_single else count
        with self._lock:
            self.puts += count
        if which not in self._accepted:
            records = [
                {"SequenceNumber": f"4966{number:052d}", "ShardId": shard_id(0)} for number in range(count)
            ]
            answer = (
                records[0]
                if is_single
                else {"FailedRecordCount": 0, "Records": records, "EncryptionType": "NONE"}
            )
            self._accepted[which] = json.dumps(answer, separators=(",", ":")).encode()
        return self._accepted[which]

    def _page(self, shard: int, is_cbor: bool, page: int, following: int) -> bytes:
        """Put together of parts, in one go: to look for thousands of places takes longer than a reader takes to read."""
        which = self.serving, shard, is_cbor
        if which not in self._parts:
            response = http(self._bodies[which], CBOR if is_cbor else JSON)
            self._parts[which] = response.split(_PAGE)
        parts = self._parts[which].copy()
        place = 0 if _NEXT in parts[0] else -1
        parts[place] = parts[place].replace(_NEXT, b"%010d" % following)
        return (b"%010d" % page).join(parts)

    def _of_stream(self, operation: str, body: bytes) -> dict[str, Any]:
        if operation == "GetShardIterator":
            asked = json.loads(body)
            # A sequence number carries the number of its page.
            number = str(asked.get("StartingSequenceNumber") or "")
            page = int(number[4:14] or 0) if number.isdigit() else 0
            return {"ShardIterator": iterator_of(int(asked["ShardId"].rpartition("-")[2]), f"{page:010d}")}
        shards = [_shard(number, self._shards) for number in range(self._shards)]
        if operation == "ListShards":
            return {"Shards": shards}
        described = {
            "StreamName": STREAM, "StreamARN": ARN, "StreamStatus": "ACTIVE", "RetentionPeriodHours": 24,
            "StreamCreationTimestamp": 1_600_000_000.0, "EnhancedMonitoring": [], "EncryptionType": "NONE",
        }  # fmt: skip
        if operation == "DescribeStreamSummary":
            return {"StreamDescriptionSummary": {**described, "OpenShardCount": self._shards}}
        assert operation == "DescribeStream", operation
        return {"StreamDescription": {**described, "Shards": shards, "HasMoreShards": False}}

    def owned(self, table: str) -> list[int]:
        """How many leases of that table each worker has."""
        try:
            rows = self._dynamodb.scan(TableName=table)["Items"]
        except ClientError:  # nobody has made it yet
            return []
        return list(Counter(row["leaseOwner"]["S"] for row in rows if "leaseOwner" in row).values())

    def _of_table(self, operation: str, asked: dict[str, Any]) -> bytes:
        kind = "application/x-amz-json-1.0"
        try:
            answer = getattr(self._dynamodb, xform_name(operation))(**asked)
        except ClientError as error:
            said, status = error.response["Error"], error.response["ResponseMetadata"]["HTTPStatusCode"]
            others = {name: error.response[name] for name in ("Item",) if name in error.response}
            shown = {
                "__type": f"com.amazonaws.dynamodb.v20120810#{said['Code']}", "message": said["Message"],
                **others,
            }  # fmt: skip
            return http(json.dumps(shown).encode(), kind, status, crc=True)
        answer.pop("ResponseMetadata", None)
        return http(json.dumps(answer, separators=(",", ":")).encode(), kind, crc=True)


def _shard(number: int, shards: int) -> dict[str, Any]:
    low, high = hash_range(number, shards)
    return {
        "ShardId": shard_id(number),
        "HashKeyRange": {"StartingHashKey": str(low), "EndingHashKey": str(high)},
        "SequenceNumberRange": {"StartingSequenceNumber": f"4966{'0' * 52}"},
    }


def http(body: bytes, content_type: str, status: int = 200, *, crc: bool = False) -> bytes:
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    check = f"x-amz-crc32: {zlib.crc32(body)}\r\n" if crc else ""
    head = (
        f"HTTP/1.1 {status} OK\r\nx-amzn-RequestId: c5a0b7f3-4d3e-4b1c-9d55-2f6e4d0c0a11\r\n{check}"
        f"Date: {date}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Control:
    """Of one server, from the outside."""

    def __init__(self, url: str, pipe: Connection) -> None:
        self.url = url
        self._pipe = pipe

    def serve(self, shape: str) -> None:
        """From now on pages of this shape; "": empty ones, and the reader has caught up."""
        self._pipe.send(("serve", shape))
        self._pipe.recv()

    def polls(self) -> int:
        """GetRecords requests so far."""
        self._pipe.send(("polls", ""))
        return int(self._pipe.recv())

    def puts(self) -> int:
        """Kinesis records put so far."""
        self._pipe.send(("puts", ""))
        return int(self._pipe.recv())

    def owned(self, table: str) -> list[int]:
        """How many leases of that table each worker has."""
        self._pipe.send(("owned", table))
        return list(self._pipe.recv())


@contextmanager
def live_server(
    bodies: Bodies, shapes: tuple[Shape, ...], shards: int, certificate: Path | None
) -> Iterator[Control]:
    """certificate: a file with certificate and key; None for plain HTTP."""
    # Forked: the prepared pages are shared with it.
    with server_process(_serve, LiveShards(bodies, shapes, shards), certificate, forked=True) as pipe:
        yield Control(f"{'https' if certificate else 'http'}://127.0.0.1:{int(pipe.recv())}", pipe)


def _serve(pipe: Connection, shards: LiveShards, certificate: Path | None) -> None:
    server = Answers(shards.answer, certificate)
    pipe.send(server.port)
    threading.Thread(target=server.accept, daemon=True).start()
    try:
        while True:
            what, name = pipe.recv()
            if what == "serve":
                shards.serving = name
            counted = shards.puts if what == "puts" else shards.polls
            pipe.send(shards.owned(name) if what == "owned" else counted)
    except EOFError:
        return
