"""The `pykcl` command: help, exit codes, and what bad input is answered with."""

import os
import re
import signal
import socket
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from pykcl.aws.credentials import CredentialsSource
from pykcl.cli.errors import BY_SIGNAL, ExitCode
from pykcl.cli.main import SECTIONS, VERBS, main
from pykcl.cli.options import COMMON, first_sentence
from pykcl.cli.settings import from_arguments
from pykcl.config import from_environment
from pykcl.errors import ConfigError
from pykcl.runtime import SignalEvent
from pykcl.worker.signals import stop_signals_go_to

CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PYKCL_"))}
NOWHERE = {
    **CLEAN,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def _pykcl(*arguments, environment=None):
    return subprocess.run(
        [sys.executable, "-m", "pykcl.cli", *arguments],
        env=environment or NOWHERE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


ORDERS = ("run", "pykcl.examples.orders:Orders", "--app", "orders-app", "--stream", "orders")


def commands():
    """Every command with its own options, by the words that call it."""
    for verb in VERBS:
        command = main.get_command(None, verb)
        yield from ([(f"{verb} {name}", one) for name, one in command.commands.items()]
                    if isinstance(command, click.Group) else [(verb, command)])  # fmt: skip


COMMANDS = dict(commands())
WORDS = [*VERBS, *(words for words in COMMANDS if " " in words)]


def test_help_lists_every_verb_in_its_section_and_every_exit_code():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for section, verbs in SECTIONS.items():
        listed = result.output.partition(f"\n{section}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split(maxsplit=1) for line in listed] == [[verb, text] for verb, text in verbs.items()]
    codes = result.output.partition("\nExit codes:\n")[2]
    assert re.findall(r"^  (\S+) ", codes, re.MULTILINE) == [*map(str, ExitCode), BY_SIGNAL]


@pytest.mark.parametrize("verb", VERBS)
def test_the_line_of_a_verb_is_the_first_sentence_of_its_own_help(verb):
    (text,) = [verbs[verb] for verbs in SECTIONS.values() if verb in verbs]
    assert first_sentence(main.get_command(None, verb)) == text


@pytest.mark.parametrize("words", WORDS)
def test_every_help_begins_with_a_whole_sentence_and_ends_with_the_common_options(words):
    result = CliRunner().invoke(main, [*words.split(), "--help"])
    assert result.exit_code == 0
    _, _, text = result.output.partition("\n\n")
    assert re.match(r"  [A-Z][^.]+\.\n", text)
    sections = re.findall(r"^(\S.+):$", text, re.MULTILINE)
    assert "Common options" not in sections[:-1]


def test_no_help_needs_a_library_of_aws():
    code = (
        "import sys\nfrom pykcl.cli.main import main\n"
        f"for words in {WORDS!r}:\n"
        "    try: main([*words.split(), '--help'])\n    except SystemExit: pass\n"
        "late = ('boto3', 'botocore', 'moto', 'google.protobuf', 'pykcl.aws.lease_table')\n"
        "print([name for name in late if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == "[]\n"


def texts_of(words, section=None):
    """Flag: help text, of the options of a command, or of those in one section of its help."""
    options = [one for one in COMMANDS[words].params if isinstance(one, click.Option)]
    return {
        flag: option.help
        for option in options
        if section is None or getattr(option, "section", None) == section
        for flag in option.opts
    }


@pytest.mark.parametrize("words", sorted(set(COMMANDS) - {"local"}))  # its --stream creates one
def test_a_common_option_means_the_same_on_every_command(words):
    own, common = texts_of(words), texts_of("leases list", COMMON)
    del common["-o"], common["--output"]  # some print other things than rows
    assert {flag: own[flag] for flag in common if flag in own}.items() <= common.items()
    if "--application" in own:
        assert common.keys() <= own.keys()


@pytest.mark.parametrize("module", ["pykcl", "pykcl.cli"])
def test_the_package_itself_is_the_command(module):
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: pykcl ")


def test_no_region_says_where_it_looked_and_exits_78():
    result = _pykcl(*ORDERS)
    assert result.returncode == 78
    assert "No AWS region" in result.stderr
    assert "AWS_REGION" in result.stderr
    assert "Traceback" not in result.stderr


def test_no_credentials_says_where_it_looked_and_exits_78():
    result = _pykcl(*ORDERS, environment={**NOWHERE, "AWS_REGION": "eu-west-1"})
    assert result.returncode == 78
    assert "No AWS credentials" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run"], 2, "Missing argument"),
        ([*ORDERS[:1], "pykcl.examples.orders", *ORDERS[2:]], 2, "is not MODULE:CLASS"),
        (["run", "shop.Orders", *ORDERS[2:]], 2, "Do: pykcl run shop:Orders"),
        (["run", "./shop/orders.py", *ORDERS[2:]], 2, "Do: pykcl run shop.orders:CLASS"),
        (
            ["run", "/srv/shop/orders.py:Orders", *ORDERS[2:]],
            2,
            "Do: run it in /srv/shop as pykcl run orders:Orders",
        ),
        (["run", "nowhere.at_all:Orders", "--app", "a-b", "--stream", "s"], 2, "no module"),
        (["run", "pykcl.examples.orders:Nothing", "--app", "a-b", "--stream", "s"], 2, "has no 'Nothing'"),
        (
            ["run", "pykcl.examples.orders:Nothing", *ORDERS[2:]],
            2,
            "The record processors defined there: Orders.",
        ),
        (["run", "pykcl.examples.orders:Ordrs", *ORDERS[2:]], 2, "Did you mean Orders?"),
        (["run", "pykcl.errors:Orders", *ORDERS[2:]], 2, "The functions defined there: printable, "),
        (["run", "pykcl.examples.orders:Orders", "--stream", "s"], 2, "--app"),
        (["run", "pykcl.examples.orders:Orders", "--app", "a-b"], 2, "--stream"),
        ([*ORDERS, "--start", "LATES"], 78, "Did you mean 'LATEST'"),
        ([*ORDERS, "--start", "2026-11-20T09:00:00"], 78, "no time zone"),
        ([*ORDERS, "--option", "failover=3"], 78, "Did you mean 'failover_time'"),
        ([*ORDERS, "--option", "failover_time"], 78, "NAME=VALUE"),
        (
            [*ORDERS, "--option", "failover_time=soon"],
            78,
            "--option failover_time takes a number of seconds (default: 10.0), not 'soon'.",
        ),
        ([*ORDERS, "--option", "max_leases=1e3"], 78, "takes a whole number (default: 1000), not '1e3'."),
        ([*ORDERS, "--option", "create_table=si"], 78, "takes true or false (default: True), not 'si'."),
        (
            [*ORDERS, "--option", "timeout=3"],
            78,
            "Did you mean 'retry_timeout' or 'graceful_handoff_timeout'",
        ),
        ([*ORDERS, "--option", "failover_time=0.1"], 78, "Write 1 to"),
        ([*ORDERS, "--option", "max_records=20000"], 78, "10000"),
        ([*ORDERS, "--option", "on_error=retyr"], 78, "Did you mean 'retry'"),
        (["local", "--stream", "orders:none"], 2, "NAME:SHARDS"),
        (["frobnicate"], 2, "No such command 'frobnicate'."),
        (["rn"], 2, "No such command 'rn'. Did you mean 'run'?"),
        (["run", "counter.py:Orders", "--app", "a-b", "--stream", "s"], 2, "Do: pykcl run counter:Orders"),
        (
            ["run", "apps/counter.py:Orders", "--app", "a-b", "--stream", "s"],
            2,
            "Do: pykcl run apps.counter:Orders",
        ),
    ],
)
def test_bad_input_is_answered_with_what_why_and_what_to_do(arguments, code, told):
    result = _pykcl(*arguments)
    assert result.returncode == code, result.stderr
    assert told in result.stderr
    assert "Traceback" not in result.stderr


IMPORTS = {
    "import nothing_here\n": "ModuleNotFoundError: No module named 'nothing_here'",
    "from os import nothing\n": "ImportError: cannot import name 'nothing' from 'os'",
    "def oops(:\n": "SyntaxError",
    "ROOT = {}['key']\n": "KeyError: 'key'",
}


@pytest.mark.parametrize("wrong", IMPORTS, ids=IMPORTS.values())
def test_a_module_that_cannot_be_imported_is_named_with_its_own_frames_only(tmp_path, monkeypatch, wrong):
    (tmp_path / "inner.py").write_text(wrong)
    (tmp_path / "orders.py").write_text("import inner\n")
    monkeypatch.chdir(tmp_path)
    result = _pykcl("run", "orders:Orders", "--app", "orders-app", "--stream", "orders")
    assert result.returncode == 70
    frames = re.findall(r'File "(.+?)", line 1(?:, in <module>)?$', result.stderr, re.MULTILINE)
    assert frames == [str(tmp_path / "orders.py"), str(tmp_path / "inner.py")]
    assert result.stderr.count("File ") == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("pykcl: orders cannot be imported: ")
    assert IMPORTS[wrong] in last


def test_a_module_whose_own_configuration_is_wrong_is_answered_as_any_wrong_configuration(
    tmp_path, monkeypatch
):
    (tmp_path / "orders.py").write_text("import pykcl\npykcl.Config(application='a', stream='orders')\n")
    monkeypatch.chdir(tmp_path)
    result = _pykcl("run", "orders:Orders", "--app", "orders-app", "--stream", "orders")
    assert result.returncode == 78
    assert result.stderr.startswith("pykcl: application='a' cannot name a lease table")


def test_a_module_whose_package_is_missing_is_not_taken_for_one_that_is_broken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = _pykcl("run", "shop.orders:Orders", "--app", "orders-app", "--stream", "orders")
    assert result.returncode == 2
    assert "There is no module 'shop.orders' here" in result.stderr
    assert "Do: run it in the folder of shop, or install shop." in result.stderr


def test_an_instance_instead_of_a_class_is_refused_with_what_to_write(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from pykcl import RecordProcessor\n"
        "class Mine(RecordProcessor):\n"
        "    def process_records(self, batch): pass\n"
        "mine = Mine()\n"
    )
    monkeypatch.chdir(tmp_path)
    result = _pykcl("run", "mine:mine", "--app", "orders-app", "--stream", "orders")
    assert result.returncode == 78
    assert "Do: processor=Mine" in result.stderr


def test_options_come_from_the_environment_typed():
    found = from_environment(
        {"PYKCL_FAILOVER_TIME": "3.5", "PYKCL_MAX_LEASES": "7", "PYKCL_CREATE_TABLE": "no", "HOME": "/"}
    )
    assert found == {"failover_time": 3.5, "max_leases": 7, "create_table": False}


def test_an_unknown_environment_option_is_refused_by_its_whole_name():
    with pytest.raises(
        ConfigError, match=r"PYKCL_FAILOVER names no option\. Did you mean PYKCL_FAILOVER_TIME\?"
    ):
        from_environment({"PYKCL_FAILOVER": "3"})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PYKCL_HTTP_PORT", "Did you mean PYKCL_HTTP_TRANSPORT or PYKCL_HTTP_TOKEN or PYKCL_HTTP?"),
        ("PYKCL_LOG", "Did you mean "),
        ("PYKCL_XYZ", "All names: "),
    ],
)
def test_an_unknown_variable_is_answered_with_the_nearest_few_also_those_of_commands(name, nearest):
    with pytest.raises(ConfigError) as caught:
        from_environment({name: "99"})
    assert f"{name} names no option. {nearest}" in str(caught.value)
    assert str(caught.value).count("PYKCL_") <= 4
    assert len(str(caught.value)) < 200


def test_arguments_may_be_written_with_dashes():
    assert from_arguments(["failover-time=3"]) == {"failover_time": 3.0}


@pytest.mark.parametrize(("text", "value"), [("true", True), ("off", False)])
def test_switches_take_the_usual_words(text, value):
    assert from_arguments([f"create_table={text}"]) == {"create_table": value}
    with pytest.raises(ConfigError):
        from_arguments(["create_table=perhaps"])


def test_a_port_that_is_taken_is_named_with_a_way_out():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _pykcl("local", "--port", str(port))
    assert result.returncode == 1
    assert f"Port {port}" in result.stderr
    assert "--port 0" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_waits_for_signals_leaves_their_handlers_as_they_were(number):
    before = signal.getsignal(number)
    stop = SignalEvent()
    with stop_signals_go_to(lambda *_: stop.set()):
        os.kill(os.getpid(), number)
        stop.wait()
    assert signal.getsignal(number) is before


def run_by(monkeypatch, *arguments):
    """What `pykcl run` makes of its arguments: the settings it would work by."""
    made = []
    monkeypatch.setattr("pykcl.cli.run._run", lambda program, settings, *rest, **more: made.append(settings))
    result = CliRunner().invoke(
        main, ["run", "pykcl.examples.orders:Orders", *arguments], env=dict.fromkeys(os.environ)
    )
    assert result.exit_code == 0, result.output
    return made[0]


@pytest.mark.parametrize("application", ["-a", "--app", "--application"])
@pytest.mark.parametrize("start", ["--start", "--initial-position"])
def test_run_takes_the_flags_of_the_other_verbs(application, start, monkeypatch):
    settings = run_by(
        monkeypatch, application, "orders-app", "--stream", "orders", start, "TRIM_HORIZON",
        "--table", "orders-leases", "--region", "eu-west-1", "--failover", "20s",
    )  # fmt: skip
    config = settings.config
    assert (config.application, config.table, config.initial_position) == (
        "orders-app",
        "orders-leases",
        "TRIM_HORIZON",
    )
    assert (config.region, config.failover_time, settings.specs) == ("eu-west-1", 20.0, None)


@pytest.mark.parametrize("start", ["1795165200250", "2026-11-20T10:00:00.25+01"])
def test_run_starts_at_a_time_as_it_is_written_everywhere(start, monkeypatch):
    config = run_by(monkeypatch, "--app", "orders-app", "--stream", "orders", "--start", start).config
    assert config.start_position.at_millis == 1_795_165_200_250


def test_run_reads_a_file_by_its_short_flag(tmp_path, monkeypatch):
    path = tmp_path / "pykcl.toml"
    path.write_text('application = "orders-app"\nstream = "orders"\nregion = "eu-west-1"\n')
    assert run_by(monkeypatch, "-c", str(path)).config.region == "eu-west-1"


def test_the_profile_and_the_endpoint_of_run_hold_for_every_service(tmp_path, monkeypatch):
    path = tmp_path / "pykcl.toml"
    path.write_text(
        'application = "orders-app"\nstream = "orders"\n'
        '[clients.kinesis]\nregion = "eu-west-1"\nendpoint = "http://127.0.0.1:1"\n'
    )
    for file in ((), ("--config", str(path))):
        named = () if file else ORDERS[2:]
        specs = run_by(
            monkeypatch, *file, *named, "--profile", "shop", "--endpoint-url", "http://127.0.0.1:9"
        ).specs
        assert sorted(specs) == ["cloudwatch", "dynamodb", "kinesis"]
        assert {spec.endpoint for spec in specs.values()} == {"http://127.0.0.1:9"}
        assert {spec.credentials for spec in specs.values()} == {
            (CredentialsSource(kind="profile", profile="shop"),)
        }
        assert specs["kinesis"].region == ("eu-west-1" if file else None)


@pytest.mark.parametrize("flag", [("--profile", "shop"), ("--endpoint-url", "http://127.0.0.1:9")])
def test_the_embedded_aws_is_not_reached_by_another_way(flag):
    result = CliRunner().invoke(main, [*ORDERS, "--local", *flag])
    assert result.exit_code == 2
    assert f"{flag[0]} and --local do not go together" in result.output
