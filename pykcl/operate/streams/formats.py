"""Records as text: the formats that `tail` writes and `put` reads.

Payloads are untrusted text. Unless raw output is requested, every character that could move a cursor, set a title or
reverse the direction of writing is written as an escape. Messages about lines of input give their numbers, and never
quote them.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pykcl.errors import ConfigError, PyKclError, printable
from pykcl.model.metered_json import MAX_RECORD_VALUES, NotJson, read_json, refuse_constant
from pykcl.model.new_record import MAX_KEY_LENGTH, NewRecord, why_refused
from pykcl.model.record import Record
from pykcl.times import format_time

PayloadForm = Literal["text", "json", "raw", "base64", "hex"]
PAYLOAD_FORMS: tuple[PayloadForm, ...] = ("text", "json", "raw", "base64", "hex")
Render = Callable[[Record], bytes]

PLAIN = r"%s\n"
WIDE = r"%D %p %o %k %s\n"

_TOKEN = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{1,2}|.?)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0", "e": b"\x1b"}
SIGNS = {
    "s": "payload",
    "S": "its size in bytes",
    "R": "its size as 4 bytes, big-endian",
    "k": "partition key",
    "K": "its size in bytes",
    "T": "arrival, epoch milliseconds",
    "D": "arrival, as a UTC time",
    "t": "stream",
    "p": "shard",
    "o": "position: sequence number, and :sub-sequence number inside an aggregate",
    "i": "sub-sequence number",
    "H": "explicit hash key",
    "j": "the whole record as one line of JSON",
    "%": "a percent sign",
}
"""The signs of --format. The first nine except %D are kcat's."""


def template(text: str, form: PayloadForm = "text") -> Render:
    """Return the renderer of a format like kcat's -f: %-signs, and the escapes \\n \\r \\t \\\\ \\0 \\e \\xNN.

    form: of the payload. Raises ConfigError for an unknown sign or escape.
    """
    parts: list[bytes | Render] = []
    for found in _TOKEN.finditer(text):
        whole, sign, escape, plain = found[0], found[1], found[2] or "", found[3]
        if plain:
            parts.append(plain.encode("utf-8", "surrogateescape"))
        elif whole.startswith("%"):
            parts.append(_sign(sign, text, form))
        elif escape[:1] == "x" and len(escape) > 1:
            parts.append(bytes([int(escape[1:], 16)]))
        elif escape in _ESCAPES:
            parts.append(_ESCAPES[escape])
        else:
            raise _refused(text, "ends in a lone \\" if not escape else f"has the unknown escape \\{escape}")
    steps = _merged(parts)

    def render(record: Record) -> bytes:
        return b"".join(step if isinstance(step, bytes) else step(record) for step in steps)

    return render


def json_lines(form: PayloadForm = "text") -> Render:
    """Return the renderer of one JSON object per record and line; ASCII only, so without control of a terminal.

    The payload is in `data` (as text; with form "json" as its JSON value, if it is JSON), else in `data_base64` (also
    if it is not UTF-8) or `data_hex`. Raises ConfigError for form "raw", which JSON cannot hold.
    """
    if form == "raw":
        raise ConfigError(
            "A line of JSON cannot hold raw bytes. Use --payload base64 (exact), text or json, or --format."
        )

    def render(record: Record) -> bytes:
        return _json_text(record, form).encode() + b"\n"

    return render


def inert(data: bytes) -> bytes:
    """Return UTF-8 text on one line without control characters; other bytes become \\xNN."""
    return printable(data.decode("utf-8", "backslashreplace")).encode("utf-8", "backslashreplace")


def text_payload(record: Record) -> str:
    """Return the payload as text for --grep; bytes that are not UTF-8 become a replacement character."""
    return record.data.decode("utf-8", "replace")


def _sign(sign: str, text: str, form: PayloadForm) -> bytes | Render:
    if sign == "%":
        return b"%"
    if not sign:
        raise _refused(text, "ends in a lone %")
    if sign == "s":
        return _PAYLOADS[form]
    if sign == "j":
        return lambda record: _json_text(record, "base64" if form == "raw" else form).encode()
    if sign == "h":
        raise _refused(text, "asks for headers (%h), which Kinesis records do not have")
    try:
        return _SIGNS[sign]
    except KeyError:
        raise _refused(text, f"has the unknown sign %{sign}") from None


def _refused(text: str, problem: str) -> ConfigError:
    known = ", ".join(f"%{sign} {meaning}" for sign, meaning in SIGNS.items())
    return ConfigError(
        f"--format {text[:80]!r} {problem}. There are: {known}; and \\n \\r \\t \\0 \\e \\xNN \\\\."
    )


def _merged(parts: list[bytes | Render]) -> list[bytes | Render]:
    """Join adjacent fixed pieces."""
    merged: list[bytes | Render] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _json_payload(record: Record) -> bytes:
    value = _parsed(record.data)
    if value is None:
        return inert(record.data)
    return json.dumps(value[0], separators=(",", ":")).encode()


_PAYLOADS: dict[PayloadForm, Render] = {
    "text": lambda record: inert(record.data),
    "json": _json_payload,
    "raw": lambda record: record.data,
    "base64": lambda record: b64encode(record.data),
    "hex": lambda record: record.data.hex().encode(),
}
_SIGNS: dict[str, Render] = {
    "S": lambda record: b"%d" % len(record.data),
    "R": lambda record: len(record.data).to_bytes(4, "big"),
    "k": lambda record: inert(record.partition_key.encode("utf-8", "surrogatepass")),
    "K": lambda record: b"%d" % len(record.partition_key.encode("utf-8", "surrogatepass")),
    "T": lambda record: b"%d" % record.arrived_at_millis,
    "D": lambda record: arrival(record).encode(),
    "t": lambda record: record.stream.encode(),
    "p": lambda record: record.shard_id.encode(),
    "o": lambda record: position(record).encode(),
    "i": lambda record: b"%d" % record.sub_sequence_number,
    "H": lambda record: (record.explicit_hash_key or "").encode(),
}


def arrival(record: Record) -> str:
    """Return the arrival, such as 2026-11-20T09:00:00.312Z; "-" if Kinesis sent none."""
    if not record.arrived_at_millis:
        return "-"
    return format_time(record.arrived_at_millis)


def position(record: Record) -> str:
    """Return the sequence number, with the sub-sequence number for a record from an aggregate."""
    if record.aggregated:
        return f"{record.sequence_number}:{record.sub_sequence_number}"
    return record.sequence_number


def _json_text(record: Record, form: PayloadForm) -> str:
    shown: dict[str, Any] = {
        "stream": record.stream,
        "shard": record.shard_id,
        "sequence_number": record.sequence_number,
        "sub_sequence_number": record.sub_sequence_number,
        "aggregated": record.aggregated,
        "arrived_at": arrival(record) if record.arrived_at_millis else None,
        "partition_key": record.partition_key,
        "explicit_hash_key": record.explicit_hash_key,
    }
    name, value = _json_data(record.data, form)
    shown[name] = value
    return json.dumps(shown, separators=(",", ":"))


def _json_data(data: bytes, form: PayloadForm) -> tuple[str, Any]:
    if form == "hex":
        return "data_hex", data.hex()
    if form == "json" and (value := _parsed(data)) is not None:
        return "data", value[0]
    if form != "base64":
        try:
            return "data", data.decode()
        except UnicodeDecodeError:
            return "data_base64", b64encode(data).decode()
    return "data_base64", b64encode(data).decode()


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        # It would be written as Infinity, which is not JSON.
        raise ValueError("a number beyond all floats")
    return number


_decode_finite = json.JSONDecoder(parse_constant=refuse_constant, parse_float=_finite).decode


def _parsed(data: bytes) -> tuple[Any] | None:
    """Return the JSON value of a payload in a tuple; None if it is not JSON."""
    try:
        return (read_json(data.decode(), max_values=MAX_RECORD_VALUES, decode=_decode_finite),)
    except ValueError:
        return None


InputForm = Literal["lines", "jsonl", "records"]
INPUT_FORMS: tuple[InputForm, ...] = ("lines", "jsonl", "records")

_DATA_FIELDS = ("data", "data_base64", "data_hex")


class BadLine(PyKclError):
    """A line that is not a record. number: counted from 1."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(f"line {number} {problem}")
        self.number = number


class _Problem(Exception):
    """The problem of a line, without its number."""


@dataclass(frozen=True, slots=True)
class LineReader:
    """form: lines (the payload is the line), jsonl (the same, but it must be JSON), records (as `tail -o jsonl`
    writes).

    The partition key comes from the first that is given: key_field (name in the JSON object of the line, with
    dots for nested fields), key_delimiter (the key is before it, as with kcat's -K; the payload is after it), the
    record's own partition_key (form "records"), key, else new_key, which is called once per record.
    max_bytes: of payload and partition key.
    """

    form: InputForm
    new_key: Callable[[], str]
    max_bytes: int
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
        if self.key is not None and not 1 <= len(self.key) <= MAX_KEY_LENGTH:
            raise ConfigError(
                f"--key has {len(self.key)} characters; a partition key has 1 to {MAX_KEY_LENGTH}."
            )

    def record(self, number: int, line: bytes) -> NewRecord | None:
        """Return the record of one line without its line feed; None for an empty line. Raises BadLine."""
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
        given = parsed.get("partition_key")
        if self.key_field is None and self.key is None and given is not None:
            key = _key_text(given, "partition_key")
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
        problem = why_refused(record, self.max_bytes)
        if problem is not None:
            raise _Problem(problem)
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
    given = [name for name in _DATA_FIELDS if name in parsed]
    if len(given) != 1:
        raise _Problem(
            f"needs exactly one of {', '.join(_DATA_FIELDS)}, and has {' and '.join(given) or 'none'}"
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


def _json(line: bytes) -> Any:
    try:
        return read_json(line.decode(), max_values=MAX_RECORD_VALUES)
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (byte {error.start + 1})"
    except NotJson as error:
        problem = str(error).removeprefix("it ")
    raise _Problem(problem)


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "number")
