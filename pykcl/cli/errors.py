"""Exit codes: of the verbs that run something, and of those that look at a fleet or steer it.

Running (`run`, `multilangd`, `migrate`, `local`): 0 clean, 2 usage (click's own), 70 crash, 78 configuration or
surroundings. Operating (`leases`, `lag`, `shards`, `checkpoint`, `doctor` …): 0 ok, 1 error, 2 usage, 3 a threshold was
breached, 4 the doctor found something, 5 refused.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from pykcl.errors import ConfigError, PyKclError, Refused, SetupError

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_THRESHOLD = 3
EXIT_DOCTOR = 4
EXIT_REFUSED = 5
EXIT_CRASH = 70
EXIT_CONFIGURATION = 78


class ProgramCrashed(PyKclError):
    """An exception of the application's own, outside of a worker. Its traceback was logged."""


@contextmanager
def exit_codes(name: str = "pykcl") -> Iterator[None]:
    """Turn pykcl's errors into one clear line, one more with what to do about a known mistake, and the exit code.

    name: in front of the lines.
    """
    try:
        yield
    except (ConfigError, SetupError) as error:
        _say(error, name=name)
        sys.exit(EXIT_CONFIGURATION)
    except PyKclError as error:
        kind = "" if isinstance(error, ProgramCrashed) else f"{type(error).__name__}: "
        _say(error, kind, name=name)
        sys.exit(EXIT_CRASH)
    except click.ClickException:
        raise
    except Exception:
        logging.getLogger("pykcl").exception("crashed")
        sys.exit(EXIT_CRASH)


@contextmanager
def operating() -> Iterator[None]:
    """Around the body of every command that looks at a fleet or steers it: errors become one line and their code.

    `sys.exit(EXIT_THRESHOLD)` and click's own errors pass through.
    """
    try:
        yield
    except Refused as error:
        _say(error, "refused: ")
        sys.exit(EXIT_REFUSED)
    except PyKclError as error:
        _say(error)
        sys.exit(EXIT_ERROR)
    except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
        # The last: whoever reads our output, such as `head`, has had enough; click ends quietly.
        raise
    except Exception:
        logging.getLogger("pykcl").exception("crashed")
        sys.exit(EXIT_ERROR)


def _say(error: PyKclError, kind: str = "", *, name: str = "pykcl") -> None:
    click.echo(f"{name}: {kind}{error}", err=True)
    if error.explanation is not None:
        click.echo(f"{name}: {error.explanation}", err=True)
