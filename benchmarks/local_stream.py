"""The local AWS as a server of its own process, and the CPU of a worker for records that are put there.

Several workers have a stream each, with the same shards. CPU per user record is a slope: what a window with 4 N records
costs more than one with N, by 3 N, so what a reader does anyway is in neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.canned import Shape
from benchmarks.server_process import server_process
from pykcl.local.server import LocalAws
from pykcl.local.stream import Entry
from pykcl.model.kpl import aggregate

_PATIENCE = 180.0
_MAX_TRIES = 3
_MAX_ENTRIES = 20_000


def serve(
    pipe: Connection, streams: tuple[str, ...], shards: int, certificate: Path | None, limits: bool
) -> None:
    """The local AWS. Puts what it is given: (stream, user records, shape); answers "polls" with those of pykcl and others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with LocalAws(limits=limits) as aws:
        for stream in streams:
            aws.kinesis.create_stream(stream, shards)
        port = int(aws.url.rpartition(":")[2])
        pipe.send(aws.url if certificate is None else f"https://127.0.0.1:{terminate_tls(certificate, port)}")
        with contextlib.suppress(EOFError):
            while True:
                said = pipe.recv()
                if said == "polls":
                    agents = [one.user_agent for one in aws.requests.of("kinesis", "GetRecords")]
                    ours = sum("pykcl/" in agent for agent in agents)
                    pipe.send((len(agents) - ours, ours, len(agents)))
                    continue
                stream, count, shape = said
                aws.kinesis.put_records(stream, entries(shape, count, shards))
                pipe.send(count)


def entries(shape: Shape, user_records: int, shards: int) -> list[Entry]:
    """So many user records, spread over the shards; in aggregates where the shape has them."""
    step, chance = (1 << 128) // shards, random.Random(user_records)
    found = []
    for number in range(user_records // shape.in_each):
        place = number % shards * step
        key, data = f"key-{number % 512}", chance.randbytes(shape.size)
        if shape.in_each > 1:
            (blob,) = aggregate([(key, str(place), data) for _ in range(shape.in_each)])
            data = blob.data
        found.append(Entry(data, key, place))
    return found


class Server:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.url: str = pipe.recv()

    def put(self, stream: str, count: int, shape: Shape) -> None:
        self._pipe.send((stream, count, shape))
        assert self._pipe.recv() == count

    def polls(self) -> tuple[int, int]:
        """GetRecords requests so far, of others and of pykcl. Raises RuntimeError when the log of requests is full."""
        self._pipe.send("polls")
        others, ours, kept = self._pipe.recv()
        if kept >= _MAX_ENTRIES:
            raise RuntimeError("the log of requests is full: these counts are too low")
        return others, ours


def terminate_tls(certificate: Path, port: int) -> int:
    """Accept TLS connections, and forward what they carry to a port of this machine; return the port for TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    found: list[int] = []
    is_listening = threading.Event()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 18):
                target.write(data)
                await target.drain()
        target.close()

    async def forward(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(client, to_server), copy(server, to_client))

    async def listen() -> None:
        server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
        found.append(server.sockets[0].getsockname()[1])
        is_listening.set()
        await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(listen()), daemon=True).start()
    if not is_listening.wait(30):
        raise RuntimeError("no port could be opened for TLS")
    return found[0]


@contextlib.contextmanager
def local_aws(
    streams: tuple[str, ...], shards: int, *, certificate: Path | None = None, limits: bool = False
) -> Iterator[Server]:
    """certificate: a file with certificate and key, for TLS. limits: enforce the rates of Kinesis."""
    with server_process(serve, streams, shards, certificate, limits) as pipe:
        yield Server(pipe)


class Side:
    """One of the two: how many records it was given, what it has used."""

    def __init__(
        self, name: str, stream: str, server: Server, records: Callable[[], int], cpu: Callable[[], float]
    ) -> None:
        self.name, self.stream, self._server = name, stream, server
        self._records, self.cpu = records, cpu
        self._total = 0

    def give(self, count: int, shape: Shape) -> None:
        """And wait until all of it was processed."""
        self._server.put(self.stream, count, shape)
        self._total += count
        deadline = time.monotonic() + _PATIENCE
        while self._records() < self._total:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.name} had {self._records()} of {self._total} records after {_PATIENCE:g} s"
                )
            time.sleep(0.02)

    def spent_on(self, count: int, shape: Shape) -> tuple[float, float]:
        """CPU until so many are processed, and how long that took."""
        before, began = self.cpu(), time.monotonic()
        self.give(count, shape)
        return self.cpu() - before, time.monotonic() - began

    def slope(self, count: int, shape: Shape, seconds: float) -> float:
        """Microseconds of CPU per user record. seconds: of a window; a longer one is tried where that is not enough."""
        for _ in range(_MAX_TRIES):
            few, many = self._window(count, shape, seconds), self._window(4 * count, shape, seconds)
            if few is not None and many is not None:
                return (many - few) / (3 * count) * 1e6
            seconds *= 1.5
        raise RuntimeError(
            f"{self.name} needs more than {seconds:.0f} s for {4 * count} records of {shape.name}"
        )

    def _window(self, count: int, shape: Shape, seconds: float) -> float | None:
        """CPU of a window in which so many are put at its beginning; None when it was too short."""
        before, until = self.cpu(), time.monotonic() + seconds
        self.give(count, shape)
        left = until - time.monotonic()
        if left < 0:
            return None
        time.sleep(left)
        return self.cpu() - before
