"""A page that really answers on a port of this machine, over a lease table in memory, and a browser of few words."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field

from fleet_table import NAME, FleetTable

from pykcl.model.checkpoint import StartPosition
from pykcl.model.shard import Shard
from pykcl.operate.lag import ShardLag
from pykcl.operate.unleased import unleased_shards
from pykcl.runtime import SystemRuntime
from pykcl.ui.poller import Fleet, LagPoller
from pykcl.ui.server import page_server
from pykcl.ui.state_store import Rates

PATIENCE = 300


class Lags:
    """Tells what it was told to tell."""

    cost = "nothing"

    def __init__(self) -> None:
        self.behind: dict[str, float] = {}
        self.shards: list[Shard] = []

    def lags(self, leases):
        return {one.key: ShardLag(self.behind.get(one.key, 1.5)) for one in leases}

    def unleased(self, leases, unreadable):
        return unleased_shards(StartPosition("LATEST"), self.shards, leases, unreadable)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self):
        return json.loads(self.body)


class Page:
    """More options go to `page_server`."""

    def __init__(self, table: FleetTable, *, every: float = 0.05, **more) -> None:
        self.lags = Lags()
        runtime = SystemRuntime()
        options = {
            "rates": Rates(asks_workers=False),
            "lags": LagPoller(lambda: self.lags, 0.1, runtime),
            **more,
        }
        fleet = Fleet(application=NAME, stream="orders", region="nowhere", failover=5.0, every=every)
        self.server = page_server(fleet, _Scans(table), runtime, bind="0", **options)

    def __enter__(self) -> Page:
        self.server.__enter__()
        self.host = self.server.url.removeprefix("http://")
        self.port = int(self.host.rpartition(":")[2])
        return self

    def __exit__(self, *error) -> None:
        self.server.__exit__(None, None, None)

    def ask(self, method: str, path: str, body=None, **headers) -> Answer:
        """As it is, without what a browser would add. headers: by their names, with _ for -; None leaves one out."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            told = {"Host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            if content is not None:
                told.setdefault("Content-Type", "application/json")
                told["Content-Length"] = str(len(content))
            for name, value in told.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(content)
            answer = connection.getresponse()
            return Answer(
                answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def browser(self) -> Browser:
        """One that has shown the token."""
        answer = self.ask("POST", "/session", {"token": self.server.token}, Origin=f"http://{self.host}")
        assert answer.status == 204, answer.text
        return Browser(self, answer.headers["set-cookie"].partition(";")[0])


@dataclass
class Browser:
    """What the page's own scripts can do."""

    page: Page
    cookie: str
    told: dict[str, object] = field(default_factory=dict)

    def get(self, path: str, **headers) -> Answer:
        return self.page.ask("GET", path, Cookie=self.cookie, Sec_Fetch_Site="same-origin", **headers)

    def post(self, path: str, body, **headers) -> Answer:
        own = {"Origin": f"http://{self.page.host}", **headers}
        return self.page.ask("POST", path, body, Cookie=self.cookie, **own)

    def state(self, good=lambda told: True) -> dict:
        """What the page is told, as soon as it is so."""
        return until(lambda: self.get("/api/state").json(), good, "what the page is to be told")

    def events(self, enough) -> list[tuple[str, dict]]:
        """Server-sent events, as (kind, what it says), until `enough(all of them)`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.page.port, timeout=PATIENCE)
        found: list[tuple[str, dict]] = []
        try:
            connection.request("GET", "/api/events", headers={"Host": self.page.host, "Cookie": self.cookie})
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            kind = ""
            while not found or not enough(found):
                line = answer.readline().decode().rstrip("\n")
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    found.append((kind, json.loads(line[6:])))
            return found
        finally:
            connection.close()


class _Scans:
    pace = ""

    def __init__(self, table: FleetTable) -> None:
        self._scanner = table.scanner

    def scan(self):
        return self._scanner.scan()


def until(look, good, what: str):
    """What `look` returns, once it is good; a deadline that decides nothing but how long a failure takes."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = look()
        if good(found):
            return found
        assert time.monotonic() < deadline, f"waited in vain for {what}: {found!r:.500}"
        time.sleep(0.02)
