"""The end of a server that stops: each connection is closed, whatever it was about."""

import asyncio
import gc
import socket
import warnings
from contextlib import contextmanager, suppress

import pytest
from hypercorn.config import Config

from pykcl.asgi_server import serve

REQUEST = b"GET / HTTP/1.1\r\nHost: local\r\n\r\n"


async def answers_without_end(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send({"type": "http.response.body", "body": b"x" * 2**16, "more_body": True})


def test_a_connection_whose_client_does_not_read_is_closed():
    listener, transports = socket.create_server(("127.0.0.1", 0)), []
    config = Config()
    config.graceful_timeout = 0.0
    client = socket.create_connection(listener.getsockname())
    client.sendall(REQUEST)

    @contextmanager
    def noting(transport):
        transports.append(transport)
        yield

    async def until_it_is_full():
        while not transports or not transports[0].get_write_buffer_size():
            await asyncio.sleep(0)

    asyncio.run(serve(answers_without_end, config, listener, until_it_is_full, noting))
    (transport,) = transports
    assert transport.get_write_buffer_size() == 0
    client.settimeout(60.0)
    with suppress(ConnectionResetError):
        while client.recv(2**20):
            pass
    client.close()


@pytest.mark.parametrize("rounds", range(6))
def test_a_connection_that_came_at_the_last_moment_is_closed(rounds):
    """rounds: of the event loop, between the connection and the stop."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients = []

    async def until_one_has_come():
        clients.append(socket.create_connection(listener.getsockname()))
        for _ in range(rounds):
            await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        asyncio.run(serve(answers_without_end, Config(), listener, until_one_has_come))
        gc.collect()
    clients[0].close()
    assert left_open == []
