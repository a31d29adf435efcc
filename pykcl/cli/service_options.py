"""What a worker that runs as a service is given besides its Config: its health, its watchdog, the form of its log."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.logs import LOG_FORMATS, LogFormat
from pykcl.config import HTTP_TOKEN

if TYPE_CHECKING:
    from pykcl.cli.process_member import Member
    from pykcl.health.service import HealthService
    from pykcl.health.source import HealthSource
    from pykcl.worker.worker import Worker

Watch = Callable[["Worker"], "Worker"]
"""Puts a new worker under watch; returns it."""


@dataclass(frozen=True, slots=True)
class Service:
    """http, http_token_file, allow_host, health_file: see `HealthService`. stall_warning, stall_timeout: seconds.

    member: of the processes of a parent, which tells how they are; None: this process tells it itself.
    """

    http: str | None = None
    http_token_file: Path | None = None
    allow_host: tuple[str, ...] = ()
    health_file: Path | None = None
    stall_warning: float | None = None
    stall_timeout: float | None = None
    log_format: LogFormat = "text"
    show_errors: bool | None = None
    member: Member | None = None

    def config_options(self) -> dict[str, float]:
        """Fields of Config that were given."""
        given = {
            "processor_warn_after": self.stall_warning,
            "processor_timeout": self.stall_timeout,
            "show_errors": self.show_errors,
        }
        return {name: value for name, value in given.items() if value is not None}

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Around the making and running of a worker. Raises ConfigError and SetupError."""
        if self.member is not None:
            yield self.member.watch
            return
        with self._health() as health:

            def watch(worker: Worker) -> Worker:
                if health is not None:
                    health.watch(worker)
                return worker

            yield watch

    @contextmanager
    def watching_over(self, sight: HealthSource) -> Iterator[None]:
        """The same, where it is not about one worker."""
        with self._health(sight):
            yield

    @contextmanager
    def _health(self, sight: HealthSource | None = None) -> Iterator[HealthService | None]:
        if self.http is None and self.health_file is None:
            yield None
            return
        from pykcl.health.service import HealthService

        service = HealthService(
            http=self.http, token=self._token(), file=self.health_file, allow_hosts=self.allow_host
        )
        if sight is not None:
            service.use_source(sight)
        with service as health:
            if health.url is not None:
                _tell(health.url, health.token, is_new=health.has_made_token)
            yield health

    def _token(self) -> str | None:
        from pykcl.health.pages import checked_token, token_from_file

        if self.http is None:
            return None
        if self.http_token_file is not None:
            return token_from_file(self.http_token_file)
        text = os.environ.get(HTTP_TOKEN)
        return checked_token(text, f"The environment variable {HTTP_TOKEN}") if text else None


def _tell(url: str, token: str | None, *, is_new: bool) -> None:
    click.echo(f"health at {url}: /livez /readyz /metrics /status", err=True)
    if token is not None and is_new:
        # Here, once, and in no log: a token that is to be known elsewhere is given as a file or in the environment.
        click.echo(f"/status needs this token, made for this run: Authorization: Bearer {token}", err=True)


_OPTIONS = (
    click.option(
        "--http",
        metavar="[HOST:]PORT",
        envvar="PYKCL_HTTP",
        help="Answer /livez, /readyz, /metrics and /status there. Without HOST to this machine only.",
    ),
    click.option(
        "--http-token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="PYKCL_HTTP_TOKEN_FILE",
        help=f"The token that /status needs. Else ${HTTP_TOKEN}, else one is made and told where HOST is not this "
        "machine only.",
    ),
    click.option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        help="Another name that /metrics and /status may be asked by. May be repeated.",
    ),
    click.option(
        "--health-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="PYKCL_HEALTH_FILE",
        help="Renew this file each second while the worker lives.",
    ),
    click.option(
        "--stall-warning",
        type=float,
        metavar="SECONDS",
        help="Report a processor that has not returned for so long, with its stack (default 60).",
    ),
    click.option(
        "--stall-timeout",
        type=float,
        metavar="SECONDS",
        help="Give up the lease of a processor that has not returned for so long (default never).",
    ),
    click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="text",
        envvar="PYKCL_LOG_FORMAT",
        help="Lines of text, or one JSON object per line.",
    ),
    click.option(
        "--show-errors/--no-show-errors",
        default=None,
        help="Log text and traceback of what the processor raises; they may quote a payload. Default: with --local.",
    ),
)


def service_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options above, handed to the command as one `service`."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        names = [option.name for option in fields(Service) if option.name in given]
        command(service=Service(**{name: given.pop(name) for name in names}), **given)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
