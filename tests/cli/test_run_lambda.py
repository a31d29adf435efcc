"""`pykcl run --lambda`: what goes together, the file of --esm, a function that runs, and one that cannot be imported."""

import json
import os
import re
import signal
import subprocess
import sys
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import boto3
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from service_kit import Service

from pykcl import lambda_processor
from pykcl.cli.local import local_environment
from pykcl.cli.main import main
from pykcl.cli.run_lambda import LambdaFunction
from pykcl.cli.settings import settings_of
from pykcl.cli.shadow import Counter, Tally
from pykcl.errors import ConfigError
from pykcl.local.server import LocalAws
from pykcl.model.record import Record
from pykcl.processor import Batch

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
MAPPING = {"EventSourceArn": ARN, "StartingPosition": "TRIM_HORIZON", "BatchSize": 7, "Whatever": 1}
OF_A_FUNCTION = (
    "AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_VERSION", "LAMBDA_TASK_ROOT", "_X_AMZN_TRACE_ID",
)  # fmt: skip
FUNCTION = """
import os
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

processor = BatchProcessor(event_type=EventType.KinesisDataStreams)
tried = set()

def record_handler(record):
    order = record.kinesis.data_as_json()["id"]
    if order == 2 and order not in tried:
        tried.add(order)
        raise ConnectionError
    print("shipped", order, os.environ["AWS_LAMBDA_FUNCTION_NAME"], flush=True)

def lambda_handler(event, context):
    print("identity", event["Records"][0]["invokeIdentityArn"], flush=True)
    return process_partial_response(event, record_handler, processor, context)
"""


@pytest.fixture(autouse=True)
def _environment():
    """Without the variables of a function, also afterwards: the code sets them."""
    with patch.dict(os.environ):
        for name in OF_A_FUNCTION:
            os.environ.pop(name, None)
        yield


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(*words): the result of `pykcl run` in a folder without modules, with AWS out of reach."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "PYKCL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("pykcl.cli.run.log_to_stderr", lambda *_, **__: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, ["run", *words])


def settings_for(function, **options):
    return settings_of(
        entry_point="native",
        properties=None,
        config_file=None,
        overrides={"application": "orders-app", **options},
        accept_polling=False,
        defaults=function.options(shows_outcomes=False),
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["shop:Orders", "--esm", "esm.json"], "--esm goes with --lambda only"),
        (["shop:Orders", "--no-deaggregate"], "--no-deaggregate goes with --lambda only"),
        (["shop:Orders", "--function-timeout", "3s"], "--function-timeout goes with --lambda only"),
        (["shop:Orders", "--handler-is-thread-safe"], "--handler-is-thread-safe goes with --lambda only"),
        (["x:Y", "--report-batch-item-failures"], "--report-batch-item-failures goes with --lambda only"),
        (["shop:Orders", "--lambda", "shop:handler"], "--lambda and MODULE:CLASS do not go together"),
        (["--kclpy", "app.py", "--lambda", "shop:handler"], "--lambda and --kclpy do not go together"),
        (
            ["-p", "app.properties", "--lambda", "shop:handler"],
            "--lambda and --properties do not go together",
        ),
        (["--lambda", "shop", "--app", "orders-app", "--stream", "orders"], "is not MODULE:HANDLER"),
        (["shop:Orders", "--function-name", "shop"], "--function-name goes with --lambda only"),
        (["--kclpy", "app.py", "--window", "60"], "--window and --kclpy do not go together"),
        (["--lambda", "shop:handler", "--window", "901"], "out of range"),
        ([], "Missing argument 'MODULE:CLASS'"),
    ],
)
def test_what_does_not_go_together_is_refused(run, words, problem):
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert problem in result.output


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "it cannot be read (No such file or directory)."),
        (b"\xff\xfe", "it is not UTF-8."),
        (b" " * (1024 * 1024 + 1), "it is longer than 1 MiB."),
        (b"{", "it is not JSON. Do: aws lambda get-event-source-mapping --uuid UUID > esm.json."),
        (b'{"EventSourceArn": "arn:aws:sqs:eu-west-1:123456789012:q"}', "it is a mapping of SQS"),
    ],
)
def test_a_file_that_is_no_mapping_of_kinesis_is_refused_before_any_request(run, tmp_path, content, problem):
    if content is not None:
        (tmp_path / "esm.json").write_bytes(content)
    result = run("--lambda", "shop:handler", "--app", "orders-app", "--esm", "esm.json")
    assert result.exit_code == 78, result.output
    assert f"--esm esm.json: {problem}" in result.output


def test_a_mapping_gives_options_that_every_other_source_takes_precedence_over(tmp_path, monkeypatch):
    file = tmp_path / "esm.json"
    file.write_text(json.dumps({**MAPPING, "BisectBatchOnFunctionError": True}), "utf-8-sig")
    function = LambdaFunction("shop:handler", esm=file, no_deaggregate=True)
    config = settings_for(function, **function.overrides).config
    assert (config.stream, config.initial_position, config.batch_size) == (ARN, "TRIM_HORIZON", 7)
    assert config.bisect
    assert not config.deaggregate
    monkeypatch.setenv("PYKCL_BATCH_SIZE", "8")
    assert settings_for(function).config.batch_size == 8
    assert settings_for(function, batch_size=9).config.batch_size == 9


def test_the_batch_size_is_lambdas_and_without_lambda_as_ever():
    assert settings_for(LambdaFunction("shop:handler"), stream="orders").config.batch_size == 100
    assert settings_for(LambdaFunction(), stream="orders").config.batch_size is None


def test_retries_without_a_destination_are_refused_with_the_word_that_discards(run, tmp_path):
    (tmp_path / "esm.json").write_text(json.dumps({**MAPPING, "MaximumRetryAttempts": 2}), "utf-8")
    result = run("--lambda", "shop:handler", "--app", "orders-app", "--esm", "esm.json")
    assert result.exit_code == 78
    assert "max_attempts=3" in result.output
    assert 'dead_letters="discard"' in result.output
    assert re.search(r"^MaximumRetryAttempts +max_attempts=3$", result.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("entry_point", "library"), [("kclpy", "amazon_kclpy"), ("multilang", "the MultiLangDaemon")]
)
def test_programs_for_other_libraries_cannot_ack(entry_point, library):
    with pytest.raises(ConfigError, match=f"checkpoint_mode='ack'.*{library}"):
        settings_of(
            entry_point=entry_point,
            properties=None,
            config_file=None,
            overrides={"application": "orders-app", "stream": "orders", "checkpoint_mode": "ack"},
            accept_polling=False,
        )


@pytest.mark.parametrize("mode", ["manual", "ack"])
def test_checkpoint_modes_that_wait_for_the_program_are_refused(mode):
    settings = settings_for(LambdaFunction("shop:handler"), stream="orders", checkpoint_mode=mode)
    with pytest.raises(ConfigError, match=f"checkpoint_mode='{mode}'"):
        LambdaFunction("shop:handler").processor(settings, lambda target: print)


def test_the_module_finds_the_variables_of_a_function_that_is_not_traced_when_it_is_imported(monkeypatch):
    found = {}

    def load(target):
        found.update({name: os.environ[name] for name in OF_A_FUNCTION})
        return print

    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "shop")
    LambdaFunction("shop:handler").processor(
        settings_for(LambdaFunction("shop:handler"), stream="orders"), load
    )
    assert found["AWS_LAMBDA_FUNCTION_NAME"] == "shop"
    assert found["LAMBDA_TASK_ROOT"] == os.getcwd()
    assert found["_X_AMZN_TRACE_ID"].endswith(";Sampled=0")


def test_a_window_is_that_of_the_mapping_or_the_one_that_is_given(tmp_path):
    file = tmp_path / "esm.json"
    file.write_text(json.dumps({**MAPPING, "TumblingWindowInSeconds": 120}), "utf-8")
    function = LambdaFunction("shop:handler", esm=file)
    settings = settings_for(function)
    assert function.processor(settings, lambda target: print)().windows.seconds == 120
    given = replace(function, window=60.0)
    assert given.processor(settings, lambda target: print)().windows.seconds == 60
    assert LambdaFunction("shop:handler").processor(settings, lambda target: print)().windows is None
    with pytest.raises(ConfigError, match="whole seconds"):
        replace(function, window=1.5).processor(settings, lambda target: print)


@pytest.mark.parametrize("words", [[], ["--app", "orders-app", "--stream", "orders", "--local"]])
def test_an_app_has_its_windows_in_the_program(run, tmp_path, words):
    (tmp_path / "shop_of_windows.py").write_text("from pykcl import App\napp = App('orders-app')\n", "utf-8")
    sys.path.insert(0, str(tmp_path))
    result = run("shop_of_windows:app", "--window", "60", *words)
    assert result.exit_code == 2, result.output
    assert '@app.stream("orders", window=60)' in result.output


def test_a_shadow_that_calls_a_handler_with_windows_closes_them():
    processor = lambda_processor(lambda event, context: calls.append(event) or {"state": 1}, window=60)()
    calls, shadow = [], Counter(Tally(), processor)
    assert shadow.windows is processor.windows
    one = Record(b"1", "k", "1", 60_000.0, "shardId-000000000000")
    shadow.windows.open_for(one)
    for batch in ((one,), ()):
        shadow.process_records(Batch(batch, None, 0, one.shard_id, "orders"))
    assert [event["isFinalInvokeForWindow"] for event in calls] == [False, True]
    assert not shadow.windows.is_open


def test_a_shadow_that_calls_the_handler_waits_for_its_turn():
    processor = lambda_processor(print)()
    assert processor.turn is not None
    assert Counter(Tally(), processor).turn is processor.turn


# -- real processes --------------------------------------------------------------------------------------------


@pytest.fixture
def aws():
    with LocalAws() as aws:
        aws.kinesis.create_stream("orders", 2)
        yield aws


@pytest.fixture
def start(tmp_path, aws):
    started = []

    def begin(*arguments, program=FUNCTION):
        words = (
            "--lambda",
            "program:lambda_handler",
            "--app",
            "orders-app",
            "--stream",
            "orders",
            *arguments,
        )
        started.append(Service(tmp_path, aws, "run", *words, program=program))
        return started[-1]

    yield begin
    for service in started:
        service.end()


def test_an_unmodified_batch_processor_function_ships_every_order_once(start, aws, tmp_path):
    (tmp_path / "esm.json").write_text(
        json.dumps({**MAPPING, "FunctionResponseTypes": ["ReportBatchItemFailures"]}), "utf-8"
    )
    for order in (1, 2, 3):
        aws.kinesis.put_record("orders", json.dumps({"id": order}).encode(), "alice")
    service = start("--esm", "esm.json")
    service.until(lambda: service.output.read_text().count("shipped") >= 4, "every order")
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(300) == 0
    lines = service.output.read_text().splitlines()
    # Order 3 came with order 2, which failed: it comes again, as in Lambda.
    assert [line for line in lines if line.startswith("shipped")] == [
        f"shipped {order} orders-app" for order in (1, 3, 2, 3)
    ]
    assert "identity arn:aws:iam::000000000000:user/local" in lines
    assert re.search(r"^Whatever +not used: pykcl does not know this key$", service.text, re.MULTILINE)


COUNTS = """
def lambda_handler(event, context):
    print("final" if event["isFinalInvokeForWindow"] else "counts", event["state"], flush=True)
    return {"state": {"n": event["state"].get("n", 0) + len(event["Records"])}}
"""


def test_a_function_with_windows_counts_and_closes_them(start, aws):
    service = start("--start", "TRIM_HORIZON", "--window", "1s", program=COUNTS)

    def is_closed():
        # Until one comes in a later window.
        aws.kinesis.put_record("orders", b"one", "alice")
        return "final {'n': " in service.output.read_text()

    service.until(is_closed, "the end of a window")
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(300) == 0


MISBEHAVES = """
import os

def lambda_handler(event, context):
    print("got", len(event["Records"]), "remaining", context.get_remaining_time_in_millis() > 0, flush=True)
    event["Records"].clear()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print("child is gone", flush=True)
    return {"x": "y" * 10_000_000}
"""


def test_a5_4_a_handler_that_prints_changes_its_event_forks_and_returns_ten_megabytes(start, aws):
    aws.kinesis.put_record("orders", b"one", "alice")
    service = start("--start", "TRIM_HORIZON", "--report-batch-item-failures", program=MISBEHAVES)
    service.until(lambda: "child is gone" in service.output.read_text(), "the end of the call")
    aws.kinesis.put_record("orders", b"two", "alice")
    service.until(lambda: service.output.read_text().count("child is gone") == 2, "the next call")
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(300) == 0
    lines = service.output.read_text().splitlines()
    assert lines == ["got 1 remaining True", "child is gone"] * 2


KEEPS_ITS_THREAD = """
import asyncio, contextvars, decimal, json, signal, sqlite3, threading
from aws_lambda_powertools.utilities.batch import AsyncBatchProcessor, EventType, async_process_partial_response

decimal.getcontext().prec = 50
decimal.getcontext().rounding = decimal.ROUND_HALF_UP
tenant = contextvars.ContextVar("tenant", default="nobody")
tenant.set("alice")
database = sqlite3.connect(":memory:")
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
processor = AsyncBatchProcessor(event_type=EventType.KinesisDataStreams)
loops = set()

async def record_handler(record):
    loops.add(asyncio.get_running_loop())

def lambda_handler(event, context):
    signal.alarm(600)
    async_process_partial_response(event, record_handler, processor, context)
    print(json.dumps([
        str(decimal.Decimal(2).sqrt()), str(decimal.Decimal("2.5").quantize(1)), tenant.get(),
        database.execute("select 1").fetchone(), asyncio.get_event_loop() is loop, len(loops),
        threading.current_thread() is threading.main_thread(), signal.alarm(0) > 0,
    ]), flush=True)
"""
AS_LAMBDA_DOES = """
import program
event = {"eventID": "shardId-000000000000:1", "kinesis": {"data": "MQ==", "sequenceNumber": "1"}}
program.lambda_handler({"Records": [event]}, None)
"""


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]], ids=["one process", "two processes"])
def test_calls_for_three_shards_find_the_thread_of_the_module_as_in_lambda(start, aws, tmp_path, processes):
    aws.kinesis.create_stream("carts", 3)
    for number in range(60):
        aws.kinesis.put_record("carts", b"1", str(number))
    service = start(
        "--stream", "carts", "--start", "TRIM_HORIZON", "--option", "batch_size=2", *processes,
        program=KEEPS_ITS_THREAD,
    )  # fmt: skip
    service.until(lambda: len(service.output.read_text().splitlines()) >= 30, "every batch")
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(300) == 0
    in_lambda = subprocess.run(
        [sys.executable, "-c", AS_LAMBDA_DOES],
        cwd=tmp_path,
        env={**os.environ, "LAMBDA_TASK_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(in_lambda)[1:] == ["3", "alice", [1], True, 1, True, True]
    assert set(service.output.read_text().splitlines()) == {in_lambda.strip()}


HANGS = """
import threading

def lambda_handler(event, context):
    print("hangs", flush=True)
    try:
        threading.Event().wait()
    except BaseException as error:
        print(type(error).__name__, flush=True)
        raise
"""


def test_a_call_that_hangs_in_the_main_thread_is_broken_off_by_a_second_signal(start, aws):
    aws.kinesis.put_record("orders", b"one", "alice")
    service = start("--start", "TRIM_HORIZON", program=HANGS)
    service.until(lambda: "hangs" in service.output.read_text(), "the call")
    service.process.send_signal(signal.SIGTERM)
    service.until(lambda: "worker stops" in service.text, "the stop")
    while service.process.poll() is None:  # a second one counts after a second
        service.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            service.process.wait(1.5)
    assert service.process.returncode == 70
    assert service.output.read_text().splitlines() == ["hangs", "CallBrokenOff"]
    assert "a second signal came" in service.text


def test_a5_6_a_module_that_fails_to_import_ends_before_any_lease_is_taken(start, aws):
    service = start(program="import no_such_library_of_ours\n")
    assert service.process.wait(60) == 70
    assert "program cannot be imported: ModuleNotFoundError" in service.text
    assert not [request for request in aws.requests if request.service in ("dynamodb", "kinesis")]


# -- names of the function, and its module -------------------------------------------------------------------------

FUNCTION_ARN = "arn:aws:lambda:us-east-1:123456789012:function:orders:7"


def loaded(monkeypatch, load, **function):
    """The context of a call, and the name in the environment when the module was imported."""
    monkeypatch.setattr("pykcl.aws.credentials.identity_arn", lambda *_: "")
    seen = []

    def find(target):
        seen.append(
            (target, os.environ["AWS_LAMBDA_FUNCTION_NAME"], os.environ["AWS_LAMBDA_FUNCTION_VERSION"])
        )
        load()
        return lambda event, context: None

    function = LambdaFunction(**{"handler": "shop:handler", **function})
    make = function.processor(settings_for(function, stream="orders"), find)
    processor = make()
    processor._application = "orders-app"
    return seen[0], processor._context()


@pytest.mark.parametrize(
    ("function", "environment", "name", "version"),
    [
        ({}, {}, "orders-app", "$LATEST"),
        ({"esm": True}, {}, "orders", "7"),
        ({"esm": True}, {"AWS_LAMBDA_FUNCTION_NAME": "mine"}, "mine", "$LATEST"),
        ({}, {"AWS_LAMBDA_FUNCTION_NAME": "mine", "AWS_LAMBDA_FUNCTION_VERSION": "3"}, "mine", "3"),
        ({"esm": True, "function_name": "given"}, {"AWS_LAMBDA_FUNCTION_NAME": "mine"}, "given", "$LATEST"),
    ],
)
def test_the_function_keeps_its_name_so_that_keys_derived_from_it_stay(
    monkeypatch, tmp_path, function, environment, name, version
):
    os.environ.update(environment)
    if function.get("esm"):
        function = {**function, "esm": tmp_path / "esm.json"}
        function["esm"].write_text(json.dumps({**MAPPING, "FunctionArn": FUNCTION_ARN}))
    (_, *at_import), context = loaded(monkeypatch, lambda: None, **function)
    assert at_import == [name, version]
    assert (context.function_name, context.function_version) == (name, version)


IDEMPOTENT = """
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, idempotent_function

processor = BatchProcessor(event_type=EventType.KinesisDataStreams)

@idempotent_function(data_keyword_argument="order", persistence_store=DynamoDBPersistenceLayer("effects"))
def ship(order):
    print("shipped", order["id"], flush=True)

def record_handler(record):
    order = record.kinesis.data_as_json()
    ship(order=order)
    print("done", order["id"], flush=True)

def lambda_handler(event, context):
    return process_partial_response(event, record_handler, processor, context)
"""
AS_LAMBDA_CALLS = "import json, sys, program; program.lambda_handler(json.load(sys.stdin), None)"


def test_no_effect_is_repeated_over_the_move_of_a_function_with_idempotency_of_powertools(
    start, aws, tmp_path
):
    dynamodb = boto3.client(
        "dynamodb",
        endpoint_url=aws.url,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    dynamodb.create_table(
        TableName="effects",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )

    def keys():
        return {item["id"]["S"].partition("#")[0] for item in dynamodb.scan(TableName="effects")["Items"]}

    orders = [json.dumps({"id": number}).encode() for number in (1, 2, 3)]
    for order in orders:
        aws.kinesis.put_record("orders", order, "alice")
    data = [b64encode(order).decode() for order in orders[:2]]
    event = {"Records": [{"kinesis": {"data": each, "sequenceNumber": each}} for each in data]}
    (tmp_path / "program.py").write_text(IDEMPOTENT)
    in_lambda = {"AWS_LAMBDA_FUNCTION_NAME": "orders", "LAMBDA_TASK_ROOT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", AS_LAMBDA_CALLS],
        input=json.dumps(event), text=True, capture_output=True, check=True,
        cwd=tmp_path, env={**os.environ, **local_environment(aws.url), **in_lambda},
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if "shipped" in line] == ["shipped 1", "shipped 2"]
    assert keys() == {"orders.program.ship"}

    (tmp_path / "esm.json").write_text(json.dumps({**MAPPING, "FunctionArn": FUNCTION_ARN}))
    service = start("--esm", "esm.json", program=IDEMPOTENT)
    service.until(lambda: service.output.read_text().count("done") == 3, "every order")
    assert [line for line in service.output.read_text().splitlines() if "shipped" in line] == ["shipped 3"]
    assert keys() == {"orders.program.ship"}


@pytest.mark.parametrize("handler", ["shop:handler", "shop.handler", "src/shop.handler"])
def test_lambda_s_own_form_of_a_handler_is_understood(monkeypatch, handler):
    (target, *_), _ = loaded(monkeypatch, lambda: None, handler=handler)
    assert target == handler.replace("/", ".").replace(".handler", ":handler")


def test_a_function_of_the_module_for_sigterm_is_said_not_to_be_called(monkeypatch, caplog):
    before = signal.getsignal(signal.SIGTERM)
    try:
        loaded(monkeypatch, lambda: None)
        assert "SIGTERM" not in caplog.text
        loaded(monkeypatch, lambda: signal.signal(signal.SIGTERM, lambda *_: None))
        assert "sets a function for SIGTERM, which is not called" in caplog.text
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("name", "said"),
    [("handlr", "Did you mean handler?"), ("Orders", "The functions defined there: handler.")],
)
def test_a_handler_that_is_not_there_is_answered_with_functions(run, tmp_path, monkeypatch, name, said):
    monkeypatch.setattr("pykcl.aws.credentials.identity_arn", lambda *_: "")
    (tmp_path / "a_shop_of_handlers.py").write_text("def handler(event, context):\n    pass\n")
    result = run("--lambda", f"a_shop_of_handlers.{name}", "--app", "orders-app", "--stream", "orders")
    assert f"a_shop_of_handlers has no {name!r}. {said}" in " ".join(result.output.split())
