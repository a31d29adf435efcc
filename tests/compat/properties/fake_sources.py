"""STS, and the credential services of containers and instances, on a port of 127.0.0.1."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

EXPIRES = "2099-01-01T00:00:00Z"
_INSTANCE = "/latest/meta-data/iam/security-credentials/"


class FakeSources:
    """asked: every request as (method and path, headers, form). refuse_roles: STS answers no. Use as a context manager."""

    def __init__(self):
        self.asked = []
        self.refuse_roles = ""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def of_sts(self):
        return [(headers, form) for _, headers, form in self.asked if "Action" in form]

    def answer(self, path, form):
        """(status, content type, body)"""
        if form.get("Action") in ("AssumeRole", "AssumeRoleWithWebIdentity"):
            if self.refuse_roles:
                return 403, "text/xml", _error(self.refuse_roles)
            return 200, "text/xml", _assumed(form["Action"], form["RoleArn"].rpartition("/")[2])
        if path == "/latest/api/token":
            return 200, "text/plain", "token"
        if path == _INSTANCE:
            return 200, "text/plain", "role"
        if path in ("/container", _INSTANCE + "role"):
            key = "AKIDCONTAINER" if path == "/container" else "AKIDINSTANCE"
            told = {
                "Code": "Success",
                "AccessKeyId": key,
                "SecretAccessKey": "s",
                "Token": "t",
                "Expiration": EXPIRES,
            }
            return 200, "application/json", json.dumps(told)
        return 404, "text/plain", ""

    def _handler(fakes):  # noqa: N805 - the handler's own self is another one
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.do_POST()

            def do_PUT(self):
                self.do_POST()

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                form = dict(parse_qsl(body))
                fakes.asked.append((f"{self.command} {self.path}", dict(self.headers), form))
                status, kind, text = fakes.answer(self.path, form)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                if self.path == "/latest/api/token":
                    self.send_header("x-aws-ec2-metadata-token-ttl-seconds", "60")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                """Nothing to standard error."""

        return Handler


def _assumed(action, role):
    return (
        f"<{action}Response><{action}Result><Credentials><AccessKeyId>ASIA{role.upper()}</AccessKeyId>"
        f"<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{EXPIRES}</Expiration>"
        f"</Credentials><AssumedRoleUser><Arn>a</Arn><AssumedRoleId>b</AssumedRoleId></AssumedRoleUser>"
        f"</{action}Result></{action}Response>"
    )


def _error(code):
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>CANARY</Message></Error></ErrorResponse>"
