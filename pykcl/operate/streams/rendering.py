"""Records as bytes for whoever reads them: a terminal, a pipe, another program.

What producers put is text of strangers. Unless it is asked for raw, every character that could move a cursor, set a
title, or turn the direction of writing is shown as an escape instead.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Literal

from pykcl.errors import ConfigError, printable
from pykcl.model.record import Record

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
"""What may stand behind a percent sign. The first nine but %D are kcat's."""


def template(text: str, form: PayloadForm = "text") -> Render:
    """A format as kcat's -f has it: %-signs, and the escapes \\n \\r \\t \\\\ \\0 \\e \\xNN.

    form: of the payload. Raises ConfigError for a sign or an escape there is not.
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
    """One JSON object and a line feed per record; ASCII only, so that it drives no terminal.

    The payload stands in `data` (its text; with form "json" the value it is, where it is JSON), else in `data_base64`
    (also where it is not UTF-8) or `data_hex`. Raises ConfigError for form "raw", which no line of JSON can hold.
    """
    if form == "raw":
        raise ConfigError(
            "A line of JSON cannot hold raw bytes. Use --payload base64 (exact), text or json, or --format."
        )

    def render(record: Record) -> bytes:
        return _json_text(record, form).encode() + b"\n"

    return render


def inert(data: bytes) -> bytes:
    """As UTF-8 text on one line that drives no terminal; what is not UTF-8 is shown as \\xNN."""
    return printable(data.decode("utf-8", "backslashreplace")).encode("utf-8", "backslashreplace")


def text_payload(record: Record) -> str:
    """The payload as text to search in; what is not UTF-8 is no character anybody could look for."""
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
    """Neighbouring fixed pieces as one."""
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
    """Such as 2026-11-20T09:00:00.312Z; "-" where Kinesis sent no time."""
    if not record.arrived_at_millis:
        return "-"
    moment = record.arrived_at
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def position(record: Record) -> str:
    """The sequence number, with the sub-sequence number where the record came out of an aggregate."""
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


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        # It would be written as Infinity, which is not JSON.
        raise ValueError("a number beyond all floats")
    return number


def _parsed(data: bytes) -> tuple[Any] | None:
    """The JSON value in a payload, in a tuple; None where it is not JSON."""
    try:
        return (json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite),)
    except (ValueError, RecursionError):
        return None
