"""No payload, key, iterator, state or credential appears in anything pykcl says, whatever goes wrong."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import boto3
import pytest
from canaries import (
    ACCESS_KEY,
    HASH_KEY,
    PARTITION_KEY,
    PAYLOAD,
    SECRET,
    STATE,
    TOKEN,
    Ear,
    learn_iterators,
)

from pykcl import RecordProcessor, Worker
from pykcl.cli.local import local_environment
from pykcl.errors import PyKclError
from pykcl.events import (
    AggregateRefused,
    BatchSkipped,
    FailureStarted,
    LeaseLost,
    ProcessorRaised,
    ProcessorSlow,
    RetriesExhausted,
    ThreadsNotStopped,
)
from pykcl.local.errors import AwsError
from pykcl.local.server import LocalAws
from pykcl.model.kpl import MAGIC, aggregate
from pykcl.model.lease import Lease
from pykcl.model.lease_writes import parse_row
from pykcl.stores.expressions import aws_error
from pykcl.testing.fleet import STREAM, TABLE, Fleet, RecordingProcessor
from pykcl.testing.memory.dynamodb import Fault
from pykcl.testing.runtime import Simulation

QUOTING = f"{PAYLOAD} {PARTITION_KEY} x-amz-security-token:{TOKEN} {ACCESS_KEY}/{SECRET} {STATE}"
"""What AWS, a proxy or a user's own code might quote in a message."""


@pytest.fixture
def ear():
    heard = Ear()
    logger = logging.getLogger("pykcl")
    before = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(before)


@pytest.fixture
def fleet(ear):
    with Simulation(seed=1) as simulation:
        fleet = Fleet(simulation, shards=2)
        learn_iterators(ear, fleet.kinesis)
        yield fleet


def put(kinesis, count=6, start=0):
    """Plain records, sound aggregates and damaged ones, each with canaries in every field."""
    for number in range(start, start + count):
        data, key = f"{PAYLOAD}{number}".encode(), f"{PARTITION_KEY}{number}"
        kinesis.put_record(STREAM, data, key, int(HASH_KEY) if number % 2 else None)
        sub_records = [(key, HASH_KEY, data), (key, None, data)]
        (blob,) = aggregate(sub_records)
        kinesis.put_record(STREAM, blob.data, key)
        kinesis.put_record(STREAM, blob.data[:-1] + b"\0", key)
        body = data + key.encode()
        kinesis.put_record(STREAM, MAGIC + body + hashlib.md5(body).digest(), key)


class Processor(RecordingProcessor):
    """Prepares a checkpoint with state, then does as it is told."""

    def __init__(self, ear, worker, ledger, behaviour):
        super().__init__(worker, ledger, behaviour)
        self.ear = ear

    def initialize(self, init):
        super().initialize(init)
        self.ear.hear_text("repr of InitializationInput", repr(init))

    def process_records(self, batch):
        self.ear.hear_text("repr of Batch", f"{batch!r} {batch.checkpointer!r} {batch.records[0]!r}")
        with self.heard():
            batch.checkpointer.prepare_checkpoint(state=STATE.encode())
        with self.heard():
            batch.checkpointer.checkpoint("1")
        with self.heard():
            batch.checkpointer.prepare_checkpoint(state=STATE)
        super().process_records(batch)

    @contextlib.contextmanager
    def heard(self):
        try:
            yield
        except PyKclError as error:
            self.ear.hear_error(error)


def run(fleet, ear, behaviour=None, **options):
    def make():
        return Processor(ear, "w1", fleet.ledger, behaviour)

    put(fleet.kinesis)
    worker = fleet.worker("w1", processor=make, **options)
    start(worker, ear)
    return worker


def start(worker, ear):
    try:
        worker.start()
    except PyKclError as error:
        ear.hear_error(error)


def finish(fleet, ear):
    for worker in fleet.workers.values():
        try:
            worker.stop()
        except PyKclError as error:
            ear.hear_error(error)
        ear.hear_error(worker.failure)
        ear.hear_text("repr of Worker", f"{worker!r} {worker.config!r}")
    for _, event in fleet.events:
        ear.hear_event(event)
    for row in map(parse_row, fleet.items().values()) if TABLE in fleet.dynamodb.tables else ():
        ear.hear_text("repr of a row", repr(row))


def raising(batch):
    try:
        raise KeyError(batch.records[0].data)
    except KeyError:
        raise ValueError(QUOTING, batch.records[0].text()) from None


def happened(fleet, kind):
    fleet.wait(lambda: fleet.happened(kind), 400, kind.__name__)


# -- in simulation: everything that can go wrong ---------------------------------------------------------------


def _raises_and_is_retried(fleet, ear):
    run(fleet, ear, raising, retry_timeout=5.0)
    happened(fleet, RetriesExhausted)


def _raises_and_is_skipped(fleet, ear):
    run(fleet, ear, raising, on_error="skip")
    happened(fleet, BatchSkipped)


def _raises_and_stops_the_worker(fleet, ear):
    worker = run(fleet, ear, raising, on_error="raise")
    fleet.wait(lambda: worker.failure is not None)


def _raises_everywhere_else(fleet, ear):
    def fail(*_):
        raise OSError(QUOTING)

    class Broken(RecordingProcessor):
        initialize = shard_ended = shutdown_requested = lease_lost = fail

    put(fleet.kinesis)
    start(fleet.worker("w1", processor=lambda: Broken("w1", fleet.ledger), retry_timeout=3.0), ear)
    happened(fleet, ProcessorRaised)


def _cannot_be_made(fleet, ear):
    def make():
        raise OSError(QUOTING)

    put(fleet.kinesis)
    start(fleet.worker("w1", processor=make, retry_timeout=3.0), ear)
    happened(fleet, ProcessorRaised)


def _damaged_aggregates(fleet, ear):
    run(fleet, ear)
    happened(fleet, AggregateRefused)


def _refused_by_dynamodb(code, status=400):
    def scene(fleet, ear):
        run(fleet, ear)
        fleet.simulation.sleep(3)
        fleet.dynamodb.fault = lambda operation, _: Fault(
            before=aws_error(code, QUOTING, operation, status=status)
        )
        put(fleet.kinesis, start=50)
        happened(fleet, FailureStarted)
        fleet.simulation.sleep(30)
        fleet.dynamodb.fault = None
        fleet.simulation.sleep(30)

    return scene


def _refused_by_dynamodb_at_the_start(fleet, ear):
    fleet.dynamodb.fault = lambda operation, _: Fault(
        before=aws_error("InvalidSignatureException", QUOTING, operation)
    )
    run(fleet, ear)
    fleet.dynamodb.fault = None


def _answers_lost(fleet, ear):
    from pykcl.testing.memory.dynamodb import timed_out

    run(fleet, ear)
    fleet.simulation.sleep(2)
    lost = []

    def fault(operation, params):
        if operation == "UpdateItem" and len(lost) % 2 == 0:
            lost.append(params)
            return Fault(after=timed_out())
        lost.append(None)
        return None

    fleet.dynamodb.fault = fault
    put(fleet.kinesis, start=50)
    fleet.simulation.sleep(40)
    fleet.dynamodb.fault = None


def _lease_taken_away(fleet, ear):
    def commits_never(batch):
        batch.checkpointer.prepare_checkpoint(state=STATE.encode())

    run(fleet, ear, commits_never, checkpoint_mode="manual")
    fleet.simulation.sleep(5)
    start(fleet.worker("w2"), ear)
    happened(fleet, LeaseLost)


def _rows_of_strangers_with_state_in_the_wrong_type(fleet, ear):
    run(fleet, ear)
    fleet.simulation.sleep(5)
    for key, row in fleet.items().items():
        for number, value in enumerate(({"S": STATE}, {"B": STATE.encode()})):
            junk = {
                **row,
                "leaseKey": {"S": f"{key}-{number}"},
                "pendingCheckpointState": value,
                STATE: {"S": STATE},
            }
            fleet.dynamodb.put_item(TableName=TABLE, Item={**junk, "pendingCheckpoint": {"S": "nothing"}})
    fleet.simulation.sleep(60)


def _table_deleted(fleet, ear):
    worker = run(fleet, ear)
    fleet.simulation.sleep(3)
    fleet.dynamodb.delete_table(TableName=TABLE)
    fleet.wait(lambda: worker.failure is not None, 60, "the failure")


def _stream_made_again(fleet, ear):
    worker = run(fleet, ear)
    fleet.simulation.sleep(3)
    fleet.kinesis.delete_stream(STREAM)
    fleet.simulation.sleep(3)
    fleet.kinesis.create_stream(STREAM, 2)
    fleet.wait(lambda: worker.failure is not None, 120, "the failure")


def _hangs_and_threads_are_left(fleet, ear):
    # Until the worker's own stop gave up; then it ends, as the simulation wants every thread to.
    run(fleet, ear, lambda _: fleet.simulation.sleep(300), processor_warn_after=2.0, shutdown_grace=1.0)
    happened(fleet, ProcessorSlow)
    with contextlib.suppress(PyKclError):
        fleet.workers["w1"].stop()
    assert fleet.happened(ThreadsNotStopped)


def _a_defect_of_pykcl(fleet, ear):
    """A thread nobody can do without dies of something nobody foresaw."""
    worker = run(fleet, ear)
    fleet.simulation.sleep(3)

    def broken(row):
        raise RuntimeError("defect")

    fleet.workers["w1"]._manager._own_rows = broken
    fleet.wait(lambda: worker.failure is not None, 60, "the failure")


SCENES = {
    name.strip("_").replace("_", " "): scene
    for name, scene in {
        **{name: scene for name, scene in globals().items() if name in (
            "_raises_and_is_retried", "_raises_and_is_skipped", "_raises_and_stops_the_worker",
            "_raises_everywhere_else", "_cannot_be_made", "_damaged_aggregates", "_answers_lost",
            "_refused_by_dynamodb_at_the_start", "_lease_taken_away", "_table_deleted", "_stream_made_again",
            "_rows_of_strangers_with_state_in_the_wrong_type", "_hangs_and_threads_are_left",
        )},
        "_throttled": _refused_by_dynamodb("ProvisionedThroughputExceededException"),
        "_denied": _refused_by_dynamodb("AccessDeniedException"),
        "_failing": _refused_by_dynamodb("InternalServerError", 500),
        "_signature_refused": _refused_by_dynamodb("InvalidSignatureException"),
        "_request_refused": _refused_by_dynamodb("ValidationException"),
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_said_of_data_or_credentials_when_it(fleet, ear, scene):
    SCENES[scene](fleet, ear)
    finish(fleet, ear)
    assert ear.heard
    assert ear.leaks() == []


# -- the check itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [PAYLOAD, PARTITION_KEY, HASH_KEY, STATE, ACCESS_KEY, SECRET, TOKEN])
def test_a_leak_is_heard_whatever_it_leaks_by(ear, text):
    import base64

    log = logging.getLogger("pykcl.worker")
    log.debug("records: %s", text)
    log.debug("raw data: %s", base64.b64encode(f"--{text}--".encode()).decode())
    log.debug("hex: %s", text.encode().hex())
    assert len(ear.leaks()) >= 3
    ear.heard.clear()
    try:
        try:
            raise KeyError(text)
        except KeyError as cause:
            raise PyKclError("harmless") from cause
    except PyKclError as error:
        ear.hear_error(error)
        assert ear.leaks()
    ear.heard.clear()
    try:
        try:
            raise KeyError(text)
        except KeyError:
            raise PyKclError("harmless") from None
    except PyKclError as error:
        ear.hear_error(error)
        assert ear.leaks(), "a suppressed context is still there for whoever asks for it"
    ear.heard.clear()
    ear.hear_event(FailureStarted(what="x", cause=text))
    assert ear.leaks()


def test_a_worker_that_leaks_is_caught(fleet, ear, monkeypatch):
    """Failing on purpose: as if an event quoted the exception of the processor."""
    from pykcl.worker import processor_calls

    monkeypatch.setattr(processor_calls, "where_of", repr)
    _raises_and_is_skipped(fleet, ear)
    finish(fleet, ear)
    assert any("payload in ProcessorRaised" in leak for leak in ear.leaks())


def test_an_iterator_that_leaks_is_caught(fleet, ear):
    iterator = fleet.kinesis.get_shard_iterator(STREAM, fleet.open_shards()[0], "TRIM_HORIZON")
    logging.getLogger("pykcl.kinesis").debug("reading at %s", iterator)
    assert ear.leaks()


def test_reprs_of_what_carries_data_do_not_show_it(ear):
    from pykcl.interfaces import Fetched, Rejected
    from pykcl.model.checkpoint import Checkpoint
    from pykcl.model.lease import PendingCheckpoint
    from pykcl.model.lease_writes import prepare
    from pykcl.model.record import Record

    held = Lease("shardId-0", Checkpoint("5"), 1, "me", extra={"x": {"S": STATE}})
    write = prepare(held, PendingCheckpoint(Checkpoint("6"), STATE.encode()))
    record = Record(PAYLOAD.encode(), PARTITION_KEY, "5", explicit_hash_key=HASH_KEY)
    for value in (write, write.after, Rejected(write.after), record, Fetched([record], TOKEN, 0, (), 1)):
        ear.hear_text(type(value).__name__, f"{value!r} {value}")
    assert ear.leaks() == []


# -- over the wire, with credentials ---------------------------------------------------------------------------


def wait(condition, what, seconds=60.0):
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        pause.wait(0.02)


@pytest.fixture
def aws(ear, monkeypatch):
    with LocalAws() as aws:
        for name, value in secrets(aws.url).items():
            monkeypatch.setenv(name, value)
        aws.kinesis.create_stream(STREAM, 2)
        learn_iterators(ear, aws.kinesis)
        yield aws


def secrets(url):
    found = {**local_environment(url), "AWS_ACCESS_KEY_ID": ACCESS_KEY}
    return {**found, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}


CODES = ["AccessDeniedException", "ProvisionedThroughputExceededException", "InvalidSignatureException",
         "ExpiredTokenException", "InternalFailure", "ResourceNotFoundException", "InvalidArgumentException",
         "ValidationException", "KMSAccessDeniedException"]  # fmt: skip


def test_nothing_is_said_over_the_wire_either(aws, ear, monkeypatch):
    """Each code in turn for every request, with a message that quotes everything, while a worker runs."""
    monkeypatch.setattr(threading, "excepthook", lambda args: ear.hear_error(args.exc_value))
    seen, refused = [], []
    state = {"code": None}

    class Orders(RecordProcessor):
        def process_records(self, batch):
            batch.checkpointer.prepare_checkpoint(state=STATE.encode())
            seen.extend(batch)
            if len(seen) % 3 == 0:
                raise ValueError(batch.records[0].text())

    def fault(service, operation, _):
        if state["code"] is not None:
            refused.append((service, operation))
            raise AwsError(state["code"], QUOTING)

    aws.fault = fault
    options = {
        "stream": STREAM,
        "processor": Orders,
        "initial_position": "TRIM_HORIZON",
        "failover_time": 2.0,
    }
    worker = Worker(TABLE, on_event=ear.hear_event, retry_timeout=0.5, **options)
    worker.start()
    try:
        for number, code in enumerate(CODES[:5]):
            put(aws.kinesis, 2, number * 10)
            before = len(seen)
            wait(lambda: len(seen) > before, f"records before {code}")  # noqa: B023 - waited for at once
            state["code"] = code
            before = len(refused)
            wait(lambda: len(refused) > before + 3, f"refusals with {code}")  # noqa: B023
            state["code"] = None
    finally:
        state["code"] = None
        with contextlib.suppress(PyKclError):
            worker.stop()
    ear.hear_error(worker.failure)
    for code in CODES:
        state["code"] = code
        starting = Worker(TABLE, on_event=ear.hear_event, **options)
        threading.Timer(0.2, starting.stop).start()
        try:
            starting.start()
            starting.stop()
        except PyKclError as error:
            ear.hear_error(error)
    assert len(ear.heard) > 30
    assert ear.leaks() == []


PROGRAM = f"""
from pykcl import RecordProcessor

class Orders(RecordProcessor):
    def process_records(self, batch):
        batch.checkpointer.prepare_checkpoint(state=b"{STATE}")
        print("got", len(batch), flush=True)
        raise ValueError(batch.records[0].text() + batch.records[0].partition_key)
"""


@pytest.mark.parametrize(
    ("options", "code"), [(["--option", "on_error=raise"], 70), (["--option", "on_error=skip"], 0)]
)
def test_pykcl_run_at_debug_says_nothing_either(aws, ear, tmp_path, options, code):
    (tmp_path / "program.py").write_text(PROGRAM)
    put(aws.kinesis)
    out, err = tmp_path / "out", tmp_path / "err"
    command = ["run", "program:Orders", "--app", TABLE, "--stream", STREAM, "--start", "TRIM_HORIZON", "-v"]
    with out.open("wb") as output, err.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "pykcl.cli", *command, *options],
            cwd=tmp_path,
            env={**os.environ, **secrets(aws.url)},
            stdout=output,
            stderr=told,
        )
        try:
            wait(lambda: "got" in out.read_text(), "the records")
            if code == 0:
                wait(lambda: "batch skipped" in err.read_text(), "the skipping")
                process.send_signal(signal.SIGTERM)
            assert process.wait(300) == code
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    ear.hear_text("stderr", err.read_text())
    assert "record processor raised" in err.read_text()
    assert ear.leaks() == []


def test_a_row_that_somebody_made_up_stops_no_worker_over_the_wire(aws):
    """Its key has not even the form of a shard id: real Kinesis refuses to open it as invalid."""
    client = boto3.client("dynamodb")
    client.create_table(
        TableName=TABLE,
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    row = {
        "leaseKey": {"S": "made up!\n"},
        "leaseCounter": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
    }
    row |= {"checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": {"N": "0"}}
    client.put_item(TableName=TABLE, Item=row)
    seen = []

    class Orders(RecordProcessor):
        def process_records(self, batch):
            seen.extend(batch)

    def as_kinesis_does(service, operation, parameters):
        if operation == "GetShardIterator" and not parameters["ShardId"].startswith("shardId-"):
            raise AwsError("ValidationException", "failed to satisfy constraint: [a-zA-Z0-9_.-]+")

    aws.fault = as_kinesis_does
    with Worker(TABLE, stream=STREAM, processor=Orders, initial_position="TRIM_HORIZON") as worker:
        wait(lambda: any("made up" in key for key in worker.leases), "the made up lease")
        put(aws.kinesis)
        wait(lambda: len(seen) >= 6, "the records of the others")
        assert worker.failure is None
