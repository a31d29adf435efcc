"""Sources of credentials that refuse, hang, come late and rotate, as a test wishes: STS, the agent of a container, the
metadata service of an instance, and a command.
"""

import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from botocore.credentials import RefreshableCredentials
from botocore.utils import ContainerMetadataFetcher

ROLES = "/latest/meta-data/iam/security-credentials/"


class Source:
    """key: of the credentials that it gives; None: it refuses. life: of those. asked: how often it was asked."""

    name = ""

    def __init__(self, tmp_path, monkeypatch):
        for name in list(os.environ):
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        self.key, self.life, self.asked = None, timedelta(hours=3), 0
        self.path, self.env = tmp_path, monkeypatch
        for name, value in {
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_REGION": "eu-west-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            monkeypatch.setenv(name, value)

    def pass_by(self, time):
        """Let the credentials that were given be older, as botocore sees it."""
        self.env.setattr("botocore.credentials._local_now", lambda: datetime.now(UTC) + time)
        self.env.setattr(
            RefreshableCredentials,
            "_seconds_remaining",
            lambda held: (held._expiry_time - datetime.now(UTC) - time).total_seconds(),
        )

    @property
    def expiry(self):
        return (datetime.now(UTC) + self.life).strftime("%Y-%m-%dT%H:%M:%SZ")


class HttpSource(Source):
    """hangs: set while it answers nothing."""

    def __init__(self, tmp_path, monkeypatch):
        super().__init__(tmp_path, monkeypatch)
        self._answers, source = threading.Event(), self
        self._answers.set()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                source.asked += 1
                source._answers.wait(60)
                status, text = source.answer(self.path) if source.key else (500, "out of order")
                self.send_response(status)
                self.send_header("Content-Type", "text/xml" if text.startswith("<") else "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self):
                self.do_POST()

            def do_PUT(self):
                self.do_POST()

            def log_message(self, *_):
                """Quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                """Whoever asked has not waited."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def hang(self):
        self._answers.clear()

    def refuse(self):
        self.key = None

    def come(self, key):
        self.key = key
        self._answers.set()

    def close(self):
        self._answers.set()
        self._server.shutdown()
        self._server.server_close()

    def json(self):
        return json.dumps(
            {"Code": "Success", "AccessKeyId": self.key, "SecretAccessKey": "s", "Token": "t", "Expiration": self.expiry}
        )  # fmt: skip


class Sts(HttpSource):
    name = "STS"

    def __init__(self, tmp_path, monkeypatch):
        super().__init__(tmp_path, monkeypatch)
        (tmp_path / "token").write_text("token")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/orders")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", self.url)

    def answer(self, _):
        return 200, (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{self.key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            f"<SessionToken>t</SessionToken><Expiration>{self.expiry}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )


class Agent(HttpSource):
    name = "the credentials agent of the container"

    def __init__(self, tmp_path, monkeypatch):
        super().__init__(tmp_path, monkeypatch)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{self.url}/credentials")
        monkeypatch.setattr(ContainerMetadataFetcher, "SLEEP_TIME", 0.01)

    def answer(self, _):
        return 200, self.json()


class Imds(HttpSource):
    name = "the metadata service of the instance (IMDS)"

    def __init__(self, tmp_path, monkeypatch):
        super().__init__(tmp_path, monkeypatch)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", self.url)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")

    def answer(self, path):
        return 200, {"/latest/api/token": "token", ROLES: "orders"}.get(path) or self.json()


class Command(Source):
    """`cat` of a file: it is missing, or a pipe that nobody writes into, or has credentials."""

    name = "the credential_process of the profile"

    def __init__(self, tmp_path, monkeypatch):
        super().__init__(tmp_path, monkeypatch)
        self._file = tmp_path / "printed"
        (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {self._file}\n")

    def hang(self):
        self._file.unlink(missing_ok=True)
        os.mkfifo(self._file)

    def refuse(self):
        self._file.unlink()

    def come(self, key):
        self.key = key
        new = self.path / "new"
        said = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": "s", "SessionToken": "t"}
        text = json.dumps({**said, "Expiration": self.expiry})
        new.write_text(text)
        was_hanging = self._file.exists() and stat.S_ISFIFO(self._file.stat().st_mode)
        if was_hanging:
            self._release(text)
        new.replace(self._file)

    def _release(self, text):
        """Whoever hangs gets what is printed now."""
        try:
            pipe = os.open(self._file, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody hangs
            return
        with os.fdopen(pipe, "w") as opened:
            opened.write(text)

    def close(self):
        if self._file.exists() and stat.S_ISFIFO(self._file.stat().st_mode):
            self._release("")


SOURCES = (Sts, Agent, Imds, Command)
