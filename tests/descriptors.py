"""Count of what a server in this process keeps open once its clients have left."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

CLIENTS = 20
PATIENCE = 60.0


def assert_connections_end_with_clients(connect: Callable[[], socket.socket], *, stay: bool = True) -> None:
    """Call `connect` for some connections, close them all, and wait until no socket more is open than before.

    stay: the server keeps them until then, so its ends are waited for: it accepts when it comes to it.
    """
    before = open_sockets()
    clients = [connect() for _ in range(CLIENTS)]
    try:
        if stay:
            _wait_for(lambda: open_sockets() >= before + 2 * CLIENTS, "the server's ends")
    finally:
        for client in clients:
            client.close()
    _wait_for(lambda: open_sockets() <= before, "the server's ends to be closed")


def connected(port: int, request: bytes = b"", *, is_answered: bool = True) -> socket.socket:
    """Connect, send `request`, and wait for the first of its answer unless there will be none."""
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    client.sendall(request)
    if request and is_answered:
        assert client.recv(65536)
    return client


def open_sockets() -> int:
    """Number of sockets that this process has open."""
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
        except FileNotFoundError:
            continue  # that of the listing itself, or of another thread
    return count


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}: {open_sockets()} sockets are open"
        time.sleep(0.01)
