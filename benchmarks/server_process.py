"""Servers in processes of their own, so that what they take does not count: the local AWS, and those with prepared answers."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@contextlib.contextmanager
def server_process(
    target: Callable[..., None], *arguments: Any, forked: bool = False
) -> Iterator[Connection]:
    """Runs target(pipe, *arguments); our end of the pipe. forked: it shares what is in memory already."""
    context = multiprocessing.get_context("fork" if forked else "spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)  # type: ignore[attr-defined]
    process.start()
    # Ours would keep it open, and a server that dies before its first word would be waited for forever.
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


@contextlib.contextmanager
def local_command(stream: str) -> Iterator[dict[str, str]]:
    """`pykcl local` with a stream such as "orders:4"; the variables of the environment that lead to it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pykcl.cli", "local", "--port", "0", "--stream", stream],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        exports = [process.stdout.readline().removeprefix("export ").strip() for _ in range(5)]
        if not all(exports):
            raise RuntimeError("the local AWS did not start")
        yield dict(line.split("=", 1) for line in exports)
    finally:
        process.terminate()
        process.wait()


class Answers:
    """A server of few words on a free port, a thread per connection. answer(head, body): all bytes of the response.

    certificate: a file with certificate and key; None for plain HTTP.
    """

    def __init__(self, answer: Callable[[bytes, bytes], bytes], certificate: Path | str | None) -> None:
        self._answer, self._context = answer, None
        if certificate:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]

    def accept(self) -> None:
        """Without end."""
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        try:
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            with connection:
                received = b""
                while part := connection.recv(65536):
                    received += part
                    head, _, body = received.partition(b"\r\n\r\n")
                    length = _LENGTH.search(head)
                    if length is not None and len(body) == int(length[1]):
                        connection.sendall(self._answer(head, body))
                        received = b""
        except OSError:
            return
