"""executableName before anything is started: what could not be started is refused, with the reason and what to do."""

import os
import shutil
import sys

import pytest
from click.testing import CliRunner
from multilang_kit import initialization

from pykcl.cli.main import main
from pykcl.compat.multilang.children import Children
from pykcl.compat.multilang.command import checked_command
from pykcl.compat.multilang.processor import ChildProcessor, refuse_policies
from pykcl.config import Config
from pykcl.errors import ConfigError, RestartShard


@pytest.fixture
def script(tmp_path):
    """script(content): the path of an executable file."""

    def write(content):
        path = tmp_path / "app"
        path.write_bytes(content)
        path.chmod(0o755)
        return str(path)

    return write


RETURN = r"the first line of .*/app ends with a carriage return, .* part of the name '{}\\r'\. Do: sed -i"
MISSING = r"the first line of .*/app names '{}', which is not there, or may not be run\. Do: install it"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"#!/bin/sh\r\necho\r\n", RETURN.format("/bin/sh")),
        (b"#!/bin/sh -e\r\necho\r\n", RETURN.format("-e")),
        (b"#!/usr/bin/env python3\r\n", RETURN.format("python3")),
        (b"#!/no/such/python\nprint()\n", MISSING.format("/no/such/python")),
        (b"#! /no/such/python\t-u\nprint()\n", MISSING.format("/no/such/python")),
        (b"#!/usr/bin/env no-such-python\n", MISSING.format("no-such-python")),
        (b"#!/usr/bin/env -S no-such-python -u\n", MISSING.format("no-such-python")),
        (b"#!\n", MISSING.format("no interpreter")),
        (b"#!/tmp\n", MISSING.format("/tmp")),
        (b"print(1)\n", r"is text without a first line such as #!.*Do: .*executableName = python3 /"),
        (b"", "is text without a first line"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "begins with a byte order mark"),
    ],
)
def test_a_script_that_the_operating_system_would_not_run_is_refused(script, content, says):
    with pytest.raises(ConfigError, match=f"^executableName: .*{says}"):
        checked_command([script(content), "x"])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the line is cut at blanks")
def test_on_linux_env_looks_for_a_program_that_has_the_blanks_in_its_name(script):
    with pytest.raises(ConfigError, match=MISSING.format("sh -e")):
        checked_command([script(b"#!/usr/bin/env sh -e\n")])


@pytest.mark.parametrize(
    "content",
    [
        b"#!/bin/sh\necho\r\n",
        b"#! /bin/sh -e",
        b"#!/usr/bin/env sh\n",
        b"#!/usr/bin/env -S sh -e\n",
        b"#!/usr/bin/env -i sh\n",
        b"#!/usr/bin/env -S A=1 no-one-knows\n",
        b"\x7fELF\x02\x01\x01\0\0\0",
        b"\xcf\xfa\xed\xfe\x07\0\0\x01",
        b"PK\x03\x04\x14\0",
    ],
)
def test_what_may_run_is_left_to_the_operating_system(script, content):
    path = script(content)
    assert checked_command([path, "x"]) == (path, "x")


def test_a_program_that_nobody_may_read_is_left_to_the_operating_system(script, monkeypatch):
    path = script(b"text")
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    assert checked_command([path]) == (path,)


def test_quotes_mean_nothing(tmp_path):
    for name in ('"python"', "'/opt/my"):
        with pytest.raises(ConfigError, match=r"begins with a quote: .* cut at blanks, as in Java"):
            checked_command([name, "app.py"])


def test_a_start_that_fails_for_want_of_the_interpreter_says_so(script, heard):
    path = script(b"#!/no/such/python\n")
    with (
        Children([path], events=heard) as children,
        pytest.raises(RestartShard, match="names '/no/such/python'"),
    ):
        ChildProcessor(children).initialize(initialization())


@pytest.mark.skipif(sys.platform != "linux", reason="of an ELF file")
def test_a_start_that_fails_for_want_of_the_loader_says_so(script, heard):
    """As a program made for another C library does, such as one of glibc in an image of musl."""
    with open(os.path.realpath(shutil.which("sleep")), "rb") as file:
        program = file.read()
    begin = program.index(b"/lib", program.index(b"\x7fELF"))
    path = script(program[:begin] + b"/nix" + program[begin + 4 :])
    with (
        Children([path], events=heard) as children,
        pytest.raises(RestartShard, match="loader that it is run by is missing"),
    ):
        ChildProcessor(children).initialize(initialization())


def test_a_file_without_the_right_to_be_executed_is_named_with_both_cures(tmp_path, monkeypatch):
    """It lies here, and "no program in PATH" sounds as if it did not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("#!/usr/bin/env python3\n")
    with pytest.raises(ConfigError) as caught:
        checked_command(["./app.py"])
    assert str(caught.value) == (
        "executableName: ./app.py is there, and may not be executed. Do: chmod +x ./app.py, or executableName = python3 "
        "./app.py."
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError) as caught:
        checked_command(["app.py"])
    path = tmp_path / "app.py"
    assert str(caught.value) == (
        f"executableName: {path} is there, and may not be executed. Do: chmod +x {path}, or executableName = python3 {path}."
    )


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_file_of_this_folder_that_is_not_in_the_path_is_named_with_both_cures(tmp_path, monkeypatch, mode):
    monkeypatch.chdir(tmp_path)
    for name in ("plain_app.py", "plain_app"):
        (tmp_path / name).write_text("#!/usr/bin/env python3\n")
        (tmp_path / name).chmod(mode)
    with pytest.raises(ConfigError) as caught:
        checked_command(["plain_app.py"])
    first = "chmod +x plain_app.py and " if mode == 0o644 else ""
    assert str(caught.value) == (
        "executableName: there is no program 'plain_app.py' in PATH, and the file of that name in this folder is found as "
        f"./plain_app.py only. Do: {first}executableName = ./plain_app.py, or executableName = python3 plain_app.py."
    )
    with pytest.raises(ConfigError, match=r"executableName = \./plain_app\.$"):
        checked_command(["plain_app"])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_attempts": 3, "dead_letters": "discard"}, "max_attempts=3"),
        ({"bisect": True}, "bisect=True"),
        ({"dead_letters": "discard"}, "dead_letters='discard'"),
    ],
)
def test_a_program_of_its_own_takes_no_option_that_gives_up_records(options, word):
    with pytest.raises(ConfigError, match=word):
        refuse_policies(Config(application="orders-app", stream="orders", **options))
    refuse_policies(Config(application="orders-app", stream="orders", batch_size=10))


def test_the_daemon_refuses_them_before_it_starts_a_program(tmp_path, monkeypatch):
    monkeypatch.setattr("pykcl.cli.multilangd.log_to_stderr", lambda *_, **__: None)
    properties = tmp_path / "app.properties"
    properties.write_text(
        "executableName = /bin/false\napplicationName = orders-app\nstreamName = orders\nregionName = us-east-1\n"
    )
    options = ["--option", "max_attempts=3", "--option", "dead_letters=discard"]
    done = CliRunner().invoke(main, ["multilangd", "-p", str(properties), *options])
    assert done.exit_code == 78
    assert "max_attempts=3 has no meaning for a program of its own" in done.output


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["~/app"], "no home folder"),
        (["${HOME}/app"], "no variable"),
        (["python3\tapp.py"], "the tab in it divides no words"),
    ],
)
def test_a_program_that_only_a_shell_would_find_is_refused_with_that_reason(command, why):
    with pytest.raises(ConfigError, match=rf"^executableName: there is no program .*{why}.*\. Do: write "):
        checked_command(command)
