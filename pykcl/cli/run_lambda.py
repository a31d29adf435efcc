"""`pykcl run --lambda MODULE:HANDLER`: the options of a Lambda function, and the file of --esm."""

from __future__ import annotations

import functools
import logging
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from pykcl.cli.console import announce
from pykcl.cli.options import Duration, gathered, option_in
from pykcl.cli.settings import Settings
from pykcl.errors import ConfigError
from pykcl.handlers.event_source_mapping import EventSourceMapping, mapping_of
from pykcl.handlers.lambda_processor import FUNCTION_TIMEOUT, FunctionName, lambda_processor
from pykcl.handlers.windows import checked_seconds
from pykcl.processor import ProcessorFactory

log = logging.getLogger("pykcl.lambda")

BATCH_SIZE = 100
"""Default of an event source mapping."""
_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True)
class LambdaFunction:
    """The Lambda options as they were given. handler: MODULE:HANDLER; None: no Lambda function is run.

    window: seconds, also of another function. concurrency: also of another function.
    """

    handler: str | None = None
    function_name: str | None = None
    esm: Path | None = None
    function_timeout: float | None = None
    handler_is_thread_safe: bool = False
    no_deaggregate: bool = False
    report_batch_item_failures: bool = False
    window: float | None = None
    concurrency: int | None = None

    def refuse_others(self, others: Mapping[str, object]) -> None:
        """Raise click.UsageError for Lambda options without --lambda, and for any of `others`, by name, with it."""
        if self.handler is None:
            for option in fields(self):
                if (
                    option.name not in ("window", "concurrency")
                    and getattr(self, option.name) != option.default
                ):
                    raise click.UsageError(f"--{option.name.replace('_', '-')} goes with --lambda only.")
            return
        for name, value in others.items():
            if value is not None:
                raise click.UsageError(f"--lambda and {name} do not go together. Drop one of them.")

    @functools.cached_property
    def mapping(self) -> EventSourceMapping:
        """The file of --esm, or an empty mapping. Raises ConfigError."""
        if self.esm is None:
            return EventSourceMapping({})
        try:
            with self.esm.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                raise ConfigError("it is longer than 1 MiB")
            return mapping_of(content.decode("utf-8-sig"))
        except OSError as error:
            problem = f"it cannot be read ({error.strerror})"
        except UnicodeDecodeError:
            problem = "it is not UTF-8"
        except ConfigError as error:
            problem = str(error).rstrip(".")
        raise ConfigError(f"--esm {self.esm}: {problem}.")

    def options(self, shows_outcomes: bool) -> dict[str, Any]:
        """Return fields of Config that every other source takes precedence over. Raises ConfigError.

        shows_outcomes: print what becomes of each key of the mapping.
        """
        if self.handler is None:
            return {}
        if shows_outcomes and self.mapping.outcomes:
            rows = [("KEY", "WHAT IT MEANS HERE"), *self.mapping.outcomes]
            width = max(len(key) for key, _ in rows)
            announce("\n".join(f"{key.ljust(width)}  {outcome}" for key, outcome in rows), err=True)
        return {"batch_size": BATCH_SIZE, **self.mapping.options}

    @property
    def overrides(self) -> dict[str, Any]:
        """Fields of Config that were given."""
        return {"deaggregate": False} if self.no_deaggregate else {}

    def processor(self, settings: Settings, load: Callable[[str], Any]) -> ProcessorFactory:
        """Import the handler by `load`. Raises ConfigError, and what `load` raises."""
        config = settings.config
        if config.checkpoint_mode in ("manual", "ack"):
            raise ConfigError(
                f"checkpoint_mode={config.checkpoint_mode!r} waits for checkpoints or acks, and a Lambda handler makes "
                "none. "
                "Use 'auto' or 'interval'."
            )
        from pykcl.aws.credentials import identity_arn

        name = self._name
        function = FunctionName.parse(name) if name else FunctionName(config.application)
        # Libraries for Lambda read them when they are imported, and Powertools derives the keys of idempotency from it.
        os.environ["AWS_LAMBDA_FUNCTION_NAME"] = function.name
        os.environ["AWS_LAMBDA_FUNCTION_VERSION"] = function.version
        for variable, value in _as_in_lambda().items():
            os.environ.setdefault(variable, value)
        before = signal.getsignal(signal.SIGTERM)
        handler = load(_target(self.handler or ""))
        if signal.getsignal(signal.SIGTERM) not in (before, signal.SIG_DFL, signal.SIG_IGN):
            log.warning(
                "the module of the Lambda handler sets a function for SIGTERM, which is not called: the worker waits "
                "for the running call, and then the process ends. Do: atexit.register(...) for what is to be done then."
            )
        return lambda_processor(
            handler,
            report_batch_item_failures=self.report_batch_item_failures or self.mapping.reports_failures,
            handler_is_thread_safe=self.handler_is_thread_safe,
            concurrency=self.concurrency or 1,
            function_timeout=self.function_timeout or FUNCTION_TIMEOUT,
            filter_criteria=self.mapping.filter_criteria,
            window=self.mapping.window if self.window is None else checked_seconds(self.window),
            invoke_identity_arn=identity_arn(config, (settings.specs or {}).get("kinesis")),
            function_name=name,
        )

    @property
    def _name(self) -> str:
        """Name or ARN of the function, of the first source that has one; "" where none has."""
        if self.function_name:
            return self.function_name
        name, version = (os.environ.get(f"AWS_LAMBDA_FUNCTION_{what}", "") for what in ("NAME", "VERSION"))
        if name and version and ":" not in name:
            return f"{name}:{version}"
        return name or self.mapping.function


def _target(handler: str) -> str:
    """Return MODULE:HANDLER for that, or for Lambda's own form FOLDER/MODULE.HANDLER. Raises click.UsageError."""
    if ":" in handler:
        return handler
    module, dot, name = handler.replace("/", ".").rpartition(".")
    if not (module and dot and name):
        raise click.UsageError(
            f"--lambda {handler!r} is not MODULE:HANDLER, such as shop:lambda_handler. Lambda's own form, "
            "shop.lambda_handler, is understood, too."
        )
    return f"{module}:{name}"


def _as_in_lambda() -> dict[str, str]:
    """Return variables of the environment of a function.

    LAMBDA_TASK_ROOT: Powertools awaits in the event loop of the thread only where it finds that, and else makes a new
    loop for each call. _X_AMZN_TRACE_ID: then the X-Ray SDK takes its segment from it, and warns of each call without
    one, those of the worker, too. Nothing is sampled, as in a function without active tracing.
    """
    return {
        "LAMBDA_TASK_ROOT": os.getcwd(),
        "_X_AMZN_TRACE_ID": f"Root=1-{0:08x}-{0:024x};Parent={0:016x};Sampled=0",
    }


_option = option_in("Lambda options")
_OPTIONS = (
    _option(
        "--lambda",
        "handler",
        metavar="MODULE:HANDLER",
        help="Run the handler of a Lambda function, unchanged.",
    ),
    _option(
        "--function-name",
        "function_name",
        metavar="NAME",
        help="Name or ARN of the Lambda function, for the context and AWS_LAMBDA_FUNCTION_NAME (default: that "
        "variable, the function of --esm, the application).",
    ),
    _option(
        "--esm",
        "esm",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read options from the JSON of `aws lambda get-event-source-mapping`.",
    ),
    _option(
        "--function-timeout",
        "function_timeout",
        type=Duration(minimum=1.0, maximum=86_400),
        metavar="DURATION",
        help="Time that the context counts down from (default: 900s). A longer call is not ended.",
    ),
    _option(
        "--handler-is-thread-safe",
        "handler_is_thread_safe",
        is_flag=True,
        help="Call the handler for several shards at the same time, in threads: only if calls share nothing that they "
        "change. Without it there is one call at a time in one thread.",
    ),
    _option(
        "--no-deaggregate",
        "no_deaggregate",
        is_flag=True,
        help="Hand aggregated (KPL) records to the handler as they are.",
    ),
    _option(
        "--report-batch-item-failures",
        "report_batch_item_failures",
        is_flag=True,
        help="Read batchItemFailures in the response; without it the response is ignored.",
    ),
    _option(
        "--window",
        "window",
        type=Duration(minimum=1.0, maximum=900.0),
        metavar="DURATION",
        help="Call the handler, or a function of MODULE:NAME, in tumbling windows of so many whole seconds (to 900s).",
    ),
    _option(
        "--concurrency",
        "concurrency",
        type=click.IntRange(1, 256),
        metavar="N",
        help="Call a function, or a thread-safe Lambda handler, for up to N partition keys of a shard at a time.",
    ),
)


lambda_options = gathered("function", LambdaFunction, _OPTIONS)
"""Decorator: the options of `LambdaFunction`, handed to the command as one `function`."""
