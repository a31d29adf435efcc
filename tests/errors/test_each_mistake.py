"""Every mistake of the catalogue, made: it is told with its code, with what to do, and with a page that exists."""

import ctypes
import queue
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from messages import commands_of, has, options_named
from mistake_pages import TEXTS, blocks, is_on_page, sections

from pykcl import Config, Record, RecordProcessor, Window, Worker, handler, lambda_processor
from pykcl.error_catalog import DOCS, MISTAKES
from pykcl.errors import (
    CheckpointRefused,
    ConfigError,
    LeaseLostError,
    NativeFleet,
    ProcessorFailed,
    PyKclError,
    SetupError,
    StreamMissing,
    TemporaryError,
    WrongStream,
    WrongTable,
)
from pykcl.event_dispatch import line_of
from pykcl.events import (
    CheckpointOverwritten,
    DataLost,
    Event,
    EventLoopBlocked,
    FailureLasted,
    FailureResolved,
    FailureStarted,
    InitialPositionIgnored,
    KeysIgnored,
    LeaseLost,
    LossReason,
    ProcessorRaised,
    RetentionAlmostExceeded,
    RetriesExhausted,
    ShardEndNotCheckpointed,
    StartingAtLatest,
)
from pykcl.health.probes import readiness
from pykcl.local.errors import AwsError
from pykcl.local.faults import FaultRule
from pykcl.testing.fleet import STREAM, TABLE, RecordingProcessor

RUN = ("run", "mistaken_shop:Orders", "--app", TABLE, "--stream", STREAM)
DEADLINE = 60


def check(told, code, *words):
    """An error or an event: code, every word in the hint, and a page."""
    assert told.code == code
    for word in words:
        assert word in told.hint
    assert told.docs == f"{DOCS}#{code.lower()}"
    assert code in TEXTS
    text = line_of(as_logged(told)) if isinstance(told, Event) else str(told)
    assert is_on_page(code, text), text


def as_logged(event):
    """The event that the log shows of this one: of a failure that one which it has lasted."""
    if not isinstance(event, FailureStarted):
        return event
    same = {name: getattr(event, name) for name in ("what", "shard", "cause", "code", "hint")}
    return FailureLasted(failing=1, of=1, seconds=10.0, failures=1, **same).with_names(
        getattr(event, "_names", {})
    )


def check_output(result, code, *words, exit_code=78):
    """What a command says of an error: a line about it, and one with its page. What to do is said once, and the options
    that it names are those of the command."""
    assert result.exit_code == exit_code, result.output
    happened, to_do = result.output.splitlines()[-2:]
    assert happened.startswith("pykcl: ")
    assert to_do.startswith(f"pykcl: {code}. ")
    assert to_do.endswith(f" {DOCS}#{code.lower()}")
    hint = to_do.partition(" Do: ")[2].removesuffix(f". {DOCS}#{code.lower()}")
    assert not hint or hint not in happened, "said twice"
    for word in words:
        assert word in (hint or happened)
    for option, program, commands in options_named(f"{happened} {hint}", commands_of(" ".join(result.words))):
        assert program == "aws" or any(has(command, option) for command in commands), (
            f"{option} of {commands}"
        )
    assert code in TEXTS
    assert is_on_page(code, happened), happened
    return happened


def refuse(aws, code, *operations):
    """The local AWS answers these operations (none: all) with that error."""

    def fault(service, operation, params):
        if not operations or operation in operations:
            raise AwsError(
                code, "User: arn:aws:iam::1:role/x is not authorized to perform: kinesis:ListShards on it"
            )

    aws.fault = fault


def told(fleet, kind, code):
    """The first event of that kind with that code, once there is one."""
    fleet.wait(
        lambda: any(event.code == code for event in fleet.happened(kind)), what=f"{kind.__name__} {code}"
    )
    return next(event for event in fleet.happened(kind) if event.code == code)


class Heard(queue.Queue):
    """A listener for a worker in real time."""

    def __call__(self, event):
        self.put(event)

    def wait_for(self, code, kind=object):
        while True:
            event = self.get(timeout=DEADLINE)
            if event.code == code and isinstance(event, kind):
                return event


def real_worker(heard, processor=None, **options):
    class Quiet(RecordProcessor):
        def process_records(self, batch):
            if processor is not None:
                processor(batch)

    options.setdefault("initial_position", "TRIM_HORIZON")
    return Worker(TABLE, stream=STREAM, processor=Quiet, on_event=heard, **options)


# -- surroundings ----------------------------------------------------------------------------------------------


def test_e01_no_region(local_aws, pykcl, monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    check_output(pykcl(*RUN), "E01", "export AWS_REGION=")
    check_output(pykcl("leases", "list", "--table", TABLE), "E01", exit_code=1)
    with pytest.raises(ConfigError) as raised:
        real_worker(Heard()).start()
    check(raised.value, "E01", "export AWS_REGION=")


@pytest.mark.parametrize("code", ["AccessDeniedException", "KMSAccessDeniedException"])
def test_e02_not_permitted(local_aws, pykcl, code):
    refuse(local_aws, code, "DescribeStreamSummary")
    happened = check_output(pykcl(*RUN), "E02", f"pykcl iam --app {TABLE} --stream {STREAM}")
    assert "kinesis:ListShards" in happened


def test_e02_a_permission_that_is_taken_away_while_the_worker_runs(local_aws):
    heard = Heard()
    with real_worker(heard, shard_sync_interval=1.0) as worker:
        assert worker.wait_ready(DEADLINE)
        refuse(local_aws, "AccessDeniedException", "GetRecords")
        event = heard.wait_for("E02", FailureStarted)
        local_aws.fault = None
    check(event, "E02", f"pykcl iam --app {TABLE} --stream {STREAM} ")
    assert "code=E02" in line_of(event)


def test_e03_no_such_stream(local_aws, pykcl):
    local_aws.kinesis.delete_stream(STREAM)
    happened = check_output(pykcl(*RUN), "E03", "pykcl streams list --region us-east-1")
    assert "region us-east-1" in happened
    with pytest.raises(StreamMissing) as raised:
        real_worker(Heard()).start()
    check(raised.value, "E03", "pykcl streams list --region us-east-1")


@pytest.mark.parametrize("code", [None, "UnrecognizedClientException", "ExpiredTokenException"])
def test_e04_no_credentials_or_bad_ones(local_aws, pykcl, monkeypatch, code):
    if code is None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setattr("botocore.credentials.ContainerProvider.load", lambda self: None)
    else:
        refuse(local_aws, code)
    result = pykcl("leases", "list", "--table", TABLE, "--no-sample")
    check_output(result, "E04", "aws sso login", exit_code=1)
    if code != "ExpiredTokenException":
        check_output(pykcl(*RUN), "E04", "aws sts get-caller-identity")


def test_e04_credentials_that_expire_while_the_worker_runs(local_aws):
    heard = Heard()
    with real_worker(heard) as worker:
        assert worker.wait_ready(DEADLINE)
        refuse(local_aws, "ExpiredTokenException", "GetRecords")
        check(heard.wait_for("E04", FailureStarted), "E04", "aws sts get-caller-identity")
        local_aws.fault = None


def make_table(dynamodb, key="leaseKey"):
    dynamodb.create_table(
        TableName=TABLE,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )


def test_e05_a_table_that_is_no_lease_table(local_aws, dynamodb, pykcl):
    make_table(dynamodb, key="id")
    happened = check_output(pykcl(*RUN), "E05", f"--option table_name={TABLE}-leases")
    assert "its key is id" in happened
    assert "leaseKey" in happened
    check_output(pykcl("leases", "list", "--app", TABLE), "E05", "or its table: --table", exit_code=1)
    assert "no lease table 'another'" in pykcl("leases", "list", "--table", "another").output
    with pytest.raises(WrongTable) as raised:
        real_worker(Heard()).start()
    check(raised.value, "E05")


def test_e06_a_native_fleet_of_kcl_3(local_aws, dynamodb, pykcl):
    make_table(dynamodb)
    state = {"leaseKey": {"S": "Migration3.0"}, "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
             "cv": {"S": "CLIENT_VERSION_3X"}, "mb": {"S": "j1"}, "mts": {"N": "1"}, "h": {"L": []}}  # fmt: skip
    dynamodb.put_item(TableName=TABLE, Item=state)
    happened = check_output(pykcl(*RUN), "E06", f"pykcl doctor --app {TABLE}")
    assert "CLIENT_VERSION_3X" in happened
    assert "no index of owners" in happened
    with pytest.raises(NativeFleet) as raised:
        real_worker(Heard()).start()
    check(raised.value, "E06", "leave out fleet_mode")


def test_e07_two_streams_under_one_application_name(local_aws, pykcl):
    with real_worker(Heard()) as worker:
        assert worker.wait_ready(DEADLINE)
    local_aws.kinesis.create_stream("payments", 1)
    words = ["payments" if word == STREAM else word for word in RUN]
    happened = check_output(pykcl(*words), "E07", f"pykcl leases list --app {TABLE}")
    assert f"stream/{STREAM}" in happened
    with pytest.raises(WrongStream) as raised:
        Worker(TABLE, stream="payments", processor=lambda: None).start()
    check(raised.value, "E07", f"pykcl leases list --app {TABLE}")


# -- fleets ----------------------------------------------------------------------------------------------------


def test_e08_two_processes_with_one_worker_identifier(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w1")
    fleet.wait(lambda: fleet.load().get("w1") == 4)
    # The other process renews a lease that it holds under the same name.
    row = dict(next(iter(fleet.items().values())))
    row["leaseCounter"] = {"N": str(int(row["leaseCounter"]["N"]) + 5)}
    fleet.dynamodb.put_raw(TABLE, row)
    event = told(fleet, LeaseLost, "E08")
    assert event.reason is LossReason.IDENTIFIER_IN_USE
    check(event, "E08", "--worker-id", "host:pid:random")


def test_e08_a_second_process_that_holds_no_lease(new_fleet):
    """All leases name it, so it would stand by for ever, without a word and in good health."""
    fleet = new_fleet(shards=4)
    fleet.start("w1")
    fleet.wait(lambda: fleet.load().get("w1") == 4)
    second = fleet.start("second", worker_id="w1")
    began = fleet.simulation.now
    event = told(fleet, FailureStarted, "E08")
    assert fleet.simulation.now - began < second.config.failover_time
    check(event, "E08", "--worker-id", "host:pid:random")
    fleet.wait(lambda: "worker identifier" in " ".join(readiness(second.status()).why))
    fleet.simulation.kill("w1")
    fleet.wait(lambda: len(second.leases) == 4 and readiness(second.status()).is_good)
    assert [event.what for event in fleet.happened(FailureResolved)] == [
        "having a worker identifier of its own"
    ]


def test_no_e08_for_a_worker_that_was_killed_and_is_started_again(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w1")
    fleet.wait(lambda: fleet.load().get("w1") == 4)
    fleet.simulation.kill("w1")
    again = fleet.start("again", worker_id="w1")
    fleet.wait(lambda: len(again.leases) == 4)
    assert not [each for each in fleet.happened(FailureStarted) if each.code == "E08"]


def test_e29_a_checkpoint_written_by_hand_under_a_worker(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(3))
    fleet.wait(lambda: not next(iter(fleet.rows().values())).checkpoint.is_sentinel)
    row = dict(next(iter(fleet.items().values())))
    fleet.dynamodb.put_raw(TABLE, {**row, "checkpoint": {"S": "1"}})
    check(told(fleet, CheckpointOverwritten, "E29"), "E29", "stop the fleet", "pykcl checkpoints reset")


def test_e20_too_few_leases_for_the_shards(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w1", max_leases=2)
    event = told(fleet, FailureStarted, "E20")
    check(
        event,
        "E20",
        "maxLeasesForWorker",
        f"pykcl leases list --app {fleet.workers['w1'].config.application} ",
    )
    assert event.cause.startswith("2 of 4 open shards are read by nobody")
    assert "max_leases=2" in event.cause
    fleet.start("w2")
    fleet.wait(lambda: fleet.happened(FailureResolved), what="the end of it")
    fleet.simulation.sleep(60)
    assert len([one for one in fleet.happened(FailureStarted) if one.code == "E20"]) == 1


def test_e20_is_not_told_where_another_worker_reads_the_rest(new_fleet):
    fleet = new_fleet(shards=4)
    fleet.start("w1", max_leases=2)
    fleet.start("w2", max_leases=2)
    fleet.simulation.sleep(120)
    assert not fleet.happened(FailureStarted)


def test_e20_is_not_told_of_a_lease_that_is_left_alone_by_a_worker_with_room(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1", processor=processors(fleet, process_records=raises_key_error), retry_timeout=100.0)
    fleet.put(1)
    fleet.wait(lambda: fleet.happened(RetriesExhausted), 300, "a lease that is left alone")
    fleet.simulation.sleep(80)
    assert list(fleet.owners().values()).count(None) == 1
    assert not fleet.happened(FailureStarted)


# -- the processor ---------------------------------------------------------------------------------------------


def processors(fleet, **methods):
    kind = type("Mistaken", (RecordingProcessor,), methods)
    return lambda: kind("w1", fleet.ledger)


def test_e09_a_shard_ended_that_does_not_checkpoint(new_fleet):
    fleet = new_fleet(shards=1)
    forgetful = processors(fleet, shard_ended=lambda self, end: None)
    fleet.start("w1", checkpoint_mode="manual", processor=forgetful)
    fleet.wait_delivered(fleet.put(3))
    fleet.kinesis.split(STREAM, fleet.open_shards()[0])
    event = told(fleet, ShardEndNotCheckpointed, "E09")
    check(
        event, "E09", "end.checkpointer.checkpoint()", "amazon_kclpy", "shutdown when its reason is TERMINATE"
    )


def test_e10_a_checkpoint_after_the_lease_was_lost(new_fleet):
    fleet, batches = new_fleet(shards=1), []
    keeping = processors(fleet, process_records=lambda self, batch: batches.append(batch))
    fleet.start("w1", checkpoint_mode="manual", processor=keeping)
    fleet.put(5)
    fleet.wait(lambda: batches, what="a batch")
    row = next(iter(fleet.items().values()))
    fleet.dynamodb.put_raw(TABLE, {**row, "leaseOwner": {"S": "w2"}, "leaseCounter": {"N": "99"}})
    with pytest.raises(
        LeaseLostError, match=r"another worker took it \(w2\); its last heartbeat was sent \d"
    ) as raised:
        batches[0].checkpointer.checkpoint()
    check(raised.value, "E10", "do not retry", "pykcl leases list")


class Sleeper:
    """Native code that keeps the interpreter to itself."""

    def __call__(self, batch):
        ctypes.PyDLL(None).usleep(900_000)


def test_e11_native_code_that_keeps_the_heartbeats_from_running(local_aws):
    heard = Heard()
    local_aws.kinesis.put_record(STREAM, b"x", "key")
    with real_worker(heard, Sleeper(), failover_time=1.0):
        event = heard.wait_for("E11", FailureStarted)
    check(event, "E11", "failover_time", "pykcl multilangd")
    assert "could not run for" in event.cause
    assert "GIL" in event.cause


def test_e11_is_not_told_of_a_processor_that_only_takes_its_time(new_fleet):
    fleet = new_fleet(shards=2)
    slow = processors(fleet, process_records=lambda self, batch: fleet.simulation.sleep(300))
    fleet.start("w1", processor=slow)
    fleet.put(4)
    fleet.simulation.sleep(200)
    assert not fleet.happened(FailureStarted)


def raises_key_error(self, batch):
    return {}["id"]


def test_e12_a_processor_that_raises(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", processor=processors(fleet, process_records=raises_key_error))
    fleet.put(1)
    event = told(fleet, ProcessorRaised, "E12")
    skip = (
        f"pykcl checkpoints reset --shard shardId-000000000000 --shift-by 1 --app {TABLE} --stream {STREAM}"
    )
    check(event, "E12", skip)
    assert (event.error, event.where.split(":")[0]) == ("KeyError", Path(__file__).name)
    assert "code=E12 hint=" in line_of(event)


def test_e12_of_several_records_none_is_stepped_over_unseen(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(3)
    fleet.start("w1", processor=processors(fleet, process_records=raises_key_error))
    event = told(fleet, ProcessorRaised, "E12")
    check(event, "E12", f"pykcl tail {STREAM} --shard shardId-000000000000 --from-app {TABLE}")
    assert event.records == 3
    assert "--shift-by" not in event.hint


def test_e12_where_the_worker_is_to_stop_for_it(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start(
        "w1", processor=processors(fleet, process_records=raises_key_error), on_error="raise"
    )
    fleet.put(1)
    fleet.wait(lambda: worker.failure is not None, what="the failure")
    assert isinstance(worker.failure, ProcessorFailed)
    skip = (
        f"pykcl checkpoints reset --shard shardId-000000000000 --shift-by 1 --app {TABLE} --stream {STREAM}"
    )
    check(worker.failure, "E12", skip)


@pytest.mark.parametrize("method", ["initialize", "shutdown_requested"])
def test_e12_outside_of_a_batch_there_is_no_record_to_step_over(new_fleet, method):
    """Who followed that advice would leave out a healthy record."""
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", processor=processors(fleet, **{method: raises_key_error}))
    fleet.put(3)
    fleet.simulation.sleep(5)
    worker.stop()
    event = told(fleet, ProcessorRaised, "E12")
    check(event, "E12", "correct the processor")
    assert event.method == method
    assert "--shift-by" not in event.hint


def test_e12_outside_of_a_batch_where_the_worker_is_to_stop_for_it(new_fleet):
    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", processor=processors(fleet, initialize=raises_key_error), on_error="raise")
    fleet.wait(lambda: worker.failure is not None, what="the failure")
    check(worker.failure, "E12", "correct the processor")
    assert "--shift-by" not in worker.failure.hint


@pytest.mark.parametrize("at", ["beyond", "behind"])
def test_e13_a_checkpoint_of_what_was_not_delivered(new_fleet, at):
    fleet, refused = new_fleet(shards=1), []

    def process_records(self, batch):
        number = int(batch.records[-1].sequence_number)
        try:
            if at == "behind":
                batch.checkpointer.checkpoint()
            batch.checkpointer.checkpoint(str(number + 1 if at == "beyond" else number - 1))
        except CheckpointRefused as error:
            refused.append(error)

    fleet.start("w1", checkpoint_mode="manual", processor=processors(fleet, process_records=process_records))
    fleet.put(3)
    fleet.wait(lambda: refused, what="the refusal")
    check(refused[0], "E13", "checkpointer.checkpoint(record)")


@pytest.mark.parametrize("checkpoint", ["manual", "auto"])
def test_e13_what_its_page_advises_survives_a_record_that_fails_once(new_fleet, checkpoint):
    fleet, handled, written = new_fleet(shards=1), [], {}
    exec(blocks(sections("E13")["What to do"], "python")[0], written)

    def handle(self, record):
        handled.append(record.data)
        if handled == put[:5]:
            raise ConnectionError

    put = fleet.put(10)
    processor = processors(fleet, handle=handle, process_records=written["process_records"])
    fleet.start("w1", checkpoint_mode=checkpoint, processor=processor)
    fleet.wait(lambda: put[-1] in handled, what="the last record")
    assert handled == [*put[:5], *put[4:]]
    assert [event.error for event in fleet.happened(ProcessorRaised)] == ["ConnectionError"]


def test_e15_an_instance_instead_of_a_class(local_aws, pykcl):
    result = pykcl("run", "mistaken_shop:an_instance", "--app", TABLE, "--stream", STREAM)
    happened = check_output(result, "E15", "processor=Orders")
    assert "instance of Orders" in happened


@pytest.mark.parametrize("name", ["forgets_to_return", "returns_the_class"])
def test_e15_a_factory_that_makes_no_processor_stops_the_worker(local_aws, pykcl, name):
    happened = check_output(
        pykcl("run", f"mistaken_shop:{name}", "--app", TABLE, "--stream", STREAM), "E15", "lambda"
    )
    assert "not a processor" in happened


async def never_awaited(*arguments):
    pass


@pytest.mark.parametrize(
    "processor",
    [type("Awaited", (RecordProcessor,), {"process_records": never_awaited}), never_awaited],
)
def test_e15_a_call_that_would_run_nothing(processor):
    with pytest.raises(ConfigError) as raised:
        Worker(TABLE, stream=STREAM, processor=processor)
    check(raised.value, "E15")


def test_e12_a_call_that_has_run_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    processor = processors(fleet, process_records=lambda self, batch: never_awaited())
    worker = fleet.start("w1", processor=processor, on_error="raise")
    fleet.put(1)
    fleet.wait(lambda: worker.failure is not None, what="the failure")
    check(worker.failure, "E12", "asyncio.run")


@pytest.mark.parametrize(
    ("name", "word"),
    [("Misspelt", "rename proces_records"), ("NeedsArguments", "lambda: NeedsArguments(db)")],
)
def test_e15_a_class_of_which_no_instance_can_be_made_takes_no_lease(local_aws, pykcl, name, word):
    check_output(pykcl("run", f"mistaken_shop:{name}", "--app", TABLE, "--stream", STREAM), "E15", word)
    assert not list(local_aws.requests)


@pytest.mark.parametrize(
    ("processor", "do"),
    [(str, "class str(RecordProcessor)"), (5, "processor=Orders"), ("x", "processor=Orders")],
)
def test_e15_what_is_no_processor_at_all(processor, do):
    with pytest.raises(ConfigError) as raised:
        Worker(TABLE, stream=STREAM, processor=processor)
    check(raised.value, "E15", do)


# -- where to start, and falling behind ------------------------------------------------------------------------


def test_e16_latest_leaves_out_the_first_records(new_fleet):
    fleet = new_fleet(shards=2)
    lost = fleet.put(3)
    fleet.start("w1", initial_position="LATEST")
    event = told(fleet, StartingAtLatest, "E16")
    check(event, "E16", "--start TRIM_HORIZON", "pykcl checkpoints reset", "--to-earliest")
    fleet.workers["w1"].wait_ready(60)
    fleet.wait_delivered(fleet.put(3))
    assert not set(lost) & set(fleet.ledger.payloads)


def test_e17_a_changed_start_replays_nothing(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1", initial_position="LATEST")
    fleet.workers["w1"].wait_ready(60)
    first = fleet.put(12)
    fleet.wait_delivered(first)
    fleet.workers["w1"].stop()
    fleet.start("w2", initial_position="TRIM_HORIZON")
    (event,) = fleet.happened(InitialPositionIgnored)
    check(event, "E17", "pykcl checkpoints reset", "--to-earliest")
    assert (event.initial_position, event.leases) == ("TRIM_HORIZON", 2)
    fleet.simulation.sleep(30)
    assert fleet.ledger.duplicates == 0


def test_e17_is_not_told_at_a_first_start_nor_where_nobody_asked_for_another(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.wait_delivered(fleet.put(12))
    fleet.workers["w1"].stop()
    fleet.start("w2", initial_position="LATEST")
    assert not fleet.happened(InitialPositionIgnored)


def test_e17_is_not_told_while_a_shard_is_still_to_begin_there(new_fleet):
    fleet = new_fleet(shards=2)
    fleet.start("w1")
    fleet.put(1)
    fleet.wait(
        lambda: [row.checkpoint.is_start for row in fleet.rows().values()].count(False) == 1,
        what="one of two",
    )
    fleet.start("w2")
    assert not fleet.happened(InitialPositionIgnored)


def test_e18_retention_that_is_about_to_overtake_and_then_does(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(1)
    fleet.start("w1", max_records=1)
    fleet.wait(lambda: fleet.ledger.delivered, what="the first record")
    fleet.workers["w1"].stop()
    fleet.put(2)
    fleet.simulation.sleep(23 * 3600)
    fleet.start("w2", max_records=1)
    event = told(fleet, RetentionAlmostExceeded, "E18")
    check(event, "E18", "pykcl lag", "increase-stream-retention-period")
    assert event.retention == 24 * 3600
    assert 22.9 * 3600 < event.behind < 23.1 * 3600
    assert event.dropped_in == pytest.approx(event.retention - event.behind)
    fleet.simulation.sleep(60)
    assert len(fleet.happened(RetentionAlmostExceeded)) == 1
    assert not fleet.happened(DataLost)
    fleet.workers["w2"].stop()
    fleet.put(2)
    fleet.simulation.sleep(30 * 3600)
    fleet.put(1)
    fleet.start("w3")
    check(told(fleet, DataLost, "E18"), "E18", "increase-stream-retention-period")


def test_e19_reads_that_others_use_up(local_aws):
    heard = Heard()
    with real_worker(heard) as worker:
        assert worker.wait_ready(DEADLINE)
        local_aws.faults.replace([FaultRule("throttle", "kinesis", "GetRecords")])
        event = heard.wait_for("E19", FailureStarted)
        local_aws.faults.reset()
    check(event, "E19", "idle_time_between_reads", f"pykcl streams describe {STREAM} ")
    assert event.what == "reading"
    assert event.shard.startswith("shardId-")


# -- Lambda handlers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("async_handler", "async def"),
        ("handler_of_one", "(event)"),
        ("an_instance", "Orders, not a function"),
    ],
)
def test_e23_a_handler_that_cannot_be_called_takes_no_lease(local_aws, pykcl, name, problem):
    result = pykcl("run", "--lambda", f"mistaken_shop:{name}", "--app", TABLE, "--stream", STREAM)
    assert problem in check_output(result, "E23", "def handler(event, context)")
    assert not [request for request in local_aws.requests if request.service in ("dynamodb", "kinesis")]


def test_e23_a_handler_that_returns_a_coroutine(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", processor=lambda_processor(lambda event, context: never_awaited()))
    fleet.put(1)
    check(told(fleet, ProcessorRaised, "E23"), "E23", "asyncio.run")


def test_e24_a_response_that_names_no_record_of_the_batch(new_fleet):
    fleet = new_fleet(shards=1)
    answer = {"batchItemFailures": [{"itemIdentifier": "unknown"}]}
    handler = lambda_processor(lambda event, context: answer, report_batch_item_failures=True)
    fleet.start("w1", processor=handler)
    fleet.put(1)
    check(told(fleet, ProcessorRaised, "E24"), "E24", "itemIdentifier", "sequenceNumber")


def test_e24_a_call_in_a_window_without_a_state(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", processor=lambda_processor(lambda event, context: None, window=60))
    fleet.put(1)
    check(told(fleet, ProcessorRaised, "E24"), "E24", "'state'")


def test_e26_an_async_handler_that_blocks_the_event_loop(new_fleet):
    fleet = new_fleet(shards=1)

    async def on_record(record):
        fleet.simulation.sleep(5)

    fleet.start("w1", processor=handler(on_record))
    fleet.put(1)
    check(told(fleet, EventLoopBlocked, "E26"), "E26", "to_thread", "concurrency=")


def test_e30_a_start_time_that_has_not_come(local_aws):
    heard, later = Heard(), datetime.now(UTC) + timedelta(hours=1)
    with real_worker(heard, initial_position=later):
        check(heard.wait_for("E30", FailureStarted), "E30", "chronyc", "an earlier start")


def on_a_stream_that_ignores_keys(new_fleet, processor):
    """A fleet of one worker, which has had a record of each of two shards."""
    fleet = new_fleet(shards=1)
    fleet.kinesis.delete_stream(STREAM)
    fleet.kinesis.create_stream(STREAM, 2, mode="ON_DEMAND", distribution="AUTO")
    worker = fleet.start("w1", processor=processor)
    fleet.put(2)
    fleet.wait(lambda: len(worker.status().leases) == 2, what="both shards")
    fleet.simulation.sleep(30)
    return fleet


def sums(records: list[Record], window: Window) -> dict:
    return {}


@pytest.mark.parametrize(
    ("processor", "uses"),
    [
        (handler(lambda record: None, concurrency=4), "concurrency"),
        (handler(sums, window=60), "windows"),
        (lambda_processor(lambda event, context: {"state": {}}, window=60), "windows"),
    ],
    ids=["lanes", "windows of a function", "windows of a Lambda handler"],
)
def test_e28_what_counts_on_keys_on_a_stream_that_ignores_them(new_fleet, processor, uses):
    fleet = on_a_stream_that_ignores_keys(new_fleet, processor)
    event = told(fleet, KeysIgnored, "E28")
    check(event, "E28", "USER_PARTITION_KEY")
    assert event.uses == uses
    assert len(fleet.happened(KeysIgnored)) == 1, "once for a worker, not for each of its shards"


def test_a_function_that_counts_on_no_keys_is_not_told_that_they_are_ignored(new_fleet):
    assert not on_a_stream_that_ignores_keys(new_fleet, handler(lambda record: None)).happened(KeysIgnored)


def test_e31_a_shard_that_no_worker_gets_past(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.start("w1", retry_timeout=5.0, processor=processors(fleet, process_records=raises_key_error))
    fleet.put(1)
    check(told(fleet, RetriesExhausted, "E31"), "E31", f"pykcl doctor --app {TABLE} --stream {STREAM}")


# -- all of them -----------------------------------------------------------------------------------------------


def test_every_mistake_is_made_above():
    made = {name[5:8].upper() for name in globals() if name.startswith("test_e") and name[6:8].isdigit()}
    assert made == MISTAKES.keys()
    assert len(made) >= 24


def test_a_check_of_this_file_fails_without_code_hint_or_page():
    text = "Table 'orders-app' is not a lease table: x Nothing was read or changed. x"
    check(WrongTable(text), "E05", "table_name")
    for bad in (
        SetupError(text),
        WrongStream(text),
        WrongTable(text).about("E99"),
        WrongTable("not on the page"),
    ):
        with pytest.raises(AssertionError):
            check(bad, "E05")
    with pytest.raises(AssertionError):
        check(WrongTable(text).about("E05", "something else"), "E05", "table_name")


def test_an_error_about_no_mistake_says_nothing_more():
    error = TemporaryError("x")
    assert (error.code, error.hint, error.docs, error.explanation) == (None, None, None, None)
    assert line_of(FailureResolved(what="x")) == "trouble ended what=x shard=-"
    assert line_of(FailureStarted(what="x", cause="y")) == "trouble began what=x shard=- cause=y"


def test_a_hint_of_ones_own_has_the_names_too_and_cannot_forge_a_line():
    error = PyKclError("x").about("E05", "see TABLE of APPLICATION\n")
    error.naming(application="STREAM", stream="s", table=None)
    assert error.hint == "see TABLE of STREAM\n"
    assert error.explanation.isprintable()


@pytest.mark.parametrize("shard", ["a;reboot", "$(reboot)", "a b", "a'b", "`reboot`", "-x\n"])
def test_a_name_in_a_command_is_one_word_of_it(shard):
    error = PyKclError("x").about("E12", records=1).naming(shard=shard, application="my app")
    words = shlex.split(error.hint)
    assert words[words.index("--shard") + 1] == shard
    assert "my app" in words


def test_the_config_of_the_worker_names_the_hint(local_aws, dynamodb):
    make_table(dynamodb, key="id")
    config = Config(application="shop-app", stream=STREAM, table_name=TABLE)
    with (
        pytest.raises(WrongTable) as raised,
        Worker(config=config, processor=lambda: RecordingProcessor("w1", None)),
    ):
        pass
    assert "table_name=shop-app-leases" in raised.value.hint


def test_e21_attempts_that_end_and_nothing_to_keep_what_is_given_up():
    for options in ({"max_attempts": 3}, {"max_record_age": 3600}):
        with pytest.raises(ConfigError) as raised:
            Config(application=TABLE, stream=STREAM, **options)
        check(raised.value, "E21", "dead_letters='file:DIRECTORY'", "discard")


def test_e22_a_destination_that_keeps_nothing(new_fleet):
    fleet = new_fleet(shards=1)
    fleet.put(1)

    def fail(batch):
        raise ValueError

    def refuse(letters):
        raise SetupError("no such queue")

    fleet.start(
        "w1",
        processor=lambda: RecordingProcessor("w1", fleet.ledger, fail),
        max_attempts=1,
        dead_letters=refuse,
    )
    check(told(fleet, FailureStarted, "E22"), "E22", "correct the destination", f"pykcl lag --app {TABLE}")
    fleet.wait(lambda: fleet.happened(RetriesExhausted), what="the lease to be handed back")
    (back,) = fleet.happened(RetriesExhausted)
    assert is_on_page("E22", line_of(back)), line_of(back)
