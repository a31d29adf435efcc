"""A worker that answers /status and /metrics as a test wants."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fleet_table import shard

TOKEN = "a-token-of-some-length"


def status(worker="w", **lease_fields):
    told = {
        "shard": shard(1),
        "millis_behind_latest": 4200,
        "lag_age": 0.5,
        "call": None,
        **lease_fields,
    }
    return {
        "format": 1,
        "ready": True,
        "worker": {"worker_id": worker, "state": "running", "leases": [told], "troubles": []},
    }


class Worker(ThreadingHTTPServer):
    """Answers as it is told to; keeps what it was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.metrics, self.code = json.dumps(status()).encode(), b"", 200
        self.asked = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(self.server.code)
        if self.server.code == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        body = self.server.metrics if self.path == "/metrics" else self.server.status
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        return
