"""`pykcl migrate FILE`: plan the move of one application from Java, as a report, a plan and a configuration."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pykcl.cli.console import say
from pykcl.cli.errors import exit_codes
from pykcl.cli.options import Verb
from pykcl.errors import ConfigError, PyKclError, TableGone
from pykcl.runtime import SystemRuntime

if TYPE_CHECKING:
    from pykcl.compat.migrate import Migration, TableSnapshot
    from pykcl.compat.properties import Interpretation

CONFIG_FILE = "pykcl.toml"
REPORT_FILE = "migrate-report.md"
_MOST_BYTES = 4 * 1024 * 1024


@click.command(cls=Verb)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--code",
    multiple=True,
    metavar="APP.py",
    type=click.Path(path_type=Path),
    help="Python program to check, and its other files (repeatable). It is read, never run.",
)
@click.option(
    "--check-table/--no-check-table",
    "reads_table",
    default=True,
    help="Read the lease table with the credentials of FILE. Nothing is written to it.",
)
@click.option("--force", is_flag=True, help=f"Overwrite {CONFIG_FILE} and {REPORT_FILE}.")
def migrate(file: Path, code: tuple[Path, ...], reads_table: bool, force: bool) -> None:
    """Plan the move from MultiLangDaemon or amazon_kclpy to pykcl.

    Needs FILE, the .properties file of the daemon. Writes two files into the current folder: pykcl.toml, with the
    options of FILE for pykcl; and migrate-report.md: the key mapping, obsolete keys, behavior changes, current
    lease owners, and a migration plan with rollback steps.
    """
    with exit_codes():
        wanted = [Path(CONFIG_FILE), Path(REPORT_FILE)]
        there = [str(path) for path in wanted if os.path.lexists(path)]
        if there and not force:
            raise ConfigError(
                f"{' and '.join(there)} would be overwritten. Do: --force, or go to another folder."
            )
        from pykcl.compat.migrate import report, summary

        migration = _migration(file, code, reads_table)
        # Both are created before either is written. The name of a file may hold half a character.
        contents = [text.encode("utf-8", "backslashreplace") for text in (migration.toml, report(migration))]
        for path, content in zip(wanted, contents, strict=True):
            _write(path, content, like=file)
        say(summary(migration))
        say(f"{'WROTE':<11} {', '.join(map(str, wanted))}")


def _migration(file: Path, code: tuple[Path, ...], reads_table: bool) -> Migration:
    """Raises ConfigError for a file that cannot be read or understood."""
    from pykcl.compat import migrate as found_out
    from pykcl.compat.multilang.command import unfitness
    from pykcl.compat.properties import interpret, read_properties
    from pykcl.compat.properties.parsing import retrieval_of

    properties = read_properties(file)
    retrieval = retrieval_of(properties)
    found = interpret(properties, entry_point="kclpy")
    # Without a program it is the children of executableName that go on.
    of_children = None if code else interpret(properties, entry_point="multilang")
    programs = [found_out.Program(path.name, _source(path)) for path in code]
    snapshot = _snapshot(found) if reads_table else _no_snapshot(found, "--no-check-table was given.")
    move = found_out.Move(
        config=found.config,
        properties=str(file),
        config_file=CONFIG_FILE,
        program=str(code[0]) if code else None,
        leaves_fanout=retrieval.java_uses_fanout and not retrieval.pushes,
        consumer=found_out.consumer_of(properties, found.config),
    )
    return found_out.Migration(
        move=move,
        verdicts=(of_children or found).verdicts,
        properties=found_out.properties_findings(
            properties,
            found,
            in_process=bool(code),
            unfit=unfitness(of_children.executable) if of_children else None,
        ),
        code=tuple(program.name for program in programs),
        program=found_out.code_findings(programs),
        snapshot=snapshot,
        table=found_out.table_findings(snapshot),
        steps=found_out.plan(move, snapshot),
        toml=found_out.toml_text(properties, found),
    )


def _snapshot(found: Interpretation) -> TableSnapshot:
    """One scan, and what KCL 3.x keeps beside it; or why there was none. Only reads."""
    from pykcl.aws.clients import connect
    from pykcl.aws.credentials import open_specified_clients
    from pykcl.compat.migrate import TableSnapshot

    config = found.config
    try:
        clients = open_specified_clients(config, found.clients)
        table, _ = connect(config, SystemRuntime(), clients=clients, gone_after=0.0)
        rows = table.scan().rows
        # The index of owners is seen by this; it makes nothing.
        table.prepare(create=False)
        return TableSnapshot(config.table, rows, table.java_state())
    except TableGone:
        where = clients["dynamodb"].meta.region_name
        return _no_snapshot(found, f"There is no such table in {where}, in the account of these credentials.")
    except PyKclError as error:
        return _no_snapshot(found, str(error))


def _no_snapshot(found: Interpretation, why: str) -> TableSnapshot:
    from pykcl.compat.migrate import TableSnapshot

    return TableSnapshot(found.config.table, why_not=why)


def _source(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"--code {str(path)!r} cannot be read: {why}. Name the Python file.") from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"--code {str(path)!r} is larger than 4 MiB: that is no program.")
    return content


def _write(path: Path, content: bytes, *, like: Path) -> None:
    """like: who may not read this file shall not read a new one either: it may hold an external id."""
    try:
        mode = like.stat().st_mode & 0o666 | 0o600
        # A new file, moved over an old one: an old one keeps its mode, and may be a link to somebody else's file.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(name, mode)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be written: {error.strerror}. Do: go to a folder that may be written to."
        ) from None
