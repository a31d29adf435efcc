"""`--processes K`: so many ordinary workers, each a process of its own, under one parent."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pykcl.cli.main import ARGUMENTS
from pykcl.cli.process_member import Member
from pykcl.cli.process_slot import environment_supports_it
from pykcl.runtime import SystemRuntime

if TYPE_CHECKING:
    from pykcl.cli.service_options import Service
    from pykcl.cli.settings import Settings
    from pykcl.config import Config

MOST_PROCESSES = 128
"""Each is a worker of its own, with its own heartbeats and scans: beyond that a second host is what is missing."""


@dataclass(frozen=True, slots=True)
class Processes:
    """count: as asked for; None: this process is the worker. member: this one of them, if it is one."""

    count: int | None
    arguments: tuple[str, ...]
    member: Member | None = None

    @property
    def is_parent(self) -> bool:
        return self.count is not None and self.member is None

    @property
    def name(self) -> str:
        """What the lines of this process begin with."""
        return "pykcl" if self.member is None else f"pykcl [{self.member.number}]"

    @property
    def number(self) -> int | None:
        return self.member.number if self.member is not None else None

    def own(self, settings: Settings) -> Settings:
        """With the worker identifier of this process."""
        if self.member is None:
            return settings
        return replace(settings, config=replace(settings.config, worker_id=self.member.worker_id))

    def run(self, config: Config, service: Service) -> int:
        """As the parent. Returns the exit code; raises ConfigError and SetupError."""
        from pykcl.cli.process_parent import Parent

        if self.count is None:
            raise ValueError("no count of processes")
        worker_id = config.worker_id or f"{socket.gethostname()}:{os.getpid()}:{SystemRuntime().token()}"
        parent = Parent(self.count, worker_id, self.arguments)
        with service.watching_over(parent):
            return parent.run()


def processes_option(command: Callable[..., None]) -> Callable[..., None]:
    """`--processes`, handed to the command as `processes`; the options of service_options must be its, too."""

    @functools.wraps(command)
    @click.pass_context
    def wrapped(context: click.Context, /, processes: int | None, **given: Any) -> None:
        if processes is not None and not environment_supports_it():
            raise click.UsageError("--processes needs a POSIX system. Do: start the command that often.")
        found = Processes(processes, context.meta.get(ARGUMENTS, ()), context.find_object(Member))
        if found.member is not None:
            given["service"] = replace(given["service"], member=found.member)
        command(processes=found, **given)

    return click.option(
        "--processes",
        type=click.IntRange(1, MOST_PROCESSES),
        metavar="K",
        help="Run K workers, each a process of its own, and start again what crashes; e.g. one for each core.",
    )(wrapped)
