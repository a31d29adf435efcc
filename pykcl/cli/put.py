"""`pykcl put`: put lines of text into a stream, each of them once before the command ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import UnsupportedOperation
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from pykcl.cli.console import print_notice, quiet_when_unread, say
from pykcl.cli.errors import ExitCode, usage
from pykcl.cli.options import Verb
from pykcl.cli.target import (
    admin_for,
    aws_options,
    complete_streams,
    summary_of,
)
from pykcl.errors import ConfigError, PyKclError
from pykcl.runtime import SignalEvent

if TYPE_CHECKING:
    from pykcl.operate.aws.clients import OperatorClients
    from pykcl.operate.streams.formats import InputForm, LineReader
    from pykcl.operate.streams.writer import StreamWriter
    from pykcl.runtime import Event

PATIENCE = 0.2
"""Seconds after which `chunks_of_lines` yields an empty list if there are no lines."""
LONGEST_LINE = 24 * 1024 * 1024
"""Bytes; no record could hold more, not even in base64."""
_CHUNK = 1 << 16


class LineTooLong(Exception):
    """A line without end. number: of the line, from 1."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def opened(path: Path | None) -> BinaryIO:
    """Open the file until the command ends, or standard input. Raises ConfigError if it cannot be read."""
    if path is None or str(path) == "-":
        if sys.stdin is None:
            raise ConfigError("Standard input is closed. Do: pipe lines into this command, or name a --file.")
        return sys.stdin.buffer
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read ({error.strerror}). Do: name a file that can."
        ) from None
    click.get_current_context().call_on_close(file.close)
    return file


def size_of(source: BinaryIO) -> int | None:
    """Return the size of a regular file; None for anything else."""
    import stat

    try:
        found = os.fstat(source.fileno())
    except (OSError, UnsupportedOperation):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def chunks_of_lines(source: BinaryIO, is_over: Callable[[], bool]) -> Iterator[list[bytes]]:
    """The lines, without their line feeds, of one read after the other; none while there is nothing.

    The last line may lack its line feed. Ends at the end of input, or soon after `is_over`.
    Raises LineTooLong, and ConfigError when the input cannot be read on.
    """
    rest: list[bytes] = []
    held = number = 0
    while not is_over():
        try:
            chunk = _read(source)
        except OSError as error:
            raise ConfigError(f"The input cannot be read on ({error.strerror or error}).") from None
        if chunk is None:
            yield []
            continue
        if not chunk:
            if rest:
                yield [b"".join(rest)]
            return
        first, *more = chunk.split(b"\n")
        rest.append(first)
        held += len(first)
        if held > LONGEST_LINE:
            raise LineTooLong(number + 1)
        lines = []
        if more:
            lines = [b"".join(rest), *more[:-1]]
            rest = [more[-1]] if more[-1] else []
            held = len(more[-1])
        number += len(lines)
        yield lines


def _read(source: BinaryIO) -> bytes | None:
    """Return what there is to read, b"" at the end, None if nothing came within PATIENCE."""
    try:
        descriptor = source.fileno()
    except (OSError, UnsupportedOperation):
        return source.read(_CHUNK)
    # Windows can wait for sockets only.
    if os.name != "nt" and not select.select([descriptor], [], [], PATIENCE)[0]:
        return None
    # Past Python's buffer, which nobody has read from: it would hide from select what it already holds.
    return os.read(descriptor, _CHUNK)


_REDRAW = 0.2
"""Seconds between two drawings of the progress."""


@dataclass(slots=True)
class _Course:
    """The progress through the input. bad: lines skipped with --on-bad skip. trouble: the reason of an early end."""

    line: int = 0
    bad: int = 0
    trouble: str = ""
    remedy: str = ""
    is_stopped: bool = False


@click.command(cls=Verb)
@click.argument("stream", metavar="STREAM", shell_complete=complete_streams)
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the lines from a file instead of standard input.",
)
@click.option(
    "--input",
    "form",
    type=click.Choice(("lines", "jsonl", "records")),
    default="lines",
    show_default=True,
    help="Take each line as a payload, as a payload in JSON, or as a record of `tail -o jsonl`.",
)
@click.option(
    "--key", metavar="TEXT", help="Partition key of every record.  [default: random for each record]"
)
@click.option(
    "--key-field",
    metavar="NAME",
    help="Take the partition key from this field of the line's JSON object, such as user.id.",
)
@click.option(
    "-K",
    "--key-delimiter",
    metavar="TEXT",
    help="Take the partition key from the line, in front of this text (as kcat -K).",
)
@click.option(
    "--aggregate",
    is_flag=True,
    help="Pack the records into KPL aggregates, as the Kinesis Producer Library does.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Put at most N records a second."
)
@click.option("--from-line", type=click.IntRange(1), default=1, metavar="N", help="Start at line N.")
@click.option(
    "--on-bad",
    type=click.Choice(("stop", "skip")),
    default="stop",
    show_default=True,
    help="Stop at a line that is not a record, or report and skip it.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the count and errors.")
@aws_options
def put(
    stream: str,
    path: Path | None,
    form: InputForm,
    key: str | None,
    key_field: str | None,
    key_delimiter: str | None,
    aggregate: bool,
    rate: float | None,
    from_line: int,
    on_bad: str,
    quiet: bool,
    clients: OperatorClients,
) -> None:
    """Put lines of text into a stream as records.

    Each line is a record; empty lines are skipped. Records that Kinesis throttles are sent again until they are in the
    stream; then their number is printed. A record whose request timed out is sent again, too, and may be in the stream
    twice; the command then says so. Ctrl-C puts what was read so far and prints the last line that was
    stored; a second Ctrl-C drops what is still being sent again.
    """
    from pykcl.operate.streams.formats import LineReader
    from pykcl.runtime import SystemRuntime

    runtime = SystemRuntime()
    random = runtime.random()
    with usage():
        # Once with the usual size, so that wrong options are reported before AWS is asked.
        LineReader(form, lambda: "", 0, key, key_field, key_delimiter)
        source = opened(path)
    admin = admin_for(clients, stream)
    summary = summary_of(admin, stream)
    name = summary.arn or stream
    reader = LineReader(
        form, lambda: f"{random.getrandbits(64):016x}", summary.largest_record, key, key_field, key_delimiter
    )
    from pykcl.operate.streams.writer import Outlet, StreamWriter

    stop, give_up = SignalEvent(), SignalEvent()
    with _ended_by_signals(stop, give_up):
        putting = StreamWriter(
            Outlet.of(admin, name, summary),
            runtime,
            stop=stop,
            give_up=give_up,
            on_notice=(lambda _: None) if quiet else print_notice,
            aggregate=aggregate,
            rate=rate,
        )
        course = _Course()
        try:
            with _progress(source, quiet) as progress:
                _pump(source, reader, putting, course, stop, progress, from_line, skip_bad=on_bad == "skip")
                putting.flush()
        except PyKclError as error:
            course.trouble = str(error)
            course.remedy = ""
        finally:
            putting.close()
    sys.exit(_conclude(summary.name, putting, course))


def _pump(
    source: BinaryIO,
    reader: LineReader,
    putting: StreamWriter,
    course: _Course,
    stop: Event,
    progress: Callable[[int, int], None],
    from_line: int,
    *,
    skip_bad: bool,
) -> None:
    """Put the lines from the first to the last, the first bad one, or Ctrl-C."""
    from pykcl.operate.streams.formats import BadLine

    try:
        drawn_at, size = time.monotonic(), 0
        for lines in chunks_of_lines(source, stop.is_set):
            for line in lines:
                if stop.is_set():
                    break
                course.line += 1
                size += len(line) + 1
                if course.line >= from_line:
                    _take(course.line, line, reader, putting, course, skip_bad=skip_bad)
                # Also within what was read at once, which a low rate may take minutes for.
                if time.monotonic() - drawn_at > _REDRAW:
                    progress(size, putting.tally.put)
                    drawn_at, size = time.monotonic(), 0
            putting.raise_trouble()
        progress(size, putting.tally.put)
    except BadLine as error:
        course.line -= 1
        course.trouble = f"{error}."
        course.remedy = f"Do: correct it, then --from-line {error.number}; or --on-bad skip."
    except LineTooLong as error:
        course.trouble = f"line {error.number} is larger than any record may be."
        course.remedy = "Do: check that these are lines."
    course.is_stopped = stop.is_set()


def _take(
    number: int, line: bytes, reader: LineReader, putting: StreamWriter, course: _Course, *, skip_bad: bool
) -> None:
    from pykcl.operate.streams.formats import BadLine

    try:
        record = reader.record(number, line)
    except BadLine as error:
        if not skip_bad:
            raise
        course.bad += 1
        print_notice(f"skipped: {error}")
        record = None
    if record is None:
        putting.skip_line(number)
    else:
        putting.take(number, record)


def _conclude(stream: str, putting: StreamWriter, course: _Course) -> int:
    """Print what was put, and what was not; return the exit code."""
    tally = putting.tally
    with quiet_when_unread():
        say(f"put {tally.put} records into {stream}")
    if tally.sent_again:
        print_notice(f"sent again after a refusal: {tally.sent_again}")
    if tally.perhaps_twice:
        print_notice(
            f"up to {tally.perhaps_twice} of them may be in twice: their request got no answer and was sent again"
        )
    if course.bad:
        print_notice(f"{course.bad} lines were skipped")
    if course.trouble:
        print_notice(course.trouble)
    if course.trouble or course.is_stopped:
        done = putting.complete_through
        partly = ", and some after them" if done < course.line else ""
        ended = "" if course.trouble else "stopped; "
        remedy = course.remedy or f"Do: go on with --from-line {done + 1}."
        print_notice(f"{ended}lines 1 to {done} are in{partly}. {remedy}" if done else f"{ended}{remedy}")
    if course.is_stopped and not course.trouble:
        return 128 + signal.SIGINT
    return ExitCode.FAILED if course.trouble or course.bad else ExitCode.OK


@contextmanager
def _ended_by_signals(stop: SignalEvent, give_up: SignalEvent) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends reading, the second also sending again: never in the middle of our accounts."""
    from pykcl.runtime import in_main_thread
    from pykcl.worker.signals import stop_signals_go_to

    def hear(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            give_up.set()
        stop.set()

    if not in_main_thread():
        yield
        return
    with stop_signals_go_to(hear):
        yield


@contextmanager
def _progress(source: BinaryIO, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Called with (bytes read, records put). Draws only on a terminal, and not over what is being typed there."""
    if quiet or not sys.stderr.isatty() or source.isatty():
        yield lambda _size, _put: None
        return
    bar: Any
    with click.progressbar(length=size_of(source), label="put", file=sys.stderr) as bar:

        def show(size: int, put: int) -> None:
            bar.label = f"put {put:,}"
            bar.update(size)

        yield show
