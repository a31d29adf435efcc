"""`pykcl run MODULE:CLASS`: one worker in the foreground."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from pykcl.cli.exit_codes import exit_codes
from pykcl.cli.options import from_arguments, from_environment
from pykcl.config import Config

LOCAL_SHARDS = 4


@click.command()
@click.argument("target", metavar="MODULE:CLASS")
@click.option("--app", "application", help="Application name: its lease table, shared by the whole fleet.")
@click.option("--stream", help="Stream name or ARN.")
@click.option("--start", help="Where to start without leases: LATEST, TRIM_HORIZON or an ISO 8601 time.")
@click.option("--worker-id", help="Unique per process; by default host:pid:random.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Any other option of Config.")
@click.option(
    "--local", "use_local", is_flag=True, help="Against an embedded local AWS, started with the worker."
)
@click.option("-v", "--verbose", is_flag=True, help="Log at DEBUG.")
def run(
    target: str,
    application: str | None,
    stream: str | None,
    start: str | None,
    worker_id: str | None,
    options: tuple[str, ...],
    use_local: bool,
    verbose: bool,
) -> None:
    """Run a record processor as one worker of a fleet.

    MODULE:CLASS names a RecordProcessor subclass or a zero-argument factory, importable from the current folder.
    Every option of Config can also be given as --option NAME=VALUE or as environment variable PYKCL_NAME.

    Ctrl-C or SIGTERM finishes the running batch, checkpoints and releases the leases; a second one forces.
    """
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
    )
    for chatty in ("botocore", "boto3", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    given = {"application": application, "stream": stream, "start": start, "worker_id": worker_id}
    with exit_codes():
        config = _config({name: value for name, value in given.items() if value is not None}, options)
        processor = _load(target)
        with _local_aws(config) if use_local else _nothing():
            from pykcl.worker.worker import Worker

            Worker(processor=processor, config=config).run()


def _config(given: dict[str, Any], options: tuple[str, ...]) -> Config:
    merged = {**from_environment(os.environ), **from_arguments(options), **given}
    for name, flag in (("application", "--app"), ("stream", "--stream")):
        if name not in merged:
            raise click.UsageError(f"No {name}. Do: {flag} NAME, or set PYKCL_{name.upper()}.")
    return Config.from_options(merged)


def _load(target: str) -> Any:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or module_name.startswith(".") or not attribute:
        raise click.UsageError(f"{target!r} is not MODULE:CLASS, such as examples.orders:Orders.")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise click.UsageError(
            f"There is no module {module_name!r} here or among what is installed."
        ) from None
    try:
        found = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        public = ", ".join(name for name in vars(module) if name[0].isupper()) or "nothing"
        raise click.UsageError(f"{module_name} has no {attribute!r}. It has: {public}.") from None
    return found


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _local_aws(config: Config) -> Iterator[None]:
    from pykcl.cli.local import local_environment, start_local_aws

    with start_local_aws(port=0) as aws:
        aws.kinesis.create_stream(config.stream_name, LOCAL_SHARDS)
        # A proxy of the surroundings would be asked for 127.0.0.1 too.
        os.environ.update(local_environment(aws.url), NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
        click.echo(
            f"local AWS at {aws.url}, stream {config.stream_name} with {LOCAL_SHARDS} shards", err=True
        )
        yield
