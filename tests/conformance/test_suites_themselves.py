"""The suites' own machinery: what is missing is said, what differs otherwise than listed fails, Node is kept in hand."""

import os
import re
import shutil
import socket
import stat
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import npm_emulators
import pytest
from conformance_report import CASE, DIFFERS, differences_of, refuse_unlisted, table_of, tally
from known_differences import BACKENDS, KNOWN, OURS, PAGE, SUITES, Difference, with_table
from npm_emulators import Emulator, Unavailable, installed

NEEDS_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="node not found")


# -- installing ------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """programs("npm", "exit 1"): the only programs there are, as shell scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)

    return make


def test_without_node_or_npm_there_is_no_emulator_and_the_reason_is_said(programs, tmp_path):
    with pytest.raises(Unavailable, match="node not found"):
        installed(tmp_path / "cache")
    programs("node", "exit 0")
    with pytest.raises(Unavailable, match="npm not found"):
        installed(tmp_path / "cache")


def test_without_a_registry_the_reason_is_said_and_nothing_is_left_behind(programs, tmp_path):
    programs("node", "exit 0")
    programs("npm", "echo 'npm error code ENOTFOUND' >&2; exit 1")
    for _ in range(2):
        with pytest.raises(Unavailable, match="ENOTFOUND"):
            installed(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_is_installed_is_installed_once(programs, tmp_path):
    programs("node", "exit 0")
    programs("npm", '[ "$1" = ci ] && /bin/mkdir node_modules && echo once >> ../../count')
    first, second = installed(tmp_path / "cache"), installed(tmp_path / "cache")
    assert first == second
    assert first.is_dir()
    assert (tmp_path / "count").read_text() == "once\n"
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [first.parent.name]


def test_the_cache_is_ignored_by_git_and_every_package_is_pinned_without_saying_whence():
    root = PAGE.parents[2]
    assert (
        npm_emulators.CACHE.relative_to(root).parts[0] + "/" in (root / ".gitignore").read_text().splitlines()
    )
    lock = (npm_emulators.HERE / "package-lock.json").read_text("utf-8")
    assert lock.count('"integrity"') == lock.count('"node_modules/')
    assert "http" not in lock


# -- Node ------------------------------------------------------------------------------------------------------

SERVER = """
const server = require('net').createServer((socket) => socket.end(`${Date.now()} ${new Date().getTime()}`))
server.listen(%s)
"""


def started(tmp_path, script, settings=None):
    (tmp_path / "server.js").write_text(script)
    return Emulator([str(tmp_path / "server.js")], 4000, settings or {}).start()


def told_by(emulator):
    port = int(emulator.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        return [int(word) for word in connection.makefile().read().split()]


def addresses_of(pid):
    """The addresses on which a process listens, as Linux shows them."""
    inodes = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd") if entry.is_symlink()}
    texts = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for text in texts for line in text.splitlines()[1:]]
    return [
        line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes
    ]


@NEEDS_NODE
@pytest.mark.skipif(not os.path.exists("/proc/self/net/tcp"), reason="looks into Linux' /proc")
@pytest.mark.parametrize("address", ["4000, '0.0.0.0'", "4000", "{ port: 4000, host: '::' }"])
def test_a_server_listens_on_127_0_0_1_whatever_it_was_told(tmp_path, address):
    with started(tmp_path, SERVER % address) as emulator:
        assert len(told_by(emulator)) == 2
        assert addresses_of(emulator.pid) == ["0100007F"]


@NEEDS_NODE
def test_its_clock_can_be_put_forward(tmp_path):
    with started(tmp_path, SERVER % "4000") as emulator:
        before = told_by(emulator)
        emulator.advance(3600)
        emulator.advance(60)
        after = told_by(emulator)
    assert all(3_660_000 <= late - early < 3_700_000 for early, late in zip(before, after, strict=True))


@NEEDS_NODE
def test_it_ends_with_the_tests_even_with_a_connection_open(tmp_path):
    with started(tmp_path, (SERVER % "4000").replace("socket.end", "socket.write")) as emulator:
        connection = socket.create_connection(("127.0.0.1", int(emulator.url.rpartition(":")[2])), 5)
        pid = emulator.pid
    connection.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@NEEDS_NODE
def test_one_that_never_listens_is_unavailable_and_its_last_words_are_told(tmp_path):
    with pytest.raises(Unavailable, match="out of cheese"):
        started(tmp_path, "console.log('out of cheese'); process.exit(3)")


@NEEDS_NODE
def test_it_sees_nothing_of_our_credentials(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "CANARY")
    script = "console.log(Object.values(process.env).includes('CANARY') ? 'seen' : 'unseen'); process.exit(3)"
    with pytest.raises(Unavailable, match="unseen"):
        started(tmp_path, script)


# -- the report ------------------------------------------------------------------------------------------------


def report(case, outcome="passed", reason=None):
    longrepr = ("file", 1, f"Skipped: {reason}") if reason else None
    return SimpleNamespace(user_properties=[(CASE, case)], outcome=outcome, longrepr=longrepr)


def lines_of(stats):
    return [line for line, _ in table_of(*tally(stats))][1:]


def test_the_table_counts_what_is_as_aws_what_is_known_and_what_is_not():
    cases = [("lease tables", "dynalite", f"case {number}") for number in range(4)]
    stats = {
        "passed": [report(one) for one in cases[:2]],
        DIFFERS: [report(cases[2])],
        "failed": [report(cases[3])],
    }
    (line,) = lines_of(stats)
    assert re.sub(r" {2,}", "|", line) == "lease tables|dynalite|3 of 4|2|1|1"


def test_a_case_that_failed_at_its_end_is_not_counted_as_passed():
    case = ("streams", "wire", "one")
    (line,) = lines_of({"passed": [report(case)], "error": [report(case)]})
    assert re.sub(r" {2,}", "|", line) == "streams|local Kinesis|0 of 1|0|0|1"


def test_a_backend_that_could_not_be_had_is_said_with_the_reason():
    stats = {
        "skipped": [
            report(("streams", "kinesis_local", "one"), reason="kinesis-local SKIPPED: node not found")
        ]
    }
    (line,) = lines_of(stats)
    assert line == "conformance: kinesis-local SKIPPED: node not found (1 of 1 cases not run)"


def test_a_run_without_cases_has_no_table():
    assert tally({"passed": [SimpleNamespace(user_properties=[])]}) == ({}, {})


def test_differences_are_listed_one_by_one_and_their_absence_is_said():
    lines = list(differences_of([("streams", "wire"), ("lease tables", "dynalite")]))
    assert lines[0] == "\nlocal Kinesis (streams): no known difference from AWS"
    assert sum(line.startswith("  - ") for line in lines) == sum(
        len(one.cases) for one in KNOWN if one.backend == "dynalite"
    )


def test_a_failure_that_is_not_the_listed_one_fails():
    difference = Difference("dynalite", ("x",), "differs", "because", seen="DID NOT RAISE")
    same = SimpleNamespace(outcome="skipped", wasxfail="", longrepr=None)
    refuse_unlisted(same, difference, AssertionError("DID NOT RAISE ClientError"))
    assert same.outcome == "skipped"
    other = SimpleNamespace(outcome="skipped", wasxfail="", longrepr=None)
    refuse_unlisted(other, difference, ConnectionError("refused"))
    assert (other.outcome, hasattr(other, "wasxfail")) == ("failed", False)
    assert "not as listed" in other.longrepr


# -- the list --------------------------------------------------------------------------------------------------


def test_our_own_parts_have_no_known_difference():
    assert {one.backend for one in KNOWN} <= set(BACKENDS) - set(OURS)
    assert {backend for backends in SUITES.values() for backend in backends} == set(BACKENDS)


def test_no_case_is_listed_twice_for_a_backend_and_every_line_says_something():
    listed = Counter((one.backend, case) for one in KNOWN for case in one.cases)
    assert set(listed.values()) == {1}
    for one in KNOWN:
        assert one.differs
        assert one.because
        assert not re.search(one.seen, "")


def test_the_page_has_the_list():
    page = PAGE.read_text("utf-8")
    assert with_table(page) == page, "run tests/conformance/known_differences.py"
    assert page.count("\n| kinesis-local |") == sum(one.backend == "kinesis_local" for one in KNOWN)
