"""A server between pykcl and a local AWS: it sees each request, and may answer by itself or change the answer."""

import http.client
import ssl
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes


class Between:
    """Forwards POSTs to a local AWS. seen: (operation, headers, body) of each request.

    instead: given (operation, headers, body), returns an Answer, or None for the one of the local AWS. change: given
    the operation and an Answer, changes it in place. rewrite: given the operation and the body, returns the body. Names of headers are in lower case. certificate: a file with one
    and its key, for TLS.
    """

    def __init__(self, aws, certificate=None):
        self.aws, self.kinesis = aws, aws.kinesis
        self._port = int(aws.url.rpartition(":")[2])
        self.seen = []
        self.instead = lambda operation, headers, body: None
        self.change = lambda operation, answer: None
        self.rewrite = lambda operation, body: body
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = outer._answer({name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response_only(answer.status)
                for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_):
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.port = self._server.server_port
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join(60)
        self._server.server_close()

    def operations(self):
        return [operation for operation, _, _ in self.seen]

    def hosts(self):
        """Names that the requests were sent to."""
        return {headers["host"] for _, headers, _ in self.seen}

    def _answer(self, headers, body):
        # STS takes forms.
        target = headers.get("x-amz-target")
        operation = target.partition(".")[2] if target else parse_qs(body.decode())["Action"][0]
        body = self.rewrite(operation, body)
        self.seen.append((operation, headers, body))
        answer = self.instead(operation, headers, body)
        if answer is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            # A local AWS answers to no name but its own.
            connection.request(
                "POST",
                "/",
                body,
                {**headers, "host": f"127.0.0.1:{self._port}", "content-length": str(len(body))},
            )
            found = connection.getresponse()
            told = {name.lower(): value for name, value in found.headers.items()}
            answer = Answer(found.status, told, found.read())
            connection.close()
        self.change(operation, answer)
        return answer
