"""The troubleshooting page: one section for each code, of one shape, with commands that exist."""

import ast
import re
import textwrap

import click
import pytest
from click.testing import CliRunner
from mistake_pages import HEAD, PAGE, ROOT, TEXTS, blocks, commands, is_on_page, sections

from pykcl import errors, events
from pykcl.cli.explain import PAGES
from pykcl.cli.main import main
from pykcl.cli.settings import from_arguments
from pykcl.compat.properties import KEYS, interpret
from pykcl.error_catalog import MISTAKES

SHAPE = ["What you see", "Why", "What to do", "How to prevent it"]
OTHER_TOOLS = {"aws", "export"}
EVENTS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]


def parse(words, group=main):
    """Raises click.ClickException for a command that pykcl does not have. words: behind `pykcl`."""
    with group.make_context("pykcl", list(words), resilient_parsing=False) as context:
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        if isinstance(command, click.Group):
            parse(rest, command)
        else:
            command.make_context(name, rest)


@pytest.mark.parametrize("code", MISTAKES)
def test_a_page_says_what_is_seen_why_what_to_do_and_how_to_prevent_it(code):
    text = TEXTS[code]
    assert text.startswith(f"## {code}: {MISTAKES[code].title}\n")
    found = sections(code)
    assert list(found) == SHAPE
    assert all(len(body) > 40 for body in found.values())
    assert blocks(found["What to do"], "console"), "there is a next command"
    assert text.isascii() or set(text) - set(map(chr, range(128))) <= set("…·")


@pytest.mark.parametrize("code", MISTAKES)
def test_every_command_of_a_page_exists(code):
    for program, *words in commands(code):
        assert program in {"pykcl", *OTHER_TOOLS}
        if program == "pykcl":
            parse(words)


@pytest.mark.parametrize(
    "words", [["leases", "lst"], ["lag", "--of-what"], ["checkpoints", "skip"], ["nothing"]]
)
def test_a_command_that_does_not_exist_is_refused(words):
    with pytest.raises(click.ClickException):
        parse(words)


@pytest.mark.parametrize("code", MISTAKES)
def test_every_command_of_a_hint_exists(code):
    hint = (
        f"{MISTAKES[code].do} {MISTAKES[code].with_record} {MISTAKES[code].with_records}".replace(
            "APPLICATION", "app"
        )
        .replace("STREAM", "s")
        .replace("SHARD", "7")
    )
    for found in re.findall(r"\bpykcl ((?:[a-z]+ )*[a-z]+)", hint):
        verbs, group = found.split(), main
        command = group.get_command(None, verbs[0])
        assert command is not None, found
        if isinstance(command, click.Group):
            assert command.get_command(None, verbs[1]) is not None, found
    for option in re.findall(r"--option (\w+)=", hint):
        assert option in {"table_name", "idle_time_between_reads"}


@pytest.mark.parametrize("code", MISTAKES)
def test_the_python_of_a_page_is_python(code):
    for block in blocks(TEXTS[code], "python"):
        ast.parse(textwrap.dedent(block))


def test_every_key_of_a_properties_file_that_a_hint_names_exists():
    named = {
        key
        for mistake in MISTAKES.values()
        for key in re.findall(r"(?<=[(, ])[a-z]+(?:[A-Z]\w+)+(?=[=),])", mistake.do)
    }
    assert {"workerId", "initialPositionInStream", "maxLeasesForWorker"} <= named <= KEYS.keys()


def test_what_the_hint_about_latest_advises_is_accepted_wherever_it_is_read():
    option, flag, key = re.findall(r"[\w-]+[ =]TRIM_HORIZON", MISTAKES["E16"].do)
    assert from_arguments([option])["initial_position"] == "TRIM_HORIZON"
    parse(["run", "pykcl.examples.orders:Orders", "--app", "a", "--stream", "s", *flag.split()])
    name, value = key.split("=")
    least = {"applicationName": "orders-app", "streamName": "orders", name: value}
    assert interpret(least, entry_point="kclpy").config.initial_position == "TRIM_HORIZON"


def test_the_table_has_every_code_with_its_title_and_there_is_no_other_section():
    rows = re.findall(r"^\| \[(E\d\d)\]\(#(e\d\d)\) \| (.+?) \| (.+?) \|$", HEAD, re.MULTILINE)
    assert [(code, anchor, title) for code, anchor, title, _ in rows] == [
        (code, code.lower(), MISTAKES[code].title) for code in MISTAKES
    ]
    assert list(TEXTS) == list(MISTAKES)


def test_the_table_names_the_errors_and_events_of_a_code_and_they_exist():
    for code, tellers in re.findall(r"^\| \[(E\d\d)\].* \| (.+?) \|$", HEAD, re.MULTILINE):
        names = re.findall(r"`(\w+)`", tellers)
        kinds = [
            getattr(errors, name, None) or getattr(events, name, None) or getattr(events, name)
            for name in names
        ]
        assert {kind.__name__ for kind in EVENTS if code == kind.CODE} <= set(names)
        # Those without a code of their own are told which mistake it is where they are raised.
        own = [kind for kind in kinds if issubclass(kind, errors.PyKclError) and kind.code is not None]
        assert all(kind.code == code for kind in own)


def test_every_event_with_a_code_is_on_the_page_of_that_code():
    for kind in EVENTS:
        if kind.CODE is not None:
            page = TEXTS[kind.CODE]
            line = f"{kind.TEXT} shard=shardId-0 code={kind.CODE} x"
            assert is_on_page(kind.CODE, line) or kind.TEXT in page


# -- pykcl explain ---------------------------------------------------------------------------------------------


def explain(*words, width=100):
    return CliRunner().invoke(main, ["explain", *words], env={"COLUMNS": str(width)}, prog_name="pykcl")


@pytest.mark.parametrize("code", MISTAKES)
def test_explain_shows_the_whole_page_as_text(code):
    done = explain(code)
    assert done.exit_code == 0
    words = set(re.findall(r"[\w.-]+", TEXTS[code]))
    of_marks = {"text", "console", "python", "..", *(other.lower() for other in MISTAKES)}
    assert words - of_marks <= set(re.findall(r"[\w.-]+", done.output))
    assert "<a id=" not in done.output
    assert "```" not in done.output
    assert "](" not in done.output
    prose = [line for line in done.output.splitlines() if not line.startswith("    ")]
    assert all(len(line) <= 100 for line in prose)


def test_explain_leaves_commands_whole_on_a_narrow_terminal():
    assert (
        "    $ pykcl checkpoints reset --shard 7 --shift-by 1 --app orders-app --stream orders --execute\n"
        in (explain("e12", width=40).output)
    )


def test_explain_lists_all_codes():
    done = explain()
    assert [line for line in done.output.splitlines() if line.startswith("E")] == [
        f"{code}  {mistake.title}" for code, mistake in MISTAKES.items()
    ]


@pytest.mark.parametrize(("code", "hint"), [("E99", "Did you mean E"), ("E1", "Did you mean E"), ("x", "")])
def test_explain_refuses_an_unknown_code_with_the_nearest(code, hint):
    done = explain(code)
    assert done.exit_code == 2
    assert f"There is no code {code!r}. {hint}" in done.output
    assert "pykcl explain, which lists all codes" in done.output


def test_the_wheel_carries_the_page_where_explain_reads_it():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (source, target) = re.search(r'force-include\]\n"(.+)" = "(.+)"\n', project).groups()
    assert [ROOT / target, ROOT / source] == list(PAGES)
    assert ROOT / source == PAGE
