"""`pykcl report`: a bundle for a bug report."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import click

from pykcl.cli.fleet_options import Target, fleet_options
from pykcl.cli.output import say
from pykcl.errors import ConfigError


@click.command()
@fleet_options()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The zip file to write, by default pykcl-report-TIME.zip here. A file that exists is never overwritten.",
)
@click.option("--text", "as_text", is_flag=True, help="Print one text instead of writing a zip file.")
@click.option("--keep-names", is_flag=True, help="Leave names of streams, tables and workers as they are.")
@click.option("--no-watch", is_flag=True, help="As for doctor.")
@click.option("--no-lag", is_flag=True, help="As for doctor.")
def report(
    target: Target, out: Path | None, as_text: bool, keep_names: bool, no_watch: bool, no_lag: bool
) -> None:
    """Write what somebody needs who has never seen this fleet: versions, options, leases, the doctor's findings.

    Names of applications, tables, streams, workers, accounts and roles are replaced by hashes. Credentials, records and
    endpoints are never in it. Have a look before you send it: it is a few plain texts.
    """
    from pykcl.cli.doctor import examine
    from pykcl.operate.report import as_one_text, bundle_of, redactor_of
    from pykcl.runtime import SystemRuntime

    if as_text and out is not None:
        raise click.UsageError("--text prints; --out writes a file. Use one of them.")
    facts, findings = examine(target, watch=not no_watch, lag=not no_lag)
    runtime = SystemRuntime()
    salt = runtime.token() + runtime.token()
    redactor = None if keep_names else redactor_of(facts, salt)
    now = datetime.now(timezone.utc)
    texts = bundle_of(facts, findings, redactor, now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    if as_text:
        for line in as_one_text(texts).splitlines():
            say(line or " ")
        return
    path = out or Path(f"pykcl-report-{now:%Y%m%dT%H%M%SZ}.zip")
    _write(path, texts)
    say(f"wrote {path} ({path.stat().st_size} bytes):")
    for line in texts["README.txt"].splitlines()[2:]:
        say(line or " ")


def _write(path: Path, texts: Mapping[str, str]) -> None:
    """Only for its owner to read. Raises ConfigError for a place that cannot be written."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists, and is not overwritten. Do: --out another name.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}). Do: --out another place.") from None
    with os.fdopen(number, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, text in texts.items():
            bundle.writestr(f"pykcl-report/{name}", text)
