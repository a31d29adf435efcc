"""Where an operator meets a mistake: the log as text and as JSON, and standard error of the real command."""

import json
import logging
import subprocess
import sys
from pathlib import Path

from pykcl.error_catalog import DOCS
from pykcl.event_dispatch import EVENT_OF_RECORD, EventFan, line_of
from pykcl.events import FailureStarted, LeaseDeleted, StartingAtLatest
from pykcl.logs import JsonFormatter

ROOT = Path(__file__).parents[2]
EVENT = StartingAtLatest(shards=2, server_time_millis=1)


def as_json(event):
    record = logging.LogRecord("pykcl", 30, "", 0, "x", (), None)
    setattr(record, EVENT_OF_RECORD, event)
    return json.loads(JsonFormatter().format(record))


def test_an_event_about_a_mistake_has_code_hint_and_docs_behind_its_fields():
    assert f" server_time_millis=1 code=E16 hint={EVENT.hint!r} docs='{DOCS}#e16'" in line_of(EVENT)
    told = as_json(EVENT)
    assert (told["code"], told["hint"], told["docs"]) == ("E16", EVENT.hint, f"{DOCS}#e16")
    assert told["shards"] == 2


def test_trouble_has_those_of_the_error_behind_it_and_else_none():
    told = as_json(FailureStarted(what="reading", cause="c", code="E19", hint="wait"))
    assert (told["code"], told["hint"], told["docs"]) == ("E19", "wait", f"{DOCS}#e19")
    for event in (FailureStarted(what="reading", cause="c"), LeaseDeleted(shard="s", reason="r")):
        assert not {"code", "hint", "docs"} & as_json(event).keys()


def test_an_event_that_two_workers_emit_has_the_names_of_each_and_is_not_changed():
    heard = []
    for application in ("orders", "bills"):
        EventFan([heard.append], {"APPLICATION": application, "STREAM": "s"}).emit(EVENT)
    assert [
        f"--app {name} " in event.hint for name, event in zip(("orders", "bills"), heard, strict=True)
    ] == [True] * 2
    assert "--app APPLICATION " in EVENT.hint
    assert heard == [EVENT, EVENT]


def test_the_shard_of_a_hint_cannot_forge_a_line():
    forged = "s\n2026-01-01 ERROR lease lost\x1b[2J"
    assert line_of(FailureStarted(what="x", cause="c", shard=forged, code="E12", hint=forged)).isprintable()


def test_the_real_command_prints_both_lines_and_its_exit_code(local_aws, dynamodb):
    dynamodb.create_table(
        TableName="orders-app",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    words = ["run", "pykcl.examples.orders:Orders", "--app", "orders-app", "--stream", "orders"]
    done = subprocess.run(
        [sys.executable, "-m", "pykcl.cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 78
    happened, to_do = done.stderr.splitlines()
    assert happened.startswith("pykcl: Table 'orders-app' is not a lease table")
    assert to_do == (
        "pykcl: E05. Do: name another application, or another table: --option table_name=orders-app-leases (tableName). "
        f"{DOCS}#e05"
    )
