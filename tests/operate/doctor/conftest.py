import threading
from http.server import HTTPServer

import pytest
from doctor_world import Iam, World


@pytest.fixture
def world(monkeypatch):
    """A healthy set-up: a stream of two shards, its lease table, and one pykcl worker whose heart beats."""
    with World(monkeypatch) as made:
        yield made


@pytest.fixture
def iam(monkeypatch):
    """IAM on a port of its own; the world's environment does not name it yet."""
    monkeypatch.setattr(Iam, "denied", frozenset())
    monkeypatch.setattr(Iam, "asked", [])
    server = HTTPServer(("127.0.0.1", 0), Iam)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    Iam.url = f"http://127.0.0.1:{server.server_port}"
    yield Iam
    server.shutdown()
    server.server_close()
    thread.join()
