"""Messages of an event stream: whole, cut anywhere, too long, and damaged anywhere."""

import struct
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer
from event_streams import framed, header, message
from hypothesis import given
from hypothesis import strategies as st

from pykcl.aws.push.frames import MAX_MESSAGE, MessageCutter, decode
from pykcl.errors import AnswerRefused

HEADERS = {":message-type": "event", ":event-type": "SubscribeToShardEvent"}
TWO = message(HEADERS, b"one") + message({}, b"")


def cut(*pieces):
    cutter = MessageCutter()
    found = [whole for piece in pieces for whole in cutter.cut(piece)]
    return found, cutter.held


def test_messages_are_the_same_wherever_the_pieces_are_cut():
    for at in range(len(TWO) + 1):
        found, held = cut(TWO[:at], TWO[at:])
        assert [decode(one) for one in found] == [(HEADERS, b"one"), ({}, b"")]
        assert held == 0
    assert cut(*(TWO[at : at + 1] for at in range(len(TWO)))) == cut(TWO)


@given(
    sent=st.lists(
        st.tuples(
            st.dictionaries(st.text("abc:-", min_size=1, max_size=9), st.text(max_size=40), max_size=4),
            st.binary(max_size=400),
        ),
        max_size=5,
    ),
    sizes=st.lists(st.integers(1, 90), min_size=1),
)
def test_what_was_encoded_is_decoded(sent, sizes):
    encoded = b"".join(
        framed(b"".join(map(header, headers, headers.values())), payload) for headers, payload in sent
    )
    pieces, at = [], 0
    while at < len(encoded):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(encoded[at : at + size])
        at += size
    found, held = cut(*pieces)
    assert [decode(one) for one in found] == sent
    assert held == 0
    botocores = EventStreamBuffer()
    botocores.add_data(encoded)
    assert [one.payload for one in botocores] == [payload for _, payload in sent]


def test_a_message_that_is_not_complete_is_held_and_not_given():
    found, held = cut(TWO[:-1])
    assert len(found) == 1
    assert held == 15


@pytest.mark.parametrize("at", range(len(message(HEADERS, b"one"))))
def test_a_byte_that_is_wrong_is_noticed_wherever_it_is(at):
    whole = message(HEADERS, b"one")
    damaged = whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :]
    with pytest.raises(AnswerRefused, match="checksum"):
        for one in MessageCutter().cut(damaged):
            decode(one)


@given(st.binary(min_size=12, max_size=200))
def test_noise_is_refused(noise):
    with pytest.raises(AnswerRefused):
        for one in MessageCutter().cut(noise):
            decode(one)


def prelude(length, headers):
    lengths = struct.pack(">II", length, headers)
    return lengths + struct.pack(">I", crc32(lengths))


@pytest.mark.parametrize(
    ("length", "headers", "words"),
    [
        (MAX_MESSAGE + 1, 0, "longest"),
        (15, 0, "shorter than its parts"),
        (16, 1, "shorter than its parts"),
        (0, 0, "shorter than its parts"),
    ],
)
def test_a_length_that_cannot_be_is_refused_before_anything_else_has_come(length, headers, words):
    with pytest.raises(AnswerRefused, match=words):
        list(MessageCutter().cut(prelude(length, headers)))


def test_the_longest_message_is_waited_for():
    assert cut(prelude(MAX_MESSAGE, 0)) == ([], 12)


FIXED = {0: b"", 1: b"", 2: b"1", 3: b"12", 4: b"1234", 5: b"12345678", 8: b"12345678", 9: b"1" * 16}


def test_headers_of_other_types_are_passed_over():
    others = b"".join(b"\1x" + bytes([kind]) + value for kind, value in FIXED.items())
    others += b"\1y\6" + struct.pack(">H", 3) + b"\xff\xfe\xfd"
    assert decode(framed(others + header("a", "b"), b"p")) == ({"a": "b"}, b"p")


@pytest.mark.parametrize(
    "headers",
    [b"\1x\12", b"\5x", b"\1x\7\0", b"\1x\7\0\5ab", b"\1x\x04123", b"\1\xff\0", b"\1x\7\0\1\xff"],
    ids=["unknown type", "name cut", "size cut", "text cut", "integer cut", "name no text", "text no UTF-8"],
)
def test_headers_that_cannot_be_read_are_refused(headers):
    with pytest.raises(AnswerRefused, match="headers"):
        decode(framed(headers, b""))


def test_part_of_a_message_is_no_message():
    with pytest.raises(AnswerRefused, match="not as long"):
        decode(TWO)
