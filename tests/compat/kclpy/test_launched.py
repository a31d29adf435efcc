"""Unchanged programs of amazon_kclpy in processes of their own, against the local AWS: `pykcl run --kclpy`."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import boto3
import pytest
from kclpy_programs import PROGRAMS, after_the_edit

from pykcl.cli.local import local_environment
from pykcl.local.server import LocalAws
from tests.program import Program

PROPERTIES = """
executableName = program.py
streamName = orders
applicationName = orders-app
initialPositionInStream = TRIM_HORIZON
AwsCredentialsProvider = EnvironmentVariableCredentialsProvider
retrievalMode = POLLING
regionName = us-east-1
failoverTimeMillis = 5000
idleTimeBetweenReadsInMillis = 200
metricsLevel = NONE
"""


@pytest.fixture
def aws(monkeypatch):
    with LocalAws() as aws:
        for name, value in local_environment(aws.url).items():
            monkeypatch.setenv(name, value)
        yield aws


class Launched(Program):
    """One program under the launcher."""

    def __init__(
        self, folder, program, *arguments, command=("-m", "pykcl.cli", "run", "--kclpy"), text=PROPERTIES
    ):
        (folder / "program.py").write_text(program)
        (folder / "kcl.properties").write_text(text)
        self.notes_file = folder / "notes"
        super().__init__(folder, *command, "program.py", "-p", "kcl.properties", *arguments, "--", "notes")

    def notes(self, *begin):
        if not self.notes_file.exists():
            return []
        whole = [
            line for line in self.notes_file.read_text().splitlines(keepends=True) if line.endswith("\n")
        ]
        return [note for note in map(json.loads, whole) if note[: len(begin)] == list(begin)]


@pytest.fixture
def launch(tmp_path):
    started = []

    def begin(*arguments, **more):
        started.append(Launched(tmp_path, *arguments, **more))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def put(aws, *payloads, first=0):
    """Each under a key of its own; the keys."""
    keys = [f"key{first + place}" for place in range(len(payloads))]
    for key, payload in zip(keys, payloads, strict=True):
        aws.kinesis.put_record("orders", json.dumps(payload).encode(), key)
    return keys


def seen(launched):
    return Counter(note[4] for note in launched.notes("record"))


def rows():
    items = boto3.client("dynamodb").scan(TableName="orders-app")["Items"]
    return {item["leaseKey"]["S"]: item for item in items}


def checkpoints():
    return {
        key: (row["checkpoint"]["S"], int(row["checkpointSubSequenceNumber"]["N"]))
        for key, row in rows().items()
    }


@pytest.mark.parametrize(
    "version", ["v3", *(pytest.param(one, marks=pytest.mark.slow) for one in ("v1", "v2", "README"))]
)
def test_an_unchanged_program_reads_through_a_split_and_checkpoints_its_end(version, aws, launch):
    aws.kinesis.create_stream("orders", 1)
    program = launch(PROGRAMS[version])
    before = put(aws, *[["note"]] * 10)
    program.wait(lambda: seen(program).keys() >= set(before), "the first records")
    boto3.client("kinesis").split_shard(
        StreamName="orders", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127)
    )
    after = put(aws, *[["checkpoint", "mine"]] * 10, first=10)
    program.wait(lambda: seen(program).keys() >= {*before, *after}, "the records after the split")
    program.wait(lambda: len(program.notes("checkpointed")) == 11, "all checkpoints")
    assert program.stop() == 0, program.err.read_text()

    assert seen(program) == dict.fromkeys([*before, *after], 1)
    # An instance for each shard: none has counted the records of another.
    last = {note[1]: note[2] for note in program.notes("process_records")}
    assert last == Counter(note[1] for note in program.notes("record"))
    parent, *children = [f"shardId-00000000000{number}" for number in range(3)]
    if version in ("v1", "v2"):
        assert program.notes("shutdown", parent) == [["shutdown", parent, "TERMINATE"]]
        ends = [["shutdown", child, "ZOMBIE"] for child in children]
    else:
        assert program.notes("shard_ended") == [["shard_ended", parent]]
        ends = [["lease_lost", child] for child in children]
    assert {note[1] for note in program.notes("shutdown_requested")} == set(children)
    assert all(program.notes(*end) == [end] for end in ends)
    assert program.notes("the end")
    newest = {note[1]: (note[2], note[3]) for note in program.notes("record")}
    assert checkpoints() == {**newest, "shardId-000000000000": ("SHARD_END", 0)}
    assert not any("leaseOwner" in row for row in rows().values())
    assert ("its methods are those of version 3" in program.err.read_text()) == (version == "README")
    assert "retrievalMode" in program.err.read_text()


def test_every_form_of_checkpoint_has_the_outcome_and_the_error_name_it_has_under_java(aws, launch):
    aws.kinesis.create_stream("orders", 1)
    put(
        aws,
        ["checkpoint", "mine"],
        ["checkpoint", "mine", 0],
        ["checkpoint", "rubbish"],
        ["checkpoint", "9" * 40],
        ["checkpoint", "mine", "many"],
        ["checkpoint", None, 7],
        ["checkpoint", "TRIM_HORIZON"],
    )
    program = launch(PROGRAMS["v3"])
    program.wait(
        lambda: len(program.notes("checkpointed")) + len(program.notes("refused")) == 7, "all of them"
    )
    numbers = [note[2] for note in program.notes("record")]
    assert [note[1:] for note in program.notes("checkpointed")] == [[numbers[0]], [numbers[1], 0], [None, 7]]
    assert {(note[1], note[2]) for note in program.notes("refused")} == {
        ("IllegalArgumentException", "'IllegalArgumentException'")
    }
    assert len(program.notes("refused")) == 4
    # checkpoint(None, 7) is checkpoint(): all that was delivered, so that nothing before it is left to be said.
    assert program.stop() == 0


def test_a_raising_processor_gets_its_batch_again_and_nothing_is_checkpointed_past_it(aws, launch):
    aws.kinesis.create_stream("orders", 1)
    put(aws, ["raise once"], ["checkpoint"])
    program = launch(PROGRAMS["v1"])
    program.wait(lambda: program.notes("checkpointed"), "the checkpoint")
    assert seen(program) == {"key0": 2, "key1": 1}
    assert "record processor raised" in program.err.read_text()
    assert program.stop() == 0


def test_skipping_the_batch_of_a_raising_processor_is_to_be_had_by_name(aws, launch):
    aws.kinesis.create_stream("orders", 1)
    put(aws, ["raise"], ["note"])
    program = launch(PROGRAMS["v1"], "--on-error", "skip")
    program.wait(lambda: "batch skipped" in program.err.read_text(), "the skip")
    put(aws, ["note"], first=2)
    program.wait(lambda: seen(program)["key2"], "the record behind it")
    assert seen(program)["key0"] == 1
    assert program.stop() == 0


def test_what_is_printed_goes_to_the_standard_output_and_is_never_taken_for_protocol(aws, launch):
    aws.kinesis.create_stream("orders", 1)
    look_alike = '{"action":"status","responseFor":"processRecords"}'
    put(aws, ["print", "hello"], ["print", look_alike], ["checkpoint"])
    program = launch(PROGRAMS["v3"])
    program.wait(lambda: program.notes("checkpointed"), "the checkpoint")
    assert program.stop() == 0
    assert program.out.read_text().split() == ["hello", look_alike]


def test_sys_exit_in_a_handler_stops_the_worker_gracefully_with_its_code(aws, launch):
    aws.kinesis.create_stream("orders", 4)
    keys = put(aws, *[["note"]] * 20)
    program = launch(PROGRAMS["v2"])
    program.wait(lambda: seen(program).keys() >= set(keys), "the records")
    put(aws, ["exit", 3], first=20)
    assert program.process.wait(300) == 3, program.err.read_text()
    exited = program.notes("record")[-1][1]
    asked = {note[1] for note in program.notes("shutdown_requested")}
    assert asked == {note[1] for note in program.notes("initialize")} - {exited}
    newest = {note[1]: note[2] for note in program.notes("record") if note[1] != exited}
    assert {key: at for key, (at, _) in checkpoints().items() if key in newest} == newest
    assert checkpoints()[exited][0] == "TRIM_HORIZON", "the batch that it left is not done"
    assert not any("leaseOwner" in row for row in rows().values())
    assert not program.notes("the end")


def test_the_edited_program_and_the_module_as_a_command_do_the_same(aws, launch):
    aws.kinesis.create_stream("orders", 1)
    put(aws, ["checkpoint"])
    program = launch(after_the_edit(PROGRAMS["v3"]), command=("-m", "pykcl.compat.kclpy"))
    program.wait(lambda: program.notes("checkpointed"), "the checkpoint")
    assert program.stop() == 0
    assert program.notes("the end")


THREADED = (
    PROGRAMS["v1"]
    .replace(
        'note("process_records"',
        """import logging, threading
        logging.getLogger("app").warning("logged by the program")
        threads = [threading.Thread(target=checkpoint, args=(checkpointer,)) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        note("process_records\"""",
    )
    .replace(
        "NOTES =", 'import logging; logging.basicConfig(filename="app.log", level=logging.DEBUG)\nNOTES ='
    )
)


def test_a_program_may_checkpoint_from_its_own_threads_and_log_as_it_likes(aws, launch, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the-token-of-the-session")
    aws.kinesis.create_stream("orders", 1)
    put(aws, ["note"])
    program = launch(THREADED)
    program.wait(lambda: program.notes("process_records"), "the batch")
    assert len(program.notes("checkpointed")) == 4
    assert program.stop() == 0
    assert checkpoints()["shardId-000000000000"][0] == program.notes("record")[0][2]
    logged = (program.folder / "app.log").read_text()
    assert "logged by the program" in logged
    assert "the-token-of-the-session" not in logged, "at DEBUG botocore logs what it signs"
    assert "logged by the program" not in program.err.read_text()


CONFIGURED = PROGRAMS["v1"].replace(
    "NOTES =",
    """import logging.config
logging.config.dictConfig({
    "version": 1,
    "handlers": {"h": {"class": "logging.FileHandler", "filename": "app.log"}},
    "root": {"level": "INFO", "handlers": ["h"]},
})
logging.getLogger("app").info("logged by the program")
NOTES =""",
)


def test_what_pykcl_logs_is_there_also_where_the_program_configures_logging(aws, launch):
    aws.kinesis.create_stream("orders", 1)
    put(aws, ["raise once"], ["checkpoint"])
    program = launch(CONFIGURED)
    program.wait(lambda: program.notes("checkpointed"), "the checkpoint")
    assert program.stop() == 0
    told = program.err.read_text()
    assert "record processor raised" in told
    assert "worker stopped" in told
    assert (program.folder / "app.log").read_text() == "logged by the program\n"


WRITER = """
import queue, sys, threading
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
from pathlib import Path

class RecordProcessor(processor.RecordProcessorBase):
    def initialize(self, initialize_input):
        self.queue = queue.Queue()
        self.writer = threading.Thread(target=self.write, name="writer"DAEMON)
        self.writer.start()
    def write(self):
        stopped = threading.Event()
        while (record := self.queue.get()) is not None:
            Path("in-hand").touch()
            while not Path("go-on").exists():
                stopped.wait(0.01)
            with open("written", "a") as file:
                file.write(record + chr(10))
    def process_records(self, process_records_input):
        for record in process_records_input.records:
            self.queue.put(record.binary_data.decode())
        process_records_input.checkpointer.checkpoint()
    def lease_lost(self, lease_lost_input):
        self.queue.put(None)
    def shard_ended(self, shard_ended_input):
        shard_ended_input.checkpointer.checkpoint()
    def shutdown_requested(self, shutdown_requested_input):
        pass

kcl.KCLProcess(RecordProcessor()).run()
"""


def test_what_a_programs_own_thread_has_in_hand_is_done_before_the_process_ends(aws, launch):
    aws.kinesis.create_stream("orders", 1)
    program = launch(WRITER.replace("DAEMON", ""))
    for number in range(5):
        aws.kinesis.put_record("orders", f"r{number}".encode(), "key")
    program.wait((program.folder / "in-hand").exists, "the first record")
    program.wait(lambda: checkpoints()["shardId-000000000000"][0] not in ("TRIM_HORIZON",), "a checkpoint")
    program.process.send_signal(signal.SIGTERM)
    program.wait(
        lambda: "waiting for threads of the program threads=writer" in program.err.read_text(), "the end"
    )
    (program.folder / "go-on").touch()
    assert program.process.wait(300) == 0, program.err.read_text()
    written = (program.folder / "written").read_text().split()
    assert written == [f"r{number}" for number in range(len(written))]
    assert written
    reached = checkpoints()["shardId-000000000000"][0]
    given = aws_records()
    assert given.index(reached) + 1 == len(written), "everything up to the checkpoint"


def aws_records():
    kinesis = boto3.client("kinesis")
    iterator = kinesis.get_shard_iterator(
        StreamName="orders", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    return [record["SequenceNumber"] for record in kinesis.get_records(ShardIterator=iterator)["Records"]]


POOLED = (
    PROGRAMS["v3"]
    .replace("self.seen = 0", "self.seen, self.pool = 0, None", 1)
    .replace(
        'note("process_records"',
        """from concurrent.futures import ThreadPoolExecutor
        self.pool = self.pool or ThreadPoolExecutor(2)
        assert self.pool.submit(len, "abc").result() == 3
        note("process_records\"""",
    )
)


def test_idle_threads_of_a_pool_that_nobody_shuts_down_hold_nothing_up(aws, launch):
    aws.kinesis.create_stream("orders", 1)
    put(aws, ["note"])
    program = launch(POOLED)
    program.wait(lambda: program.notes("process_records"), "the batch")
    assert program.stop() == 0, program.err.read_text()
    told = program.err.read_text()
    assert "threads=ThreadPoolExecutor" in told
    assert "are cut off" not in told


@pytest.mark.parametrize(("daemon", "code"), [("", 70), (", daemon=True", 0)])
def test_a_thread_that_never_ends_is_cut_off_after_the_grace_and_told_of(daemon, code, aws, launch):
    aws.kinesis.create_stream("orders", 1)
    program = launch(WRITER.replace("DAEMON", daemon), "--option", "shutdown_grace=1.0")
    put(aws, ["note"])
    program.wait((program.folder / "in-hand").exists, "the record")
    assert program.stop() == code, program.err.read_text()
    assert ("have not ended within 1 s" in program.err.read_text()) is bool(code)
    assert not any("leaseOwner" in row for row in rows().values())


@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ("from amazon_kclpy import kcl\n", 78, "ended without KCLProcess(...).run()"),
        ("import amazon_kclpy.nonsense\n", 70, "ModuleNotFoundError"),
        ("raise SystemExit(9)\n", 9, ""),
        ("import logging.config\nlogging.config.dictConfig({'version': 1})\nraise OSError('boom')\n", 70, "Traceback (most"),
        (PROGRAMS["v3"].replace("self.seen = 0", "self.file, self.x = open(os.devnull), x").replace("__init__(self)", "__init__(self, x=1)")
         .replace("RecordProcessor())", "RecordProcessor(2))"), 78, "a new one has another value of x"),
        ("from amazon_kclpy import kcl\nkcl.KCLProcess(object()).run()\n", 78, "is not a record processor"),
        (PROGRAMS["v3"], 78, "list-streams"),
        (PROGRAMS["v3"].replace("kcl.KCLProcess(RecordProcessor()).run()", "\n    try: kcl.KCLProcess(RecordProcessor()).run()\n    except Exception: pass"), 78, "list-streams"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_in_one_line_with_an_exit_code(program, code, told, aws, launch):
    program = launch(program)
    assert program.process.wait(300) == code
    assert told in program.err.read_text()
    assert os.path.exists(program.err)


def test_without_a_file_or_with_the_flags_of_another_way_nothing_starts(aws, tmp_path):
    for arguments, told in (
        (["--kclpy", "app.py"], "No properties"),
        (["--kclpy", "app.py", "-p", "missing.properties"], "missing.properties"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pykcl.cli", "run", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert done.returncode in (2, 78)
        assert told in done.stderr, done.stderr


FORKING = """
    def process_records(self, records, checkpointer):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(len, [records]) == [len(records)]
        process = os.fork()
        if process == 0:
            checkpoint(checkpointer)
            for record in records:
                obey(record, checkpointer, self.shard_id)
            sys.exit(5)
        note("left", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
        checkpoint(checkpointer)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_program_may_fork_and_only_its_own_process_goes_on_as_the_worker(aws, launch):
    """What it forked had a copy of the worker: by sys.exit() that stopped, and released the leases of the other."""
    aws.kinesis.create_stream("orders", 2)
    head, _, rest = PROGRAMS["v1"].partition("    def process_records")
    program = launch(
        head.replace("import json", "import multiprocessing, json") + FORKING + "    def shutdown" + rest.partition("    def shutdown")[2]
    )  # fmt: skip
    keys = put(aws, *[["note"]] * 8)
    program.wait(lambda: seen(program).keys() >= set(keys), "the records")
    program.wait(
        lambda: len(program.notes("checkpointed")) == len(program.notes("refused")), "the checkpoints"
    )
    refused = {note[1] for note in program.notes("refused")}
    assert program.stop() == 0, program.err.read_text()
    assert seen(program) == dict.fromkeys(keys, 1)
    assert {tuple(note) for note in program.notes("left")} == {("left", 5)}
    assert refused == {"ShutdownException"}
    assert "lease lost" not in program.err.read_text()
