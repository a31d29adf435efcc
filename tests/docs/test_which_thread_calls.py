"""The table "Which thread calls" of docs/reference/configuration.md: each form is run, and noted where it is called.

Rows and cells are read from the page. What a cell says of a place is checked by the function of that cell in `PLACES`.
"""

import asyncio
import contextvars
import json
import os
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pytest
import thread_forms
from doc_pages import table_under
from thread_forms import STARTS, TENANT, here, note

from pykcl import ProcessorFailed, Worker, lambda_processor
from tests.program import Program

ROWS = {form: tuple(cells) for form, *cells in table_under("docs/reference/configuration.md", "form")}
PHASES = "start", "call", "end"
RECORDS = 20


# -- running a form ------------------------------------------------------------------------------------------------


@dataclass
class Course:
    """Notes of one run of a form. is_command: under a command of pykcl, in a process of its own."""

    notes: list[dict]
    is_command: bool = False

    def where(self, phase):
        """Return shard -> its threads, as (process, thread, event loop)."""
        found = {}
        for one in self.of(phase):
            found.setdefault(one["shard"], set()).add((one["process"], one["thread"], one["loop"]))
        return found

    def of(self, phase):
        return [one for one in self.notes if one["phase"] == phase]

    def everywhere(self, phase):
        return set().union(*self.where(phase).values())


class Runner:
    """Runs forms over a stream of two shards; it gives up what they have noted."""

    def __init__(self, kinesis, folder):
        self.kinesis, self.folder, self.file = kinesis, folder, folder / "notes"
        kinesis.create_stream("orders", 2)
        self.put()

    def put(self):
        self.kinesis.put("orders", *range(RECORDS))

    def notes(self):
        """Whole lines alone: somebody may be writing."""
        text = self.file.read_text() if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def has_called(self, shards=2):
        """Each shard twice: with lanes in two threads then."""
        calls = Counter(one["shard"] for one in Course(self.notes()).of("call"))
        return len(calls) == shards and min(calls.values()) > 1

    def by_hand(self, run):
        """Call run(is_over) in a thread that is not the main one. It is to return soon after is_over() is true."""

        def body():
            note("caller")
            with suppress(ProcessorFailed):
                run(self.has_called)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(body).result(300)
        return Course(self.notes())

    def worker(self, processor, application="orders-app", **options):
        options = {"batch_size": 2, **STARTS, **options}
        return Worker(application, stream="orders", processor=processor, **options)

    def run(self, processor, **options):
        """Call `Worker.run` in a thread that is not the main one, and stop the worker."""
        worker = self.worker(processor, **options)

        def run(is_over):
            with ThreadPoolExecutor(1) as pool:
                stops = pool.submit(lambda: (wait(is_over), worker.stop()))
                worker.run(tune_gc=False)
                stops.result(300)

        return self.by_hand(run)

    def started_twice(self, processor):
        """Without `run`: two workers, one after the other, each of an application of its own."""
        note("caller")
        for number in (1, 2):
            worker = self.worker(processor, f"app-{number}")
            worker.start()
            wait(lambda shards=2 * number: self.has_called(shards))
            worker.stop()
        return Course(self.notes())

    def command(self, *words):
        """`pykcl` with these words, until every shard was called for, and SIGTERM."""
        program = Program(self.folder, "-m", "pykcl.cli", *words)
        try:
            program.wait(self.has_called, "two calls for each shard", 300)
            assert program.stop() == 0
        finally:
            program.end()
        return Course(self.notes(), is_command=True)


def wait(done):
    pause = threading.Event()
    for _ in range(6000):
        if done():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come")


@pytest.fixture
def runner(kinesis, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, filter(None, sys.path))))
    return Runner(kinesis, tmp_path)


START = ("--stream", "orders", "--start", "TRIM_HORIZON", "--option", "batch_size=2")
PROPERTIES = """
executableName = python3 program.py
streamName = orders
applicationName = orders-app
initialPositionInStream = TRIM_HORIZON
AwsCredentialsProvider = EnvironmentVariableCredentialsProvider
regionName = us-east-1
maxRecords = 2
metricsLevel = NONE
idleTimeBetweenReadsInMillis = 200
"""
OF_KCLPY = """
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
from thread_forms import note

class Orders(processor.RecordProcessorBase):
    def initialize(self, given):
        self.shard = given.shard_id
    def process_records(self, given):
        note("call", self.shard)
    def lease_lost(self, given):
        pass
    def shard_ended(self, given):
        given.checkpointer.checkpoint()
    def shutdown_requested(self, given):
        given.checkpointer.checkpoint()

note("start")
kcl.KCLProcess(Orders()).run()
"""
CHILD = """
import json, sys
from thread_forms import note

note("start")
for line in sys.stdin:
    message = json.loads(line)
    shard = message.get("shardId") or shard
    if message["action"] in ("processRecords", "shutdownRequested"):
        note("call" if message["action"] == "processRecords" else "end", shard)
    print(json.dumps({"action": "status", "responseFor": message["action"]}), flush=True)
"""


def run_file(runner, program, *words):
    (runner.folder / "program.py").write_text(program)
    (runner.folder / "kcl.properties").write_text(PROPERTIES.replace("python3", sys.executable))
    return runner.command(*words, "-p", "kcl.properties")


def made_for(tenant, function):
    """What `lambda_processor` returns where the context variable has this value."""

    def make():
        TENANT.set(tenant)
        return lambda_processor(function)

    return contextvars.copy_context().run(make)


def safe(function=thread_forms.lambda_handler, **options):
    return lambda_processor(function, handler_is_thread_safe=True, **options)


RUNS = {
    "class or factory": {
        "by hand": lambda runner: runner.run(thread_forms.Orders),
        "pykcl run": lambda runner: runner.command(
            "run", "thread_forms:Orders", "--app", "class-app", *START
        ),
    },
    "function, `handler(…)`, `@app.stream`": {
        "by hand": lambda runner: runner.by_hand(
            lambda is_over: thread_forms.plain_app(is_over=is_over).run()
        ),
        "pykcl run": lambda runner: runner.command("run", "thread_forms:app"),
    },
    "`concurrency=`, plain `def`": {
        "by hand": lambda runner: runner.by_hand(
            lambda is_over: thread_forms.app_of_lanes(is_over=is_over).run()
        ),
    },
    "`async def`": {
        "by hand": lambda runner: runner.by_hand(
            lambda is_over: thread_forms.async_app(is_over=is_over).run()
        ),
    },
    "`lambda_processor(…)`, `pykcl run --lambda`": {
        "by hand": lambda runner: runner.run(lambda_processor(thread_forms.lambda_handler)),
        "pykcl run": lambda runner: runner.command(
            "run", "--lambda", "thread_forms.lambda_handler", "--app", "lambda-app", *START
        ),
    },
    "the same after `worker.start()`": {
        "by hand": lambda runner: runner.started_twice(made_for("alice", thread_forms.lambda_handler)),
    },
    "`handler_is_thread_safe=True`, `--handler-is-thread-safe`": {
        "one call a shard": lambda runner: runner.run(safe()),
        "concurrency": lambda runner: runner.run(
            safe(thread_forms.lambda_handler_in_two(), concurrency=2), batch_size=RECORDS
        ),
    },
    "`Consumer`": {"by hand": lambda runner: runner.by_hand(thread_forms.consume)},
    "`AsyncConsumer`": {
        "by hand": lambda runner: runner.by_hand(
            lambda is_over: asyncio.run(thread_forms.consume_async(is_over))
        ),
    },
    "`pykcl run --kclpy`": {
        "command": lambda runner: run_file(runner, OF_KCLPY, "run", "--kclpy", "program.py"),
    },
    "`pykcl multilangd`": {"command": lambda runner: run_file(runner, CHILD, "multilangd")},
}
"""The form of a row -> ways to run it. Each takes a Runner and returns a Course."""


# -- what a cell says ----------------------------------------------------------------------------------------------


def of_shards(course, phase):
    """Each shard has one thread, and no other one."""
    where = course.where(phase)
    assert len(where) == 2
    assert [len(threads) for threads in where.values()] == [1, 1]
    assert len(course.everywhere(phase)) == 2
    assert not course.everywhere(phase) & course.everywhere("caller")
    assert not any(one["is_main"] or one["loop"] for one in course.of(phase))


def of_lanes(course, phase):
    """Each shard has several threads at the same time; they are those of the process."""
    where = course.where(phase)
    assert len(where) == 2
    assert min(len(threads) for threads in where.values()) > 1
    assert not course.everywhere(phase) & course.everywhere("caller")
    assert not any(one["is_main"] or one["loop"] for one in course.of(phase))


def of_shards_or_lanes(course, phase):
    (of_lanes if len(max(course.where(phase).values(), key=len)) > 1 else of_shards)(course, phase)


def of_the_caller(course, phase):
    """The thread that calls `run`, which is the main one under a command alone."""
    assert len(course.everywhere(phase)) == 1
    assert all(one["is_main"] == course.is_command for one in course.of(phase))
    if not course.is_command:
        assert course.everywhere(phase) <= course.everywhere("caller")


def of_the_callers_loop(course, phase):
    of_the_caller(course, phase)
    assert all(one["loop"] for one in course.of(phase))


def of_the_loop(course, phase):
    (found,) = course.everywhere(phase)
    assert found[2] is not None
    assert found not in course.everywhere("caller")
    assert not any(one["is_main"] for one in course.of(phase))


def of_one_thread_of_the_process(course, phase):
    """One thread for four shards of two workers, with the context in which the processor was made."""
    assert len(course.where(phase)) == 4
    assert len(course.everywhere(phase)) == 1
    assert not course.everywhere(phase) & course.everywhere("caller")
    assert {one["tenant"] for one in course.of(phase)} == {"alice"}


def of_the_main_thread(course, phase):
    assert course.of(phase)
    assert all(one["is_main"] for one in course.of(phase))


def of_the_child(course, phase):
    """A process for each shard."""
    of_the_main_thread(course, phase)
    assert len({one["process"] for one in course.of(phase)}) == 2


def of_the_start(course, phase):
    """Where the form has started, for each shard if that was."""
    assert course.everywhere(phase) == course.everywhere("start")
    if course.where("start").keys() != {""} != course.where(phase).keys():
        assert course.where(phase) == course.where("start")


def nowhere(course, phase):
    assert course.of(phase) == []


PLACES = {
    "": nowhere,
    "`__init__` and `initialize`: the thread of its shard": of_shards,
    "`@app.on_start`: the thread that calls `app.run()`, under `pykcl run` the main thread": of_the_caller,
    "`async def` of `@app.on_start`: the event loop of the process, in a thread of its own": of_the_loop,
    "the thread of your program": of_the_caller,
    "the event loop of your program": of_the_callers_loop,
    "the program: the main thread": of_the_main_thread,
    "the child process: its main thread": of_the_child,
    "the thread of the shard": of_shards,
    "the threads of the shards": of_shards,
    "threads of the lanes; the next record may come in another one": of_lanes,
    "for all shards in turn the thread that calls `Worker.run()`, under `pykcl run` the main thread": of_the_caller,
    "for all shards in turn one thread, which lives as long as the process; it has the context variables of the call of "
    "`lambda_processor`": of_one_thread_of_the_process,
    "the threads of the shards; with `concurrency` those of the lanes": of_shards_or_lanes,
    "the same thread": of_the_start,
    "the same thread: the loop is yours": of_the_start,
    "the same loop": of_the_start,
    "`@app.on_stop`: as `on_start`": of_the_start,
}
"""A cell of the table -> the check of what it says."""
FORMS = list(ROWS)
CELLS = {
    form: [FORMS[number - 1] and ROWS[FORMS[number - 1]][column] if cell == "as above" else cell for column, cell in enumerate(cells)]
    for number, (form, cells) in enumerate(ROWS.items())
}  # fmt: skip


def test_every_row_of_the_page_is_run_and_every_cell_of_it_is_checked():
    assert RUNS.keys() == ROWS.keys()
    assert {cell for cells in CELLS.values() for cell in cells} == PLACES.keys()
    assert {len(cells) for cells in ROWS.values()} == {len(PHASES)}


@pytest.mark.parametrize(("form", "way"), [(form, way) for form, ways in RUNS.items() for way in ways])
def test_a_form_is_called_in_the_threads_that_its_row_names(runner, form, way):
    course = RUNS[form][way](runner)
    for phase, cell in zip(PHASES, CELLS[form], strict=True):
        PLACES[cell](course, phase)
    if course.is_command and course.of("import") and form != "`pykcl multilangd`":
        of_the_main_thread(course, "import")


# -- the text below the table --------------------------------------------------------------------------------------


def test_letters_are_kept_in_the_thread_of_their_shard_and_events_heard_in_one_of_their_own(runner):
    class Failing(thread_forms.Orders):
        def process_records(self, batch):
            super().process_records(batch)
            raise ValueError

    def keep(letters):
        for letter in letters:
            note("letter", letter.records[0].shard_id)

    course = runner.run(Failing, max_attempts=1, dead_letters=keep, on_event=lambda _: note("event"))
    of_shards(course, "call")
    assert course.where("letter") == course.where("call") == course.where("start")
    assert len(course.everywhere("event")) == 1
    assert not course.everywhere("event") & (course.everywhere("call") | course.everywhere("caller"))


def test_a_place_that_a_cell_does_not_name_is_seen():
    notes = [
        {"phase": phase, "shard": shard, **here()} for phase in ("caller", "call") for shard in ("a", "b")
    ]
    for check in {*PLACES.values()} - {of_the_main_thread}:
        with pytest.raises((AssertionError, ValueError)):
            check(Course(notes), "call")
