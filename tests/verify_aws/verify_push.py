"""The step of enhanced fan-out: a consumer of its own, subscriptions over each transport, and what an idle one says."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from verify_run import FIRST, HORIZON, Run

from pykcl.aws.push import subscription
from pykcl.aws.push.stream import FanOutStream
from pykcl.errors import SetupError
from pykcl.interfaces import Fetched
from pykcl.runtime import SystemRuntime

RECORDS, LARGE = 8, 900_000
IDLE_SECONDS = 60.0
BETWEEN_CALLS = 5.5
"""Seconds. A subscription may be taken over after five."""
WAYS = (("h2", "json"), ("h2", "cbor"), ("http1", "json"))


def fanout(run: Run) -> None:
    account, found = run.account, run.findings
    name = account.stream("fanout")
    wanted = [b"%d" % number + b"x" * LARGE for number in range(RECORDS)]
    for data in wanted:
        run.put(name, data)
        account.sleep(1.0 if account.is_aws else 0.0)
    numbers = []
    for transport, encoding in WAYS:
        how = f"{'HTTP/2' if transport == 'h2' else 'HTTP/1.1'}, {encoding.upper()}"
        events, as_cbor, failure = _pushed(run, name, transport, encoding, idle=not numbers)
        records = [record for event in events for record in event.records]
        is_whole = [record.data for record in records] == wanted
        found.check(f"every record is pushed once and in order over {how}", is_whole, failure or len(records))
        numbers.append([record.sequence_number for record in records])
        if transport == "http1":
            found.answer(
                "Q35", failure or f"{'Yes' if is_whole else 'NO'}: {len(records)} of {RECORDS} records."
            )
        if encoding == "cbor":
            found.answer("Q40", f"{as_cbor} of {len(events)} events did.")
        else:
            largest = max((event.body_bytes for event in events), default=0)
            found.answer(
                "Q39", f"Over {how}: {largest} bytes, of {RECORDS} records of {LARGE} bytes put before."
            )
        account.sleep(BETWEEN_CALLS)
    found.check("each way pushes the same records", len(set(map(tuple, numbers))) == 1)


def _pushed(
    run: Run, name: str, transport: Any, encoding: Any, *, idle: bool
) -> tuple[list[Fetched], int, str]:
    """Subscribe; return the events up to the last record, how many were CBOR, and why there are none. idle: stay on."""
    try:
        stream = FanOutStream(
            run.account.once, name, SystemRuntime(), consumer="verify", push_transport=transport,
            record_encoding=encoding,
        )  # fmt: skip
        stream.prepare_consumer()
        with _counted() as as_cbor:
            ready = threading.Event()
            opened = stream.subscribe(FIRST, HORIZON, ready.set)
            try:
                events = _events(opened, ready)
                if idle:
                    _measure_silence(run, opened, ready)
            finally:
                opened.close()
    except SetupError as error:
        return [], 0, f"refused: {type(error).__name__}"
    return events, len(as_cbor), ""


def _next(opened: Any, ready: threading.Event, until: float) -> Fetched | None:
    """Return the next event; None: none came until then, monotonic seconds."""
    while True:
        ready.clear()
        event: Fetched | None = opened.poll()
        left = until - time.monotonic()
        if event is not None or left <= 0:
            return event
        ready.wait(left)


def _events(opened: Any, ready: threading.Event) -> list[Fetched]:
    """Return the events up to the last record, or those of a minute."""
    events: list[Fetched] = []
    until = time.monotonic() + 60.0
    while sum(len(event.records) for event in events) < RECORDS:
        event = _next(opened, ready, until)
        if event is None:
            break
        events.append(event)
    return events


def _measure_silence(run: Run, opened: Any, ready: threading.Event) -> None:
    times: list[float] = []
    until = time.monotonic() + (IDLE_SECONDS if run.account.is_aws else 0.2)
    while _next(opened, ready, until) is not None:
        times.append(time.monotonic())
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    seen = f"{min(gaps):.1f} to {max(gaps):.1f} s apart" if gaps else "fewer than two"
    run.findings.answer("Q37", f"{len(times)} events in {IDLE_SECONDS:g} s in which nothing was put, {seen}.")


@contextmanager
def _counted() -> Any:
    """A list that grows by one with each event that is read as CBOR."""
    seen: list[None] = []
    read = subscription.page_of_cbor

    def noted(*args: Any, **how: Any) -> Any:
        seen.append(None)
        return read(*args, **how)

    with patch.object(subscription, "page_of_cbor", noted):
        yield seen
