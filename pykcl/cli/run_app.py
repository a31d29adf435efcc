"""`pykcl run MODULE:APP`: the streams of an App, each with settings of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import click

from pykcl.cli.settings import Service, Settings
from pykcl.errors import ConfigError
from pykcl.handlers.app import App, AppStream, streams_of
from pykcl.processor import ProcessorFactory
from pykcl.worker.options import CALLABLE
from pykcl.worker.worker import Worker, run_together


class Ask(Protocol):
    """Returns the settings. defaults: fields of Config that everything else takes precedence over."""

    def __call__(self, defaults: Mapping[str, Any], *, shows_verdicts: bool = False) -> Settings: ...


def lacks_a_name(ask: Ask) -> bool:
    """Return True if nothing but the program may name its application, or its stream."""
    return None in _given(ask)


def _given(ask: Ask) -> tuple[str | None, str | None]:
    """Return application and stream, as far as the command, the environment or a file names them."""
    one, other = (ask({"application": name, "stream": name}).config for name in ("one", "other"))
    return (
        one.application if one.application == other.application else None,
        one.stream if one.stream == other.stream else None,
    )


@dataclass(frozen=True, slots=True)
class AppRun:
    """The streams of an App that a command reads."""

    app: App
    streams: tuple[AppStream, ...]
    ask: Ask

    @classmethod
    def of(cls, app: App, ask: Ask) -> AppRun:
        """Raises click.UsageError for names that do not go with the App, ConfigError for an App without a stream."""
        application, stream = _given(ask)
        streams = streams_of(app)
        if stream is not None and len(streams) > 1:
            config = ask({"application": "any"}).config
            chosen = tuple(each for each in streams if each.stream in (stream, config.stream_name))
            if not chosen:
                names = ", ".join(each.stream for each in streams)
                raise click.UsageError(
                    f"The App reads no stream {stream!r}. Do: --stream with one of {names}."
                )
            streams = chosen
        if application is not None and len(streams) > 1:
            raise click.UsageError(
                "--app names one lease table, and the App reads several streams. Do: drop it, or add --stream NAME."
            )
        return cls(app, streams, ask)

    def settings(self) -> Settings:
        """Return those of the first stream."""
        return self.ask(self.streams[0].fields())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the streams."""
        return tuple(self.ask(each.fields()).config.stream_name for each in self.streams)

    def processor(self) -> ProcessorFactory:
        """Return that of the only stream. Raises click.UsageError."""
        self.refuse_several("--shadow")
        return self.streams[0].processor

    def refuse_several(self, *flags: str | None) -> None:
        """Raise click.UsageError if there are several streams, and one of these flags."""
        found = next(filter(None, flags), None)
        if found is not None and len(self.streams) > 1:
            raise click.UsageError(
                f"{found} is for one stream, and the App reads several. Do: --stream NAME."
            )

    def run(self, service: Service) -> None:
        """Run a worker for each stream. Raises as `Worker.run`."""
        self.refuse_several(
            "--http" if service.http is not None else None,
            "--health-file" if service.health_file is not None else None,
            "--processes" if service.member is not None else None,
        )
        with service.watching() as watch:
            workers = [watch(self._worker(each)) for each in self.streams]
            with self.app.running():
                run_together(workers)

    def _worker(self, stream: AppStream) -> Worker:
        settings = self.ask(stream.fields())
        around = stream.around()
        clients = settings.clients()
        if clients is not None:
            around["clients"] = clients
        if (lease_table := settings.lease_table()) is not None:
            if around.get("lease_table") is not None:
                raise ConfigError(
                    f"The App says where its leases are, lease_table={around['lease_table']!r}, and so does the lease "
                    f"store {lease_table}. Drop one of them."
                )
            around["lease_table"] = lease_table
        if settings.config.dead_letters == CALLABLE:
            around["dead_letters"] = stream.options["dead_letters"]
        return Worker(processor=stream.processor, config=settings.config, **around)
