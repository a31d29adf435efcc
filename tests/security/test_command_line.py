"""Any text for any option: a documented exit code and a line that says what is wrong, never a traceback."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner
from hostile_json import ABSURD, Long
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykcl.cli.main import main
from pykcl.config import Config
from pykcl.errors import ConfigError

CORPUS = Path(__file__).parent / "corpus" / "command_lines.json"
NAMES = [field.name for field in fields(Config)]
NUMBERS = [
    "0",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "1e-308",
    "1_0",
    "٣",
    "0x10",
    Long("9" * 5000),
    "1e400",
    " 7 ",
]
TIMES = [
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01",
    "2026-W01-1",
    "1969-12-31T23:59:59Z",
]
PLACES = [":", "::", "a:", ":A", ".a:B", "..:A", "a..b:C", "os:.", "os:path.", "os:nothing", "os:sep", "json:load", "\udcff:A", "os:\udcff", "a b:C", "-:-", "pykcl.examples.orders:Orders"]  # fmt: skip
text = st.one_of(
    st.sampled_from([*NUMBERS, *TIMES, *PLACES, "", "-", "--", "\n", "\x1b[2J", "\udcff", Long("x" * 5000)]),
    st.text(max_size=30).map(lambda words: words.replace("\0", "")),  # an argument cannot hold a NUL
)
option = st.builds(
    lambda name, value, equals: f"{name}{equals}{value}",
    st.sampled_from([*NAMES, "failover-time", "nothing", ""]) | text,
    text,
    st.sampled_from(["=", "=", "=", "", "=="]),
)
hostile = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def _nothing_starts(monkeypatch):
    """A worker does not run, a local AWS neither listens nor waits: what is tried here is what comes before."""
    from pykcl.local.server import LocalAws
    from pykcl.runtime import SignalEvent
    from pykcl.worker.worker import Worker

    monkeypatch.setattr(Worker, "run", lambda self: None)
    monkeypatch.setattr(LocalAws, "start", lambda self: self)
    monkeypatch.setattr(LocalAws, "url", "http://127.0.0.1:1")
    monkeypatch.setattr(SignalEvent, "wait", lambda self, timeout=None: True)
    for name in os.environ:
        if name.startswith("PYKCL_"):
            monkeypatch.delenv(name)
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = before


def call(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(main, list(arguments), env=environment)
    told = f"{arguments!r} -> {result.exit_code}: {result.output}"
    assert result.exception is None or isinstance(result.exception, SystemExit), told
    assert result.exit_code in ((0, 2, 78) if arguments[0] == "run" else (0, 1, 2)), told
    assert "Traceback" not in result.output, told
    assert "\x1b" not in result.output, told
    assert result.exit_code == 0 or result.output.strip(), told
    return result.output


RUN = ("run", "pykcl.examples.orders:Orders", "--app", "orders-app", "--stream", "orders")


@hostile
@given(options=st.lists(option, min_size=1, max_size=3))
def test_any_option_of_a_worker(options):
    call(*RUN, *(part for one in options for part in ("--option", one)))


@hostile
@given(target=text, application=text, stream=text, start=text, worker_id=text)
def test_any_name_of_anything(target, application, stream, start, worker_id):
    call("run", target, "--app", application, "--stream", stream, "--start", start, "--worker-id", worker_id)


@hostile
@given(name=st.sampled_from([*NAMES, "nothing"]), value=text)
def test_any_environment(name, value):
    call(*RUN, **{f"PYKCL_{name.upper()}": value})


@hostile
@given(
    port=st.integers(-(10**6), 10**6).map(str) | text,
    stream=text | st.builds("{}:{}".format, st.just("orders") | text, text),
    arguments=st.lists(text, max_size=2),
)
def test_any_local_aws(port, stream, arguments):
    call("local", "--port", port, "--stream", stream, *arguments)


@hostile
@given(arguments=st.lists(text | st.sampled_from(["--seed", "--fast", "--port"]), max_size=4))
def test_any_words(arguments):
    call("demo", *arguments, "--seed", "x")
    call("nothing", *arguments)


@pytest.mark.parametrize(
    "arguments", json.loads(CORPUS.read_text("utf-8")), ids=lambda words: " ".join(words)[:60]
)
def test_what_once_broke_it_does_not_any_more(arguments):
    assert call(*arguments)


def assert_told(refusal: ConfigError) -> None:
    assert len(str(refusal)) > 10
    assert str(refusal).isprintable()


class Odd:
    """Not what anybody meant."""


ODD = [
    *ABSURD,
    10**5000,
    -(10**400),
    float("nan"),
    float("inf"),
    b"x",
    Odd(),
    Odd,
    [1],
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23))),
]
"""10**5000 cannot even be shown."""


@pytest.mark.parametrize(
    "name",
    sorted(set(NAMES) - {"create_table", "worker_id", "stream", "application", "table_name", "region"}),
)
def test_any_value_of_a_field_is_taken_or_refused(name):
    for value in ODD:
        try:
            found = Config(**{"application": "orders-app", "stream": "orders", name: value})
        except ConfigError as refusal:
            assert_told(refusal)
            continue
        assert 0 < found.belief_time < 1e9
        assert found.start_position.kind


@hostile
@given(name=st.sampled_from(NAMES), value=st.text(max_size=300))
def test_any_text_of_a_field_is_taken_or_refused(name, value):
    try:
        Config(**{"application": "orders-app", "stream": "orders", name: value})
    except ConfigError as refusal:
        assert_told(refusal)
