"""Messages of an AWS event stream (`application/vnd.amazon.eventstream`). No I/O.

A message is a prelude of 12 bytes (length of the whole, length of the headers, CRC of both), headers, a payload, and a
CRC of all that comes before it. The prelude has a CRC of its own because nothing else may be believed before its
length: a wrong one would make records of one message the head of the next.

No text raised here carries what came.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from pykcl.errors import AnswerRefused

MAX_MESSAGE = 16 * 1024 * 1024
"""Bytes of the longest message that is taken. AWS permits as many (Smithy, event stream encoding)."""

_PRELUDE, _CRC = 12, 4
_LENGTHS = struct.Struct(">II")
_WORD = struct.Struct(">I")
_SIZE = struct.Struct(">H")
_FIXED_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value, by type: true, false, byte, short, integer, long, time, UUID."""
_BYTES, _TEXT = 6, 7


class Message(NamedTuple):
    """headers: those whose values are texts; the others mean nothing here."""

    headers: dict[str, str]
    payload: bytes


class MessageCutter:
    """Cuts what comes into whole messages, in any pieces."""

    def __init__(self) -> None:
        self._received = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a message that is not complete yet."""
        return len(self._received)

    def cut(self, data: bytes) -> Iterator[bytes]:
        """Yield each message that is complete now, for `decode`. Raises AnswerRefused where no message can begin."""
        received = self._received
        received += data
        while len(received) >= _PRELUDE:
            length = _length_of(received)
            if len(received) < length:
                return
            message = bytes(memoryview(received)[:length])
            del received[:length]
            yield message


def decode(message: bytes) -> Message:
    """Return the headers and the payload of a whole message. Raises AnswerRefused."""
    if len(message) < _PRELUDE + _CRC or len(message) != _length_of(message):
        raise refused("a message is not as long as it says")
    if crc32(memoryview(message)[:-_CRC]) != _WORD.unpack_from(message, len(message) - _CRC)[0]:
        raise refused("the checksum of a message is wrong")
    headers_end = _PRELUDE + _LENGTHS.unpack_from(message)[1]
    try:
        headers = _headers(message[_PRELUDE:headers_end])
    except (LookupError, struct.error, UnicodeDecodeError) as error:
        why = type(error).__name__
    else:
        return Message(headers, message[headers_end:-_CRC])
    # Outside the except block: an error of decoding text keeps the text.
    raise refused(f"the headers of a message cannot be read ({why})")


def _length_of(received: bytes | bytearray) -> int:
    """Return the length of the message that begins here."""
    length, headers = _LENGTHS.unpack_from(received)
    if crc32(memoryview(received)[: _LENGTHS.size]) != _WORD.unpack_from(received, _LENGTHS.size)[0]:
        raise refused("the checksum of a prelude is wrong")
    if length > MAX_MESSAGE:
        raise refused(f"a message has {length} bytes, more than the {MAX_MESSAGE} of the longest one")
    if length < _PRELUDE + headers + _CRC:
        raise refused("a message is shorter than its parts")
    return int(length)


def _headers(encoded: bytes) -> dict[str, str]:
    """Raises LookupError, struct.error and UnicodeDecodeError."""
    found: dict[str, str] = {}
    at = 0
    while at < len(encoded):
        name_end = at + 1 + encoded[at]
        name, kind, at = encoded[at + 1 : name_end].decode(), encoded[name_end], name_end + 1
        if kind in (_BYTES, _TEXT):
            (size,) = _SIZE.unpack_from(encoded, at)
            at += _SIZE.size
        else:
            size = _FIXED_SIZES[kind]
        if at + size > len(encoded):
            raise IndexError
        if kind == _TEXT:
            found[name] = encoded[at : at + size].decode()
        at += size
    return found


def refused(problem: str) -> AnswerRefused:
    return AnswerRefused(
        f"The events of a subscription cannot be read: {problem}. Nothing of the message was used; subscribing again "
        "may help. If this goes on, check what stands between this process and Kinesis (a proxy, an emulator)."
    )
