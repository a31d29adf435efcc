"""A Kinesis that knows prepared answers only: what it sends for an iterator is that iterator's answer, for ever.

It runs in a process of its own, so that its CPU does not count, and does as little as it can: one thread per
connection, no look at the signature. JSON or CBOR, as asked; with or without TLS.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cbor2

from benchmarks.server_process import Answers, server_process
from pykcl.model.kpl import aggregate

ITERATOR = "AAAAAAAAAAE" + "x" * 220
JSON, CBOR = "application/x-amz-json-1.1", "application/x-amz-cbor-1.1"
_ASKED = re.compile(rb"~([a-z0-9-]+)~")


@dataclass(frozen=True)
class Shape:
    """So many Kinesis records. in_each: user records in each, 1 for a plain one. size: bytes of a user record."""

    name: str
    records: int
    size: int
    in_each: int = 1

    @property
    def user_records(self) -> int:
        return self.records * self.in_each

    def data(self, chance: random.Random) -> bytes:
        """Of one Kinesis record."""
        if self.in_each == 1:
            return chance.randbytes(self.size)
        (blob,) = aggregate([("device-1", None, chance.randbytes(self.size)) for _ in range(self.in_each)])
        return blob.data

    @property
    def iterator(self) -> str:
        """An iterator as long as a real one, with our name in it."""
        return f"AAAAAAAAAAE{'x' * 200}~{self.name.replace(' ', '-').replace(',', '').lower()}~"


def answer_of(shape: Shape) -> dict[str, Any]:
    """As Kinesis writes it: 56-digit numbers, times with milliseconds."""
    chance = random.Random(1)
    first = 49600000000000000000000000000000000000000000000000000000
    records = [
        {
            "ApproximateArrivalTimestamp": 1_700_000_000_000 + index,
            "Data": shape.data(chance),
            "PartitionKey": f"customer-{chance.randrange(10**8):08d}",
            "SequenceNumber": str(first + index * 7919),
        }
        for index in range(shape.records)
    ]
    return {"MillisBehindLatest": 0, "NextShardIterator": ITERATOR, "Records": records}


def as_json(answer: dict[str, Any]) -> bytes:
    def record(one: dict[str, Any]) -> dict[str, Any]:
        data, seconds = base64.b64encode(one["Data"]).decode(), one["ApproximateArrivalTimestamp"] / 1000
        return {**one, "Data": data, "ApproximateArrivalTimestamp": seconds}

    return json.dumps(
        {**answer, "Records": list(map(record, answer["Records"]))}, separators=(",", ":")
    ).encode()


def as_cbor(answer: dict[str, Any]) -> bytes:
    def record(one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "ApproximateArrivalTimestamp": cbor2.CBORTag(1, one["ApproximateArrivalTimestamp"])}

    return cbor2.dumps({**answer, "Records": list(map(record, answer["Records"]))})


@contextmanager
def canned_server(shapes: tuple[Shape, ...], *, tls: bool) -> Iterator[tuple[str, str | None]]:
    """The URL, and the file of the certificate to trust."""
    with tempfile.TemporaryDirectory() as folder:
        certificate = certificate_in(Path(folder)) if tls else None
        with server_process(_serve, shapes, certificate) as pipe:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{int(pipe.recv())}", certificate


def _serve(pipe: Connection, shapes: tuple[Shape, ...], certificate: str | None) -> None:
    answers = {}
    for shape in shapes:
        answer, name = answer_of(shape), shape.iterator.split("~")[1].encode()
        answers[name] = (_http(as_json(answer), JSON), _http(as_cbor(answer), CBOR))

    def answer_to(head: bytes, body: bytes) -> bytes:
        (name,) = _ASKED.findall(body)
        return answers[name][CBOR.encode() in head]

    server = Answers(answer_to, certificate)
    pipe.send(server.port)
    server.accept()


def _http(body: bytes, content_type: str) -> bytes:
    head = (
        "HTTP/1.1 200 OK\r\nx-amzn-RequestId: c5a0b7f3-4d3e-4b1c-9d55-2f6e4d0c0a11\r\n"
        "x-amz-id-2: VjXdUvlGk3rRzYz3uN8kYw5m0C1rAl7h1aJv0cQmXq\r\n"
        f"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def certificate_in(folder: Path) -> str:
    """Create a file with the key and the certificate of a server at 127.0.0.1 and the authority to trust; return its path.

    The authority has a key of its own, because rustls takes no certificate that is both.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("authority", "127.0.0.1")
    ]
    now = datetime.datetime.now(datetime.UTC)
    server = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificates = [
        x509.CertificateBuilder()
        .subject_name(names[number])
        .issuer_name(names[0])
        .public_key(key.public_key())
        .serial_number(number + 1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(server, False)
        .add_extension(x509.BasicConstraints(ca=not number, path_length=None), True)
        .sign(keys[0], hashes.SHA256())
        for number, key in enumerate(keys)
    ]
    path = folder / "server.pem"
    path.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + b"".join(each.public_bytes(serialization.Encoding.PEM) for each in reversed(certificates))
    )
    return str(path)
