"""A record on its way into a stream, the answer of Kinesis for it, and the records that Kinesis refuses."""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from typing import NamedTuple

from pykcl.errors import RecordRefused
from pykcl.model.shard import hash_key_in

MAX_KEY_LENGTH = 256
"""Characters of a partition key."""
MAX_RECORD_BYTES = 10 * 1024 * 1024
"""Payload and partition key, where the stream takes large records (UpdateMaxRecordSize)."""


class NewRecord(NamedTuple):
    """One record for PutRecords. explicit_hash_key: decimal digits, or None."""

    data: bytes
    partition_key: str
    explicit_hash_key: str | None = None

    def __repr__(self) -> str:
        return f"NewRecord(explicit_hash_key={self.explicit_hash_key!r})"

    @property
    def size(self) -> int:
        """Size that Kinesis counts: payload and partition key, in bytes."""
        return len(self.data) + len(self.partition_key.encode())

    @property
    def hash_key(self) -> int:
        """The hash key by Kinesis' rule: the explicit one, else the MD5 of the UTF-8 partition key."""
        return hash_key_by(self.partition_key, self.explicit_hash_key)


@lru_cache(maxsize=4096)
def hash_key_by(partition_key: str, explicit_hash_key: str | None) -> int:
    """Return the hash key of a record. Keys come again, and an MD5 takes longer than all else about a small record."""
    if explicit_hash_key is not None:
        return int(explicit_hash_key)
    return int.from_bytes(md5(partition_key.encode(), usedforsecurity=False).digest(), "big")


class PutAnswer(NamedTuple):
    """shard_id: of the record; None if it was not put, with the reason `error` (AWS' code)."""

    shard_id: str | None
    error: str | None = None
    sequence_number: str = ""


def why_refused(record: NewRecord, max_bytes: int) -> str | None:
    """Return the reason for which Kinesis refuses a record, as a phrase behind its name; None if it does not.

    max_bytes: of the largest record that the stream takes.
    """
    data, key, hash_key = record
    try:
        size = len(data) + len(key.encode())
    except UnicodeEncodeError:
        return "has a partition key that is not Unicode text (a lone surrogate)"
    if not 1 <= len(key) <= MAX_KEY_LENGTH:
        return f"has a partition key of {len(key)} characters; there must be 1 to {MAX_KEY_LENGTH}"
    if hash_key is not None and hash_key_in(hash_key) is None:
        return "has an explicit_hash_key that is not a whole number in 0..2^128-1"
    if size > max_bytes:
        return (
            f"makes a record of {size} bytes with its partition key; this stream accepts at most {max_bytes}"
        )
    return None


def key_text(partition_key: object) -> str:
    """Return a partition key as plain text. Raises RecordRefused for what is no text."""
    if not isinstance(partition_key, str):
        raise RecordRefused(f"partition_key={type(partition_key).__name__} is no text. Do: give a str.")
    # A class that compares otherwise would share hash keys.
    return str.__str__(partition_key)


def hash_key_of(partition_key: str, explicit_hash_key: int | str | None = None) -> int:
    """Return the hash key of a record by Kinesis' rule: the explicit one, else the MD5 of the partition key in UTF-8.

    The shard that has it in its range of hash keys gets the record. Raises RecordRefused for keys that Kinesis refuses.
    """
    hash_key = None if explicit_hash_key is None else str(explicit_hash_key)
    record = NewRecord(b"", key_text(partition_key), hash_key)
    problem = why_refused(record, MAX_RECORD_BYTES)
    if problem is not None:
        raise RecordRefused(f"A record that {problem} goes into no shard. Do: change it.")
    return record.hash_key
