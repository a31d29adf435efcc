"""Whatever a hint names is followed: commands are parsed, options and keys accepted, Python is called.

A name that none of these tests follows stands in `EXEMPT` with its reason, or fails
`test_a_name_that_nobody_follows_is_exempt_by_its_reason`.
"""

import ast
import contextlib
import dataclasses
import inspect
import pydoc
import re
import shlex
import threading
import typing
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import botocore.session
import click
import pytest
from hints import all_hints, hints_in, names_in
from messages import AS_OTHERS, COMMANDS, ROOT, UNKNOWN, all_texts, aws_takes, commands_about

import pykcl
import pykcl.testing
from pykcl.cli.main import main
from pykcl.compat.kclpy.kcl import KCLProcess
from pykcl.compat.kclpy.v3 import processor as kclpy_v3
from pykcl.compat.properties import KEYS, interpret, read_properties
from pykcl.compat.properties.credentials import KNOWN as CREDENTIALS_PROVIDERS
from pykcl.config import Config
from pykcl.error_catalog import MISTAKES
from pykcl.processor import Checkpointer

NAMED = [
    named for hint in all_hints() if not f"{hint.module}.".startswith(AS_OTHERS) for named in names_in(hint)
]
ALL_KEYS = read_properties(ROOT / "tests/compat/properties/all_88.properties")


def of(kind):
    """Return text -> a hint that names it."""
    return {named.text: named.hint for named in NAMED if named.kind == kind}


def test_hints_of_every_form_are_found():
    source = """
    LATER = "start it later"
    class Unfit:
        do: str
    def refuse(code, hint): ...
    def about(code, hint): ...
    problem, do = "it is wrong", f"write {x}"
    raise Error(f"No. Do: {way}.").about("E01", "pass region=")
    way = "first" if x == "no hint" else LATER
    Unfit("give a path"); refuse("E02", advice := LATER)
    text = "No. Do: drop it."
    text = f"{x} is wrong. Use another one, such as {y}. It is of no use."
    """
    assert {hint.text for hint in hints_in(inspect.cleandoc(source))} >= {
        "write …", "pass region=", "first", "start it later", "give a path", "drop it.",
        "Use another one, such as …",
    }  # fmt: skip
    texts = {hint.text for hint in all_hints()}
    assert "pykcl explain E28" in texts
    assert "check that STS can be reached from here, the token file and the trust policy of the role" in texts
    assert len(texts) > 300


# -- commands ------------------------------------------------------------------------------------------------------

WORDS = (
    "orders",
    "7",
    "7=49590338271490256608559692538361571095921575989136588898",
    "1h",
    "2026-11-20T09:00:00Z",
    "NAME=VALUE",
    "orders:handle",
    "http://127.0.0.1:80",
)
"""One of them is taken for each placeholder."""


def refusal_of(words):
    """Why click does not take a command with these words; None if it does."""
    group, name, rest = main, "pykcl", list(words)
    try:
        while isinstance(group, click.Group):
            if not rest:
                return None  # shows what there is
            name, group, rest = group.resolve_command(click.Context(group), rest)
        for param in group.params:
            if (
                param.required
                and isinstance(param, click.Argument)
                and not any(word[:1] != "-" for word in rest)
            ):
                rest.insert(0, word_for(param))
        with group.make_context(name, filled(group, rest)):
            return None
    except click.ClickException as error:
        return f"{' '.join(words)}: {error.format_message()}"


def filled(command, words):
    """The words with values in the places of their placeholders, and those that the hint leaves out."""
    options = {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    done, left = [], list(words)
    while left:
        word = left.pop(0)
        if word == UNKNOWN and not arguments:
            continue
        param = options.get(word)
        done.append(word)
        if param is not None and not getattr(param, "is_flag", False):
            value = left.pop(0) if left and left[0] not in options else UNKNOWN
            done.append(word_for(param, value))
        elif param is None and word[0] != "-" and arguments:
            done[-1] = word_for(arguments[0], word)
            arguments = arguments if arguments[0].nargs == -1 else arguments[1:]
    for param in command.params:
        if param.required and not isinstance(param, click.Argument) and not {*param.opts} & {*done}:
            done += [param.opts[0], word_for(param)]
    return done


def word_for(param, given=UNKNOWN):
    """The value that a hint gives a parameter, or one for its placeholder."""
    if UNKNOWN not in given and not re.fullmatch(r"[A-Z_]+(?::[A-Z]+)?(?:\.\w+)?|http://HOST:PORT", given):
        return given
    if isinstance(param.type, click.Choice) and given in param.type.choices:
        return given
    for word in (*getattr(param.type, "choices", ()), str(Path(__file__)), *WORDS):
        with contextlib.suppress(click.ClickException):
            param.type.convert(word, param, None)
            return word
    raise AssertionError(f"no word for {param.name}")


def command_words(text):
    words = shlex.split(text.replace(f"{UNKNOWN}'", "…").removeprefix("pykcl "))
    return [word for word in words if word]


@pytest.mark.parametrize("text", sorted(of("command")))
def test_every_command_that_a_hint_names_is_accepted(text):
    if is_exempt(text):
        return
    assert refusal_of(command_words(text)) is None


@pytest.mark.parametrize(
    "words", ["lease list", "leases lst", "lag --of-what", "checkpoints reset --shift-by x"]
)
def test_a_command_that_would_be_refused_is_seen(words):
    assert refusal_of(words.split()) is not None


def test_every_option_that_a_hint_names_is_accepted_by_a_command_it_is_about():
    """The last command in front of it, or one that the module is about."""
    found = {}
    for named in NAMED:
        if named.kind == "option" and named.text not in EXEMPT:
            before = " ".join(command_words(named.after)[:2])
            about = [before] if any(each.startswith(before or "-") for each in COMMANDS) else []
            about += ["run"] * (f"its {named.text}" in named.hint.text)
            about += commands_about(named.hint.module)
            refusals = [refusal_of([*command.split(), named.text]) for command in about]
            if None not in refusals:
                found[named.text] = refusals[0]
    assert found == {}


@pytest.mark.parametrize("text", sorted(text for text in of("program") if text.startswith("aws ")))
def test_every_command_of_the_aws_cli_that_a_hint_names_is_one(text):
    """Those of services; `aws configure` and its like are exempt."""
    if is_exempt(text):
        return
    _, service, operation, *words = text.split()
    client = botocore.session.get_session().create_client(service, region_name="eu-west-1")
    if operation == "wait":
        assert words[0].replace("-", "_") in client.waiter_names
        return
    assert hasattr(client, operation.replace("-", "_"))
    options = [word for word in words if word.startswith("--")]
    assert [option for option in options if not aws_takes(f"{service} {operation}", option)] == []


# -- options of Config, and keys -----------------------------------------------------------------------------------

SAMPLES = {
    "application": "orders-app", "stream": "orders", "initial_position": "TRIM_HORIZON", "region": "eu-west-1",
    "until": "2027-01-01T00:00:00Z", "dead_letters": "discard", "consumer": "orders-app", "metrics": "none",
    "worker_metrics": "throughput", "shards": "1,7",
}  # fmt: skip
NEEDS = {
    "checkpoint_interval": {"checkpoint_mode": "interval"}, "max_attempts": {"dead_letters": "discard"},
    "max_record_age": {"dead_letters": "discard"}, "max_unacked": {"checkpoint_mode": "ack"},
    "processor_timeout": {"processor_warn_after": 0.1}, "shards": {"until": "2027-01-01T00:00:00Z"},
    "fanout_transport": {"retrieval": "fanout"}, "consumer": {"retrieval": "fanout"},
    "register_consumer": {"retrieval": "fanout"}, "dead_letters": {}, "bisect": {"max_attempts": 3, "dead_letters": "discard"},
    "dead_letters_in_a_row": {"max_attempts": 3, "dead_letters": "discard"},
}  # fmt: skip
"""Option -> others that it goes together with."""
FIELDS = {field.name: field for field in dataclasses.fields(Config)}
TYPES = typing.get_type_hints(Config)


def sample_of(name):
    """A value of an option that is not its default: a larger number, another choice."""
    default = FIELDS[name].default
    choices = [one for one in typing.get_args(TYPES[name]) if isinstance(one, str) and one != default]
    if name in SAMPLES:
        return SAMPLES[name]
    if choices:
        return choices[0]
    if isinstance(default, bool):
        return not default
    kinds = {TYPES[name], *typing.get_args(TYPES[name])}
    if kinds & {int, float}:
        kind = int if int in kinds else float
        return kind((default or 5) * 2 if name != "max_records" else default / 2)
    return "orders-other"


def accepted(name, value):
    return Config(**{"application": "orders-app", "stream": "orders", **NEEDS.get(name, {}), name: value})


def value_of(text):
    """(name, value) of what a hint writes; the value is None for a placeholder, or where there is none."""
    name, _, value = text.partition("=")
    value = value.strip("'\"").replace("BUCKET/PREFIX", "bucket/prefix").replace("DIRECTORY", "letters")
    is_open = not value or UNKNOWN in value or (name in KEYS and value == "SECONDS_SINCE_1970")
    return name, None if is_open else value


OPTIONS_NAMED = {text for kind in ("name", "value") for text in of(kind) if text.partition("=")[0] in FIELDS}


@pytest.mark.parametrize("text", sorted(OPTIONS_NAMED))
def test_every_option_of_config_that_a_hint_names_is_accepted_with_the_advised_or_another_value(text):
    from pykcl.cli.settings import from_arguments

    name, value = value_of(text)
    if value == "None":
        return
    parsed = from_arguments([f"{name}={value}"])[name] if value is not None else sample_of(name)
    assert getattr(accepted(name, parsed), name) == parsed


LEAST = {"applicationName": "orders-app", "streamName": "orders", "executableName": "python3 app.py"}
KEYS_NAMED = {text for kind in ("key", "value") for text in of(kind) if text.partition("=")[0] in KEYS}


@pytest.mark.parametrize("text", sorted(KEYS_NAMED))
def test_every_key_that_a_hint_names_is_accepted_with_the_advised_or_another_value(text):
    name, value = value_of(text)
    if value is None:
        value = ALL_KEYS[name]
    others = {"initialPositionInStream": "AT_TIMESTAMP"} if name.endswith("Extended") else {}
    interpret({**LEAST, **others, name: value}, entry_point="multilang")


# -- Python --------------------------------------------------------------------------------------------------------


def on_record(record: pykcl.Record) -> None:
    """Stands for a function of a user."""


def sums(records: list[pykcl.Record], window: pykcl.Window) -> dict:
    """Stands for a function with windows."""
    return {}


class Orders(pykcl.RecordProcessor):
    """Stands for a class of a user."""

    def __init__(self, *_: object) -> None:
        pass

    def process_records(self, batch: pykcl.Batch) -> None:
        """Nothing is done."""


class Sink:
    """Stands for a sink of metrics."""

    def take(self, *_):
        """Nothing is done."""

    forget = take


@cache
def double(kind):
    return create_autospec(kind, instance=True)


def namespace():
    """What the Python of a hint may name: what pykcl exports, and stand-ins for what users and pykcl have at hand."""
    checkpointer = double(Checkpointer)
    return {
        **{name: getattr(pykcl.testing, name) for name in pykcl.testing.__all__},
        **{name: getattr(pykcl, name) for name in pykcl.__all__},
        **{name: double(kind) for name, kind in DOUBLES.items()},
        "app": pykcl.App("orders-app"), "checkpointer": checkpointer, "end": SimpleNamespace(checkpointer=checkpointer),
        "Orders": Orders, "Sink": Sink, "sink": Sink(), "on_record": on_record, "sums": sums, "keep": on_record,
        "function": on_record, "KCLProcess": KCLProcess, "datetime": datetime, "timezone": timezone, "orders": "orders",
        "__name__": "shop", "settings": None, "client": None, "record": None, "state": None,
    }  # fmt: skip


DOUBLES = {
    "worker": pykcl.Worker,
    "consumer": pykcl.Consumer,
    "producer": pykcl.Producer,
    "batch": pykcl.Batch,
}
FIRST = {
    "handler": "on_record", "lambda_processor": "lambda event, context: None", "KCLProcess": "Orders()",
    "Worker": "'orders-app', stream='orders', processor=Orders", "Producer": "'orders'", "app.stream": "'orders'",
    "Consumer": "'orders-app', stream='orders'", "AsyncConsumer": "'orders-app', stream='orders'",
    "run_processor": "Orders, [1, 2]", "records": "1",
}  # fmt: skip
"""What stands for `...` in a call, and before arguments with names."""
OWNERS = ("Worker", "Consumer", "handler", "lambda_processor", "Producer")
"""Who may take an argument that a hint names by itself."""
ARGUMENTS = {
    "clients": "{'kinesis': 1, 'dynamodb': 2}", "concurrency": "2", "decoder": "Record.json", "processor": "Orders",
    "serializer": "str.encode", "window": "60", "region": "'eu-west-1'", "stream": "'orders'",
}  # fmt: skip
"""What stands for a value that a hint leaves open."""
STANDARD = ("asyncio.", "atexit.", "functools.", "os.", "sys.", "Thread")


def first_of(name, text=""):
    return "sums" if name in ("handler",) and "window=" in text else FIRST.get(name, "")


def call_of(text):
    """The Python of a hint, with something in the place of what it leaves open."""
    text = text.removeprefix("@").replace(f"{UNKNOWN}(...)", "Orders()")
    name = text.partition("(")[0]
    if re.match(r"[\w.]+\(\w+=", text):
        text = text.replace("(", "(..., ", 1)
    text = text.replace("(...", f"({first_of(name, text)}").replace(
        f"({UNKNOWN})", f"({first_of(name, text)})"
    )
    return text.replace(f"={UNKNOWN}", "=2").replace(UNKNOWN, "orders").replace("(, ", "(")


@pytest.mark.parametrize("text", sorted(of("python")))
def test_the_python_of_a_hint_runs(text, monkeypatch, tmp_path):
    """A method without its object is one of something that users have."""
    monkeypatch.chdir(tmp_path)
    if is_exempt(text):
        return
    name = text.partition("(")[0]
    if name in STANDARD or name.startswith(STANDARD):
        assert callable(pydoc.locate(name) or getattr(threading, name, None))
    elif re.fullmatch(r"\w+\(\)", text):
        assert any(
            hasattr(kind, text[:-2])
            for kind in (*DOUBLES.values(), Checkpointer, pykcl.RecordProcessor, KCLProcess)
        )
    else:
        eval(call_of(text), namespace())


@pytest.mark.parametrize("text", sorted(of("function")))
def test_the_function_that_a_hint_writes_is_taken(text):
    name, parameters = re.fullmatch(r"def (\w+)\((.*)\)", text.replace(UNKNOWN, "start")).groups()
    made = {}
    exec(f"def {name}({parameters}): pass", made)
    take = {
        ("handler", "event, context"): pykcl.lambda_processor,
        ("function", "event"): lambda function: pykcl.Worker(
            "orders-app", stream="orders", processor=Orders, on_event=function
        ),
        ("on_record", "record"): pykcl.handler,
        ("start", ""): pykcl.App("orders-app").on_start,
    }[name, parameters]
    take(made[name])


PARAMETERS_NAMED = {text for text in of("value") if text.partition("=")[0] not in {*FIELDS, *KEYS}}


@pytest.mark.parametrize("text", sorted(PARAMETERS_NAMED))
def test_every_argument_that_a_hint_names_is_taken_by_what_has_it(text):
    if is_exempt(text):
        return
    name, _, value = text.partition("=")
    value = (
        ARGUMENTS[name]
        if not value or (UNKNOWN in value and "(" not in value)
        else value.replace(UNKNOWN, "2")
    )
    for owner in OWNERS:
        call = f"{owner}({first_of(owner, text)}, {name}={value})"
        call = call.replace("processor=Orders, ", "") if name == "processor" else call
        with contextlib.suppress(TypeError, ValueError):
            eval(call, namespace())
            return
    raise AssertionError(f"nothing takes {text}")


def test_every_other_name_in_a_hint_is_one_of_pykcl():
    methods = {*dir(pykcl.RecordProcessor), *dir(kclpy_v3.RecordProcessorBase)}
    known = {
        *FIELDS,
        *KEYS,
        *pykcl.__all__,
        *pykcl.testing.__all__,
        *methods,
        "RecordProcessorBase",
        *CREDENTIALS_PROVIDERS,
    }
    known |= inspect.signature(pykcl.lambda_processor).parameters.keys()
    session = botocore.session.get_session()
    known |= {
        one for name in ("dynamodb", "iam", "sts") for one in session.get_service_model(name).operation_names
    }
    names = {*of("name"), *of("class"), *of("key")}
    assert {name for name in names - known - RESPONSE if not is_exempt(name)} == set()


RESPONSE = {"batchItemFailures", "itemIdentifier", "sequenceNumber"}
"""Keys of the response that the next test returns."""


def test_a_response_as_advised_gives_up_the_record_that_it_names_and_no_other():
    advised = re.search(r"return (\{.*\]\})", MISTAKES["E24"].do)[1]
    assert all(key in advised for key in RESPONSE)

    def handler(event, context):
        for record in event["Records"]:
            if record["kinesis"]["data"] == "Mg==":
                return eval(advised, {"record": record})
        return {"batchItemFailures": []}

    result = pykcl.testing.run_processor(
        pykcl.lambda_processor(handler, report_batch_item_failures=True),
        [b"1", b"2", b"3"], max_attempts=2, bisect=True, dead_letters=[].extend,
    )  # fmt: skip
    assert [[record.data for record in letter.records] for letter in result.dead_letters] == [[b"2"]]
    assert result.lost == 0


# -- variables -----------------------------------------------------------------------------------------------------

VARIABLE = re.compile(r"\b(?:AWS|PYKCL|HTTPS?|NO)_[A-Z_]*[A-Z]\b")
WAYS, SOURCES = "aws/test_ways_to_aws.py", "aws/test_sources_at_start.py"
CORRECTED = (WAYS, "test_a_setting_that_is_refused_by_its_name_is_accepted_once_it_is_corrected")
OF_AN_ACCOUNT = (WAYS, "test_endpoints_of_an_account_are_found_once_the_advised_variable_names_it")
PROXIES = (WAYS, "test_a_start_succeeds_once_the_url_of_the_advised_variable_can_be_read")
OF_AN_INSTANCE = (SOURCES, "test_a_start_on_an_instance_succeeds_once_the_advised_variable_is_set")
WITHOUT_KEYS = (SOURCES, "test_a_start_without_credentials_succeeds_once_variables_name_some")
OF_A_SOURCE = (SOURCES, "test_a_start_succeeds_once_the_variable_that_the_message_names_is_corrected")
OF_OTHER_HOSTS = (WAYS, "test_fips_and_dual_stack")
FOLLOWED = {
    "AWS_ACCESS_KEY_ID": WITHOUT_KEYS,
    "AWS_ACCOUNT_ID": OF_AN_ACCOUNT,
    "AWS_ACCOUNT_ID_ENDPOINT_MODE": OF_AN_ACCOUNT,
    "AWS_CA_BUNDLE": (
        WAYS,
        "test_a_start_succeeds_once_the_advised_variable_names_a_file_that_also_has_the_authority",
    ),
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": OF_A_SOURCE,
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": OF_A_SOURCE,
    "AWS_DEFAULT_REGION": CORRECTED,
    "AWS_ENDPOINT_URL": CORRECTED,
    "AWS_LAMBDA_FUNCTION_NAME": (
        "cli/test_run_lambda.py",
        "test_the_function_keeps_its_name_so_that_keys_derived_from_it_stay",
    ),
    "AWS_METADATA_SERVICE_NUM_ATTEMPTS": OF_AN_INSTANCE,
    "AWS_METADATA_SERVICE_TIMEOUT": OF_AN_INSTANCE,
    "AWS_PROFILE": WITHOUT_KEYS,
    "AWS_REGION": CORRECTED,
    "AWS_ROLE_ARN": OF_A_SOURCE,
    "AWS_SECRET_ACCESS_KEY": WITHOUT_KEYS,
    "AWS_SHARED_CREDENTIALS_FILE": WITHOUT_KEYS,
    "AWS_USE_DUALSTACK_ENDPOINT": OF_OTHER_HOSTS,
    "AWS_USE_FIPS_ENDPOINT": OF_OTHER_HOSTS,
    "AWS_WEB_IDENTITY_TOKEN_FILE": OF_A_SOURCE,
    "HTTPS_PROXY": PROXIES,
    "HTTP_PROXY": PROXIES,
    "NO_PROXY": (WAYS, "test_a_start_succeeds_once_the_hosts_of_aws_are_named_as_advised"),
    "PYKCL_APPLICATION": (
        "api/test_config_from_files.py",
        "test_a_program_of_kclpy_needs_no_file_where_application_and_stream_are_told",
    ),
    "PYKCL_HTTP_TOKEN": (
        "cli/test_lease_commands.py",
        "test_lag_is_told_by_the_workers_to_who_has_their_token",
    ),
    "PYKCL_STREAM": (
        "api/test_config.py",
        "test_a_byte_that_is_no_utf_8_is_refused_by_name_before_anything_starts",
    ),
}
"""A variable -> the file and the test that sets it as advised, and sees the start succeed."""


def source_of(path, test):
    """The text of a test with its decorators."""
    source = (ROOT / "tests" / path).read_text("utf-8")
    (found,) = [node for node in ast.parse(source).body if getattr(node, "name", "") == test]
    first = min([found.lineno, *(one.lineno for one in found.decorator_list)])
    return "\n".join(source.splitlines()[first - 1 : found.end_lineno])


def test_every_variable_that_a_text_names_is_set_by_a_test_that_sees_the_start_succeed():
    named = {
        *of("variable"),
        *(name for _, text in all_texts() if " " in text for name in VARIABLE.findall(text)),
    }
    assert {name for name in named if not is_exempt(name)} == FOLLOWED.keys()
    for variable, place in FOLLOWED.items():
        assert variable in source_of(*place), variable


# -- what nothing follows ------------------------------------------------------------------------------------------

EXEMPT = {
    "pykcl as ": "a sentence",
    "pykcl calls": "a sentence",
    "pykcl run name a ": "a sentence",
    "aws configure": "of the AWS CLI alone",
    "aws sso": "of the AWS CLI alone",
    "aws s3": "of the AWS CLI alone",
    "aws …": "whatever service was refused",
    "--mode": "of KCL's KclMigrationTool.py",
    "--profile": "of the AWS CLI",
    "AWS_XRAY_CONTEXT_MISSING": "of the X-Ray SDK, which the tests do not install",
    "DD_TRACE_BOTOCORE_ENABLED": "of ddtrace, which the tests do not install",
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "of OpenTelemetry's instrumentation, which the tests do not install",
    "PYKCL_LEASE_STORE": "to be left out",
    "aws login": "of the AWS CLI alone",
    "credential_process": "of an AWS profile",
    "role_arn": "of an AWS profile",
    "amazon_kclpy": "a package",
    "MultiLangDaemon": "a program of KCL",
    "KclMigrationTool": "a program of KCL",
    "CloudWatch": "a service of AWS",
    "leaseCounter": "an attribute of a row",
    "endpoint=": "a part of a value: see tests/compat/properties/test_credentials.py",
    "TypedDict": "of Python: see tests/handlers/test_decode.py",
    "patch()": "of the X-Ray SDK",
    "process_records(self, batch)": "written by the class Orders above",
    "arrived=": "to be left out",
    "by=": "of the result of a run: see tests/testing_kit",
    "per=": "of the result of a run: see tests/testing_kit",
    "endpoint_url=": "to be left out",
}
"""A name, or how it begins -> why nothing follows it."""


def is_exempt(text):
    return text.startswith(tuple(EXEMPT))


def test_nothing_is_exempt_that_no_hint_names():
    assert [name for name in EXEMPT if not any(named.text.startswith(name) for named in NAMED)] == []
