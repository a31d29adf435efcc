"""What Worker is given, checked: its configuration and the factory of its processors."""

from __future__ import annotations

import functools
from typing import Any

from pykcl.config import Config
from pykcl.errors import ConfigError
from pykcl.processor import ProcessorFactory, RecordProcessor


def config_of(application: str | None, config: Config | None, options: dict[str, Any]) -> Config:
    """Of the arguments of Worker. Raises ConfigError."""
    if config is None:
        if application is None:
            raise ConfigError(
                "No application name. Do: Worker('orders-app', stream='orders', processor=Orders)."
            )
        if "stream" not in options:
            raise ConfigError(
                f"Application {application!r} has no stream. Do: add stream='name' or a stream ARN."
            )
        return Config.from_options({"application": application, **options})
    if options:
        raise ConfigError(
            f"Both config= and the options {', '.join(sorted(options))} were given. Use one of them."
        )
    if application is not None and application != config.application:
        raise ConfigError(
            f"Application {application!r} contradicts config.application={config.application!r}."
        )
    return config


def checked_processor(processor: Any) -> ProcessorFactory:
    """What can make processors. Raises ConfigError."""
    if isinstance(processor, RecordProcessor):
        name = type(processor).__name__
        raise ConfigError(
            f"processor= wants a class or a zero-argument factory, one instance per shard; it got an instance of "
            f"{name}. Do: processor={name}, or processor=lambda: {name}(...)."
        ).about("E15", f"processor={name} (the class), or processor=lambda: {name}(...)")
    if isinstance(processor, type) and not issubclass(processor, RecordProcessor):
        raise ConfigError(
            f"processor={processor.__name__} is not a RecordProcessor. Do: class {processor.__name__}(RecordProcessor)."
        ).about("E15")
    if not callable(processor):
        raise ConfigError(
            f"processor={type(processor).__name__} is neither a class nor a zero-argument factory."
        ).about("E15")
    factory: ProcessorFactory = processor
    return factory if isinstance(factory, type) else functools.partial(_made_by, factory)


def _made_by(factory: ProcessorFactory) -> RecordProcessor:
    """What the factory makes. Raises ConfigError where that is no processor: no later call would make a better one."""
    made: Any = factory()
    if isinstance(made, type) or not callable(getattr(made, "process_records", None)):
        what = f"the class {made.__name__}" if isinstance(made, type) else type(made).__name__
        raise ConfigError(
            f"The factory that processor= names returned {what}, not a processor: was the `return` forgotten, or the "
            "class not called?"
        ).about("E15")
    processor: RecordProcessor = made
    return processor


def makes_no_processors(error: BaseException | None) -> bool:
    """Whether this is what a factory is refused for that makes something else."""
    return isinstance(error, ConfigError) and error.code == "E15"
