"""Lines of input as records to put: where the payload is, and where the partition key comes from.

What is wrong with a line is told by its number, never by quoting it.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pykcl.aws.stream_admin import NewRecord
from pykcl.errors import ConfigError, PyKclError

InputForm = Literal["lines", "jsonl", "records"]
INPUT_FORMS: tuple[InputForm, ...] = ("lines", "jsonl", "records")

LONGEST_KEY = 256
"""Characters of a partition key, at most (PutRecords)."""
_LAST_HASH_KEY = 2**128 - 1
_HASH_KEY = re.compile(r"(?:0|[1-9][0-9]{0,38})\Z")
_PAYLOADS = ("data", "data_base64", "data_hex")


class BadLine(PyKclError):
    """A line that is no record. number: counted from 1."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number} {problem}")
        self.number = number


class _Problem(Exception):
    """What is wrong with a line, without its number."""


@dataclass(frozen=True, slots=True)
class LineReader:
    """form: lines (the payload is the line), jsonl (so, too, but it must be JSON), records (as `tail -o jsonl` writes).

    Where the partition key comes from, the first that is given: key_field (name in the JSON object of the line, with
    dots for what lies deeper), key_delimiter (in front of it, as with kcat's -K; the payload is what follows), the
    record's own partition_key (form "records"), key, else new_key, which is called once per record.
    largest: bytes of payload and partition key.
    """

    form: InputForm
    new_key: Callable[[], str]
    largest: int
    key: str | None = None
    key_field: str | None = None
    key_delimiter: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if sum(one is not None for one in (self.key, self.key_field, self.key_delimiter)) > 1:
            raise ConfigError("--key, --key-field and --key-delimiter exclude one another. Use one of them.")
        if self.key_delimiter is not None and (self.form != "lines" or not self.key_delimiter):
            raise ConfigError(
                "--key-delimiter is one or more characters in lines of text (--input lines). JSON has --key-field."
            )
        if self.key is not None and not 1 <= len(self.key) <= LONGEST_KEY:
            raise ConfigError(
                f"--key has {len(self.key)} characters; a partition key has 1 to {LONGEST_KEY}."
            )

    def record(self, number: int, line: bytes) -> NewRecord | None:
        """The record of one line without its line feed; None for an empty line. Raises BadLine."""
        try:
            return self._record(line)
        except _Problem as problem:
            trouble = str(problem)
        # Outside the except block: what json raises quotes the whole line.
        raise BadLine(number, trouble)

    def _record(self, line: bytes) -> NewRecord | None:
        if not line if self.form == "lines" else not line.strip():
            return None
        parsed = _json(line) if self.form != "lines" or self.key_field is not None else None
        if self.form == "records":
            record = self._from_object(parsed)
        elif self.key_delimiter is not None:
            record = _split(line, self.key_delimiter)
        else:
            record = NewRecord(line, self._key_of(parsed))
        return self._checked(record)

    def _from_object(self, parsed: Any) -> NewRecord:
        if not isinstance(parsed, dict):
            raise _Problem(f"is a JSON {_kind(parsed)}, not an object like those of `pykcl tail -o jsonl`")
        told = parsed.get("partition_key")
        if self.key_field is None and self.key is None and told is not None:
            key = _key_text(told, "partition_key")
        else:
            key = self._key_of(parsed)
        hash_key = parsed.get("explicit_hash_key")
        return NewRecord(_payload(parsed), key, None if hash_key is None else str(hash_key))

    def _key_of(self, parsed: Any) -> str:
        if self.key_field is None:
            return self.key if self.key is not None else self.new_key()
        value = parsed
        for name in self.key_field.split("."):
            if not isinstance(value, Mapping) or name not in value:
                raise _Problem(f"has no field {self.key_field!r} to take the partition key from")
            value = value[name]
        return _key_text(value, self.key_field)

    def _checked(self, record: NewRecord) -> NewRecord:
        try:
            size = record.size
        except UnicodeEncodeError:
            raise _Problem("has a partition key that is no Unicode text (a lone surrogate)") from None
        if not 1 <= len(record.partition_key) <= LONGEST_KEY:
            raise _Problem(
                f"has a partition key of {len(record.partition_key)} characters; there must be 1 to {LONGEST_KEY}"
            )
        hash_key = record.explicit_hash_key
        if hash_key is not None and not (_HASH_KEY.match(hash_key) and int(hash_key) <= _LAST_HASH_KEY):
            raise _Problem("has an explicit_hash_key that is no whole number in 0..2^128-1")
        if size > self.largest:
            raise _Problem(
                f"makes a record of {size} bytes with its partition key; this stream takes {self.largest} at most"
            )
        return record


def _split(line: bytes, delimiter: str) -> NewRecord:
    key, found, data = line.partition(delimiter.encode())
    if not found:
        raise _Problem("has no key delimiter")
    try:
        return NewRecord(data, key.decode())
    except UnicodeDecodeError:
        raise _Problem("has a key that is not UTF-8") from None


def _payload(parsed: Mapping[str, Any]) -> bytes:
    given = [name for name in _PAYLOADS if name in parsed]
    if len(given) != 1:
        raise _Problem(
            f"needs exactly one of {', '.join(_PAYLOADS)}, and has {' and '.join(given) or 'none'}"
        )
    value = parsed[given[0]]
    try:
        if given[0] == "data_base64":
            return b64decode(value, validate=True)
        if given[0] == "data_hex":
            return bytes.fromhex(value)
        if isinstance(value, str):
            return value.encode()
    except (ValueError, TypeError):
        raise _Problem(f"has {given[0]} that cannot be decoded") from None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _key_text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Problem(f"has a {_kind(value)} in {name!r}; a partition key is text or a number")
    return json.dumps(value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _json(line: bytes) -> Any:
    try:
        return json.loads(line.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (byte {error.start + 1})"
    except json.JSONDecodeError as error:
        problem = f"is not JSON ({error.msg} at character {error.pos + 1})"
    except (ValueError, RecursionError):
        problem = "is not JSON (a number or a nesting beyond all measure)"
    raise _Problem(problem)


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "number")
