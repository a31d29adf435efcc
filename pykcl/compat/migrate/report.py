"""Output of `pykcl migrate`: the plan, the report in Markdown, its summary for the terminal, and pykcl.toml."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Any

from pykcl.aws.credentials import tables_of
from pykcl.compat.migrate.findings import Finding, TableSnapshot
from pykcl.compat.properties import Interpretation, KeyVerdict
from pykcl.compat.properties.interpretation import spellings
from pykcl.compat.properties.keys import KEYS_OF_FIELD
from pykcl.config import Config
from pykcl.errors import NO_UTF8, ConfigError, is_utf8, printable

_TITLES = {
    "changes": "behaves differently",
    "review": "to be reviewed",
    "can go": "no longer needed",
    "fine": "fine as it is",
}


@dataclass(frozen=True, slots=True)
class Step:
    """text: what to do, and what to expect. commands: for a shell; lines that start with # are comments."""

    title: str
    text: str
    commands: tuple[str, ...]
    back: str


@dataclass(frozen=True, slots=True)
class Move:
    """An application to migrate.

    properties, config_file: names of the files. program: the file that --kclpy runs; None: children of executableName
    run under `pykcl multilangd`. leaves_fanout: Java reads by enhanced fan-out, and pykcl polls. consumer: of fan-out,
    as arguments of the AWS CLI; by default with the name that Java gives it.
    """

    config: Config
    properties: str
    config_file: str
    program: str | None
    leaves_fanout: bool
    consumer: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        """Command that replaces the daemon."""
        if self.program is None:
            return _shell("pykcl", "multilangd", "--properties-file", self.properties)
        return _shell("pykcl", "run", "--config", self.config_file, "--kclpy", self.program)


def consumer_of(properties: Mapping[str, str], config: Config) -> tuple[str, ...]:
    """Return Java's consumer of enhanced fan-out, registered or given, as arguments of the AWS CLI."""
    arn = properties.get("fanoutConfig.consumerArn", "").strip()
    if arn:
        return "--consumer-arn", arn
    name = properties.get("fanoutConfig.consumerName", "").strip() or config.application
    return "--stream-arn", config.stream_arn or "STREAM_ARN", "--consumer-name", name


@dataclass(frozen=True, slots=True)
class Migration:
    """All findings. code: names of the files that were read. toml: text of the configuration."""

    move: Move
    verdicts: tuple[KeyVerdict, ...]
    properties: Sequence[Finding]
    code: tuple[str, ...]
    program: Sequence[Finding]
    snapshot: TableSnapshot
    table: Sequence[Finding]
    steps: Sequence[Step]
    toml: str

    @property
    def blockers(self) -> list[Finding]:
        return [found for found in (*self.properties, *self.program, *self.table) if found.weight == "must"]


def report(migration: Migration) -> str:
    """Return Markdown with a final line end."""
    return "\n".join(_lines(migration)) + "\n"


def summary(migration: Migration) -> str:
    """Return the summary for the terminal: a line or two for each part."""
    verdicts = Counter(row.verdict for row in migration.verdicts)
    counted = " · ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    rows = [("PROPERTIES", f"{len(migration.verdicts)} keys: {counted}")]
    rows += [("", found.what) for found in migration.properties if found.weight in ("must", "review")]
    read = ", ".join(migration.code) or "not read: name the program with --code to have it checked"
    rows.append(("CODE", read))
    rows += [
        ("", f"{found.place} {found.what}".strip()) for found in migration.program if found.weight != "fine"
    ]
    rows.append(("TABLE", migration.table[0].what))
    rows += [("", found.what) for found in migration.table[1:]]
    rows.append(("FIRST", f"{len(migration.blockers)} to be changed before anything runs"))
    # File names are bytes, and may contain characters that a terminal cannot show.
    return "\n".join(f"{label:<11} {printable(text)}".rstrip() for label, text in rows)


def _lines(migration: Migration) -> Iterator[str]:
    move = migration.move
    yield f"# Leaving Java: {_text(move.config.application)}"
    yield ""
    read = ", ".join([f"`{_code(move.properties)}`", *(f"`{_code(name)}`" for name in migration.code)])
    yield f"Based on {read} and {_about(migration.snapshot)}. Nothing was changed, and no program was run."
    yield ""
    yield "## First"
    yield ""
    if migration.blockers:
        yield "This has to be changed before anything runs:"
        yield ""
        yield from map(_bullet, migration.blockers)
    else:
        yield "Nothing has to be changed before it runs. Read below what behaves differently."
    yield ""
    yield from _properties(migration)
    yield from _program(migration)
    yield "## The lease table"
    yield ""
    yield from map(_bullet, migration.table)
    yield ""
    yield from _plan(migration.steps)
    yield f"## `{_code(move.config_file)}`"
    yield ""
    yield "It has the settings of the properties as options of pykcl, except defaults."
    if move.program is None:
        yield "`pykcl multilangd` still reads the properties; this file is for the shadow, and for a later program."
    yield ""


def _about(snapshot: TableSnapshot) -> str:
    name = f"the lease table `{_code(snapshot.name)}`"
    return name if snapshot.rows is not None else f"not {name}, see below"


def _properties(migration: Migration) -> Iterator[str]:
    yield "## The properties"
    yield ""
    yield "| key | value | verdict | what it means here |"
    yield "|---|---|---|---|"
    for row in migration.verdicts:
        value = f"`{_code(row.value)}`" if row.value else ""
        yield f"| `{_code(row.key)}` | {value} | {row.verdict} | {_text(row.text)} |"
    yield ""
    yield from _by_weight(migration.properties)


def _program(migration: Migration) -> Iterator[str]:
    yield "## The program"
    yield ""
    if not migration.code:
        yield "It was not read: name its files with `--code`, first the one that calls `KCLProcess(...).run()`."
        yield ""
    yield from _by_weight(migration.program)
    if migration.code:
        yield (
            "Only these files were checked, as text, for four things: swallowed exceptions, retry loops around "
            "checkpoint(), module globals that a processor writes, and sys.exit(). The guide "
            "(docs/guides/migrate-from-kclpy.md) has a table of everything that behaves differently."
        )
        yield ""


def _by_weight(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings by weight, without those of "must", which come first in the report."""
    for weight, title in _TITLES.items():
        mine = [found for found in findings if found.weight == weight]
        if mine:
            yield f"### {title[0].upper()}{title[1:]}"
            yield ""
            yield from map(_bullet, mine)
            yield ""


def _plan(steps: Sequence[Step]) -> Iterator[str]:
    yield "## The plan"
    yield ""
    yield "Each step can be reverted on its own. Stay at any step as long as you like: a mixed fleet may be permanent."
    yield ""
    for number, step in enumerate(steps, 1):
        yield f"### {number}. {step.title}"
        yield ""
        yield _text(step.text)
        yield ""
        yield "```console"
        yield from (line if line.startswith("#") else f"$ {line}" for line in map(_plain, step.commands))
        yield "```"
        yield ""
        # The text is ours and contains commands, so it is not escaped.
        yield f"The way back: {printable(step.back)}"
        yield ""


def _bullet(found: Finding) -> str:
    place = f" (`{_code(found.place)}`)" if found.place else ""
    what = _text(found.what).replace("`", "'")
    return f"* **{what}**{place}. {_text(found.text[:1].upper() + found.text[1:])}"


def _text(text: str) -> str:
    """Escape foreign text for Markdown: markup, table rows and line ends."""
    plain = _plain(text)
    return "".join(f"\\{char}" if char in "\\|<>[]*" else char for char in plain)


def _code(text: str) -> str:
    return _plain(text).replace("`", "'").replace("|", "\\|")


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


# -- the plan ---------------------------------------------------------------------------------------------------


def plan(move: Move, snapshot: TableSnapshot) -> list[Step]:
    """Return the steps in order."""
    is_led = snapshot.is_native
    return [
        _review(move, is_led=is_led),
        _shadow(move),
        _one_host(move, is_led=is_led),
        _all_hosts(move, is_led=is_led),
        _remove(move),
    ]


def _review(move: Move, *, is_led: bool) -> Step:
    code = ("--code", move.program) if move.program else ()
    commands = [_shell("pykcl", "migrate", move.properties, *code, "--force")]
    text = (
        "Change what has to be changed first, and repeat this command from a host with access to the lease table until "
        "nothing of that is left. It overwrites its files."
    )
    if is_led:
        commands.append(_shell("pykcl", "iam", "--properties", move.properties, "--follow-leader"))
        text += (
            " The second command prints the permissions that a worker needs in this fleet; the role of a daemon of KCL "
            "3.x usually has them."
        )
    return Step("Review", text, tuple(commands), "nothing was changed: the commands only read.")


def _shadow(move: Move) -> Step:
    name = f"{move.config.application}-shadow"
    rehearse = _shell("pykcl", "run", "--shadow", name, "--config", move.config_file)
    commands = [rehearse]
    if move.program is not None:
        # The first command only counts, for hours; the second is for a processor that may process records twice.
        commands.append(f"{rehearse} " + _shell("--kclpy", move.program, "--shadow-call-processor"))
    return Step(
        "Shadow",
        "Read the same stream with another lease table, beside the Java fleet, for some hours, a deploy and, if "
        "possible, a reshard; compare the counts with Java's metrics. It shares the five reads per second that Kinesis "
        "allows for each shard. "
        + (
            "The second command also calls the processor: only for one that may process records twice, or with a sink "
            "for tests."
            if move.program is not None
            else "No child is started."
        ),
        tuple(commands),
        f"Ctrl-C, then `{_shell('aws', 'dynamodb', 'delete-table', '--table-name', name)}`. The application's "
        "own table is not touched.",
    )


def _one_host(move: Move, *, is_led: bool) -> Step:
    taken = (
        "the leader of KCL 3.x assigns leases to it as to any other worker, once it has reported its metrics"
        if is_led
        else f"pykcl takes them after the failover time of {move.config.failover_time:g} s"
    )
    return Step(
        "One host",
        "Stop the daemon of one host, and start this instead. Its log shows `fleet joined` with the other workers, "
        f"then `lease taken`. Java does not release its leases when it stops: {taken}. Wait until a deploy and a split "
        "or merge have passed without errors.",
        (move.run,),
        "stop it (SIGTERM): it calls shutdown_requested for each shard, which may write a checkpoint, and releases its "
        "leases; Java continues at the checkpoints in the table. Start the daemon again, "
        f"with {move.properties} as it is.",
    )


def _all_hosts(move: Move, *, is_led: bool) -> Step:
    text = "The same on the next host, one by one, each after the leases are balanced."
    end = "After the last daemon has stopped nothing is left to do: the table stays as it is."
    back = "as before, for any host, at any time; also for all of them."
    if not is_led:
        return Step("All hosts", f"{text} {end}", (move.run,), back)
    return Step(
        "All hosts",
        f"{text} The first command shows which worker leads, and which ones the leader counts. Move the host that "
        f"leads last: whenever a leader goes, nobody assigns leases until another follows. {end}",
        (_shell("pykcl", "leases", "list", "--properties", move.properties), move.run),
        f"{back} A daemon that finds nobody leading takes the lock, at the latest two minutes after its start, and "
        "assigns leases from then on.",
    )


def _remove(move: Move) -> Step:
    commands = ["docker image ls  # before and after"]
    if move.program is not None:
        commands.append("pip uninstall amazon_kclpy")
    extras = "kclpy" if move.config.retrieval == "polling" else "kclpy,fanout"
    commands.append(f"pip install 'pykcl[{extras}]'")
    if move.leaves_fanout:
        commands.append(
            "aws kinesis deregister-stream-consumer "
            + _shell(*(move.consumer or consumer_of({}, move.config)))
        )
    return Step(
        "Remove Java",
        "Take the JRE, the jars and the helper script out of the image"
        + (", and amazon_kclpy out of the requirements" if move.program else "")
        + "; the command is the one above. "
        + (
            "The consumer of enhanced fan-out is billed until it is deregistered. "
            if move.leaves_fanout
            else ""
        )
        + "Remove the permissions for the tables of KCL 3.x when no way back is needed any more.",
        tuple(commands),
        "deploy the previous image; keep it for a month.",
    )


def _shell(*words: str) -> str:
    return shlex.join(words)


# -- pykcl.toml ------------------------------------------------------------------------------------------------

_MANUAL = (
    "a program of amazon_kclpy checkpoints by itself; delete the line when you use a RecordProcessor of pykcl"
)

_USER_IN_URL = re.compile(r"(?<=://).*@", re.DOTALL)


def toml_text(properties: Mapping[str, str], found: Interpretation) -> str:
    """Return every option that differs from its default, with its key. Raises ConfigError for a half character."""
    source = getattr(properties, "source", "the properties")
    lines = [
        f"# Created from {_plain(source)} by `pykcl migrate`. Every option: docs/reference/configuration.md",
        "",
    ]
    for field in fields(Config):
        value = getattr(found.config, field.name)
        if field.default is MISSING or value != field.default:
            why = _MANUAL if field.name == "checkpoint_mode" else _origin(properties, field.name)
            lines.append(f"{field.name} = {_value(value)}" + (f"  # {why}" if why else ""))
    # The region of the file is not repeated for each client.
    region = found.config.effective_region
    for service, table in tables_of(found.clients).items():
        if "region" in table and table["region"] == region:
            del table["region"]
        sources = table.pop("credentials", [])
        if table:
            lines += [
                "",
                f"[clients.{service}]",
                *(_line(name, value) for name, value in table.items()),
            ]
        for source_table in sources:
            lines += ["", f"[[clients.{service}.credentials]]"]
            lines += [_line(name, value) for name, value in source_table.items()]
    return "\n".join(lines) + "\n"


def _line(name: str, value: str) -> str:
    """Line of a client. A password in an endpoint is not copied: requests do not contain it."""
    kept = _USER_IN_URL.sub("", value) if name.endswith("endpoint") else value
    return f"{name} = {_value(kept)}" + ("" if kept == value else "  # its user and password are left out")


def _origin(properties: Mapping[str, str], field: str) -> str:
    keys = [key for name in KEYS_OF_FIELD.get(field, ()) for key in spellings(properties, name)]
    if field == "processor_warn_after" and not keys:
        return "no later than processor_timeout"
    if field == "max_leases" and not keys:
        return "no limit, as in Java without maxLeasesForWorker"
    return keys[0] if keys else ""


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, int | float):
        return repr(value)
    return f'"{_escaped(str(value))}"'


def _escaped(text: str) -> str:
    if not is_utf8(text):
        raise ConfigError(f"A value {NO_UTF8}. Write it whole, in UTF-8.")
    return "".join(
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{ord(char):08X}"
        for char in text
    )
