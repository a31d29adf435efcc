"""Reports of workers on the web page."""

import json
import socket

import pytest
from fleet_table import lease, shard
from status_server import Worker, status
from ui_page import Page, until

from pykcl.operate import worker_status
from pykcl.operate.worker_status import StatusClient
from pykcl.runtime import SystemRuntime
from pykcl.ui.poller import WorkerPoller
from pykcl.ui.state_store import Rates


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.shutdown()
    made.server_close()


def test_the_page_believes_a_worker_about_its_own_leases_only(live_table, worker):
    worker.metrics = b"pykcl_records_processed_total 10\n"
    live_table.put(lease(1, "w"), lease(2, "v"))
    told = status()
    told["worker"]["leases"].append(
        {**told["worker"]["leases"][0], "shard": shard(2), "millis_behind_latest": 1}
    )
    worker.status = json.dumps(told).encode()
    runtime = SystemRuntime()
    rounds = WorkerPoller(StatusClient([worker.url], runtime), 0.1, runtime)
    with Page(live_table, lags=None, workers=rounds, rates=Rates(asks_workers=True)) as page:
        browser = page.browser()
        whole = browser.state(lambda told: "lag" in told["rows"].get(shard(1), {}))
        assert whole["rows"][shard(1)]["lag"]["source"] == "worker"
        assert whole["rows"][shard(1)]["lag"]["behind"] == 4.2
        assert "lag" not in whole["rows"][shard(2)]
        assert whole["owners"]["w"]["says"]["state"] == "running"
        assert whole["owners"]["w"]["says"]["paused"] == 0
        worker.status = json.dumps(status(paused=True)).encode()
        browser.state(lambda told: told["owners"]["w"]["says"]["paused"] == 1)


def test_a_worker_that_stalls_and_one_that_falls_silent_make_events(live_table, worker):
    live_table.put(lease(1, "w"))
    rounds = WorkerPoller(StatusClient([worker.url], SystemRuntime()), 0.1, SystemRuntime())
    with Page(live_table, lags=None, workers=rounds, rates=Rates(asks_workers=True)) as page:
        browser = page.browser()
        browser.state(lambda told: "says" in told["owners"].get("w", {}))
        worker.status = json.dumps(
            status(call={"method": "process_records", "seconds": 99, "stalled": True})
        ).encode()
        whole = browser.state(
            lambda told: any("does not return" in event["text"] for event in told["events"])
        )
        assert whole["owners"]["w"]["says"]["stalled"] == 1
        worker.code = 500
        browser.state(lambda told: any("500" in event["text"] for event in told["events"]))
        worker.code = 200
        browser.state(lambda told: any("answers again" in event["text"] for event in told["events"]))


def test_a_worker_that_says_nothing_delays_no_other_one(worker, monkeypatch):
    monkeypatch.setattr(worker_status, "PATIENCE", 600.0)
    silent = socket.create_server(("127.0.0.1", 0))
    runtime = SystemRuntime()
    urls = [f"http://127.0.0.1:{silent.getsockname()[1]}", worker.url]
    rounds = WorkerPoller(StatusClient(urls, runtime), 0.1, runtime)
    task = rounds.start()
    until(
        rounds.latest, lambda pages: [page.worker for page in pages] == ["w"], "the answer of the other one"
    )
    rounds.stop()
    # Connections that were never accepted are reset.
    silent.close()
    task.join()
