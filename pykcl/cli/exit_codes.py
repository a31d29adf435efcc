"""Exit codes of every verb: 0 clean, 2 usage (click's own), 70 crash, 78 configuration or surroundings."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from pykcl.errors import ConfigError, PyKclError, SetupError

EXIT_OK = 0
EXIT_USAGE = 2
EXIT_CRASH = 70
EXIT_CONFIGURATION = 78


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn pykcl's errors into one clear line and the documented exit code."""
    try:
        yield
    except (ConfigError, SetupError) as error:
        click.echo(f"pykcl: {error}", err=True)
        sys.exit(EXIT_CONFIGURATION)
    except PyKclError as error:
        click.echo(f"pykcl: {type(error).__name__}: {error}", err=True)
        sys.exit(EXIT_CRASH)
    except click.ClickException:
        raise
    except Exception:
        logging.getLogger("pykcl").exception("crashed")
        sys.exit(EXIT_CRASH)
