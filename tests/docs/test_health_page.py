"""docs/operate/monitoring.md: its table of codes is the one that the tests bring about, and its probes ask what is answered."""

import json
import os
import subprocess
import sys
import time

import pytest
import yaml
from doc_pages import ROOT, all_blocks, table_under

from pykcl import event_dispatch
from pykcl.cli.settings import SERVICE_OPTIONS
from pykcl.config import HTTP_TOKEN, LEASE_STORE, OF_COMMANDS
from pykcl.health import http, pages
from pykcl.health.probes import Verdict, WorkerHealth
from pykcl.health.service import HealthFile
from pykcl.worker import lease_manager, lease_renewer

sys.path.insert(0, str(ROOT / "tests" / "health"))
from health_kit import CODES

PAGE = "docs/operate/monitoring.md"
TEXT = (ROOT / PAGE).read_text("utf-8")
WORDS = " ".join(TEXT.split())
BLOCKS = [block for block in all_blocks() if block.page == PAGE]


def only(language, holding):
    (block,) = [block for block in BLOCKS if block.language == language and holding in block.text]
    return yaml.safe_load(block.text)


def test_the_codes_of_the_page_are_those_the_tests_bring_about():
    rows = table_under(PAGE, "the worker")
    assert {row[0]: (int(row[1]), int(row[2])) for row in rows} == CODES
    source = (ROOT / "tests" / "health" / "test_worker_health.py").read_text("utf-8")
    assert [situation for situation in CODES if f'"{situation}"' not in source] == []


def test_the_probes_ask_for_pages_there_are():
    (container,) = only("yaml", "livenessProbe")["containers"]
    served = pages.Pages(WorkerHealth(lambda: None), None)._pages
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert {"/livez", "/readyz", "/metrics", "/status"} == set(served)
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["failureThreshold"] >= 2
        assert container[probe]["timeoutSeconds"] >= http.CONNECTION_SECONDS
    assert container["env"][0]["name"] in OF_COMMANDS


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_command_of_the_container_sees_a_file_that_is_there_old_or_gone(tmp_path, shell):
    check = only("json", "healthCheck")["healthCheck"]["command"]
    assert check[0] == "CMD-SHELL"
    path = tmp_path / "pykcl.health"
    command = check[1].replace("/tmp/pykcl.health", str(path))
    assert str(path) in command

    def code():
        return subprocess.run(
            [shell, "-c", command], capture_output=True, check=False, timeout=300
        ).returncode

    assert code() != 0
    HealthFile(path).renew(Verdict(), Verdict(), "running")
    assert code() == 0
    told = json.loads(path.read_bytes())
    listed = TEXT.partition("Its content is one JSON object: ")[2].partition(".\n")[0]
    assert [name.strip("` ") for name in listed.split(",")] == list(told)
    old = time.time() - 31
    os.utime(path, (old, old))
    assert code() != 0


def test_the_options_and_variables_of_the_page_are_those_of_the_command():
    rows = table_under(PAGE, "Option")
    named = [row[0].split()[0].strip("`") for row in rows]

    def command(): ...

    for option in SERVICE_OPTIONS:
        option(command)
    made = {option.opts[0]: option.envvar for option in command.__click_params__}
    assert sorted(named) == sorted(made)
    for row in rows:
        variable = made[row[0].split()[0].strip("`")]
        assert variable is None or f"`{variable}`" in row[2]
    beside = {HTTP_TOKEN, LEASE_STORE}
    assert set(OF_COMMANDS) == {variable for variable in made.values() if variable} | beside


def test_the_numbers_of_the_page_are_those_of_the_code():
    assert (
        f"at most {http.MAX_CONNECTIONS} connections, gives each of them {http.CONNECTION_SECONDS:g} s"
        in WORDS
    )
    assert http.MAX_HEAD_BYTES == 8 * 1024
    assert "reads 8 KiB" in WORDS
    assert pages.FRESH_SECONDS == 1 / 4
    assert f"If {event_dispatch.MOST_WAITING:,} wait for it" in WORDS
    assert f"{lease_manager._LONGEST_REQUEST:g} s for the manager" in WORDS
    assert f"{lease_renewer._ONE_HEARTBEAT:g} s for a heartbeat" in WORDS
