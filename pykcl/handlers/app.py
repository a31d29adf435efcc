"""`App`: functions and the streams that they read, as one program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from pykcl.config import Config
from pykcl.errors import ConfigError
from pykcl.handlers.functions import belongs_to_an_app, handler, required
from pykcl.model.record import Record
from pykcl.processor import ASYNC, ProcessorFactory, why_it_runs_nothing
from pykcl.runtime import SystemRuntime
from pykcl.worker.options import CALLABLE, AppOptions
from pykcl.worker.window_delivery import refuse_beside_windows
from pykcl.worker.worker import Worker, run_together

if TYPE_CHECKING:
    from typing_extensions import Unpack

Function = TypeVar("Function", bound=Callable[..., object])
Hook = TypeVar("Hook", bound=Callable[[], object])
_AROUND = AppOptions.__optional_keys__ - {field.name for field in fields(Config)}
"""Arguments of a Worker that are no field of Config."""

_LOOP_ENDS_WITHIN = 2.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class AppStream:
    """A stream of an App, with the function that reads it. options: arguments of its Worker but these."""

    application: str
    stream: str
    name: str
    processor: ProcessorFactory
    options: Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        """Return the fields of Config that are given."""
        given = {name: value for name, value in self.options.items() if name not in _AROUND}
        if not isinstance(given.get("dead_letters"), str | None):
            given["dead_letters"] = CALLABLE
        return {"application": self.application, "stream": self.stream, **given}

    def around(self) -> dict[str, Any]:
        """Return the other arguments of a Worker that are given."""
        return {name: value for name, value in self.options.items() if name in _AROUND}


class App:
    """Functions that read streams, and what is done once in the process before and after them.

    options: arguments of Worker for all streams; a stream may have its own. Raises ConfigError for an unknown one.
    """

    def __init__(self, application: str, **options: Unpack[AppOptions]) -> None:
        self.application = application
        self._options = _known(options)
        self._streams: list[AppStream] = []
        self._on_start: list[Callable[[], object]] = []
        self._on_stop: list[Callable[[], object]] = []

    def stream(
        self,
        stream: str,
        *,
        application: str | None = None,
        decoder: Callable[[Record], object] | None = None,
        filter: Callable[[Record], bool] | None = None,
        window: int | None = None,
        concurrency: int = 1,
        **options: Unpack[AppOptions],
    ) -> Callable[[Function], Function]:
        """Let the decorated function read a stream, of this name or ARN. It stays the function that it is.

        application: by default that of the App, which one stream can have. decoder, filter, window, concurrency: as
        `handler` takes them. Raises ConfigError.
        """
        if not isinstance(stream, str):
            raise ConfigError('app.stream takes the name of a stream. Do: @app.stream("orders").')
        name = application or self.application

        def decorate(function: Function) -> Function:
            processor = handler(
                function, decoder=decoder, filter=filter, window=window, concurrency=concurrency
            )
            title = getattr(function, "__name__", type(function).__name__)
            found = AppStream(name, stream, title, processor, {**self._options, **_known(options)})
            config = Config.from_options(found.fields())
            if window is not None:
                refuse_beside_windows(title, config)
            table = config.table
            other = next((each for each in self._streams if Config(**each.fields()).table == table), None)
            if other is not None:
                raise ConfigError(
                    f"{title} and {other.name} share the lease table {table!r}, and that is of one stream, "
                    f'{other.stream!r}. Do: @app.stream({stream!r}, application="{name}-{title}").'
                )
            belongs_to_an_app(function, processor)
            self._streams.append(found)
            return function

        return decorate

    def on_start(self, function: Hook) -> Hook:
        """Call the decorated function, without arguments, once in the process before the first worker starts."""
        self._on_start.append(_checked_hook(function, "on_start"))
        return function

    def on_stop(self, function: Hook) -> Hook:
        """Call the decorated function once after the last worker has stopped, if every on_start has returned."""
        self._on_stop.append(_checked_hook(function, "on_stop"))
        return function

    def run(self) -> None:
        """Read all streams until SIGTERM, SIGINT or a failure of one worker, and then stop all; or until each one has
        come to its `until`. Raises as `Worker.run`."""
        made = [
            Worker(each.application, stream=each.stream, processor=each.processor, **each.options)
            for each in streams_of(self)
        ]
        with self.running():
            run_together(made)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Call the functions of on_start before the block, and those of on_stop after it.

        Those that are `async def` run in the event loop of the handlers, which goes on until the last one has returned.
        """
        with ExitStack() as held, ExitStack() as after:
            call: Callable[[Callable[[], Any]], object] = lambda function: function()  # noqa: E731
            if any(why_it_runs_nothing(function) for function in (*self._on_start, *self._on_stop)):
                from pykcl.handlers.loop import LoopUser

                runtime = SystemRuntime()
                user = LoopUser(runtime)
                held.callback(lambda: user.close(runtime.monotonic() + _LOOP_ENDS_WITHIN))
                call = user.loop.call_hook
            for function in self._on_start:
                call(function)
            for function in self._on_stop:
                after.callback(call, function)
            yield


def streams_of(app: App) -> tuple[AppStream, ...]:
    """Return the streams, in the order of their functions. Raises ConfigError if there are none."""
    if not app._streams:
        raise ConfigError('The App reads no stream. Do: decorate a function by @app.stream("orders").')
    return tuple(app._streams)


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ConfigError for an unknown name; values are checked with their stream."""
    if "stream" in options:
        raise ConfigError('stream= is no option of an App. Do: @app.stream("orders").')
    if "concurrency" in options:
        raise ConfigError(
            'concurrency= is of one function, and no option of an App. Do: @app.stream("orders", concurrency=8).'
        )
    if unknown := [name for name in options if name not in AppOptions.__optional_keys__]:
        Config.from_options(dict.fromkeys(unknown))
    return dict(options)


def _checked_hook(function: Any, decorator: str) -> Callable[[], object]:
    name = getattr(function, "__name__", type(function).__name__)
    needy = "a function that needs arguments" if callable(function) and required(function) else None
    kind = (why_it_runs_nothing(function) or needy) if callable(function) else "no function"
    if kind == ASYNC:
        kind = needy
    if kind is not None:
        raise ConfigError(f"@app.{decorator}: {name} is {kind}. Do: def {name}(), without yield.")
    return function  # type: ignore[no-any-return]
