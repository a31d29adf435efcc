"""What a refusal advises in free text is taken from the text, done, and accepted."""

import re
from dataclasses import fields
from datetime import datetime

import pytest

from pykcl import Config, lambda_processor
from pykcl.compat.properties import KEYS, interpret
from pykcl.config import _SMALLEST, _WHOLE
from pykcl.errors import ConfigError
from pykcl.handlers.lambda_processor import FunctionName
from pykcl.health import http
from pykcl.operate.checkpoints.plan import parse_position
from pykcl.operate.streams.formats import template
from pykcl.operate.streams.reader import parse_since
from pykcl.times import parse_duration, parse_time

FIELDS = {field.name: field for field in fields(Config)}


def config(**options):
    return Config(**{"application": "orders-app", "stream": "orders", **options})


def refusal(make, *given, **options):
    with pytest.raises(ConfigError) as raised:
        make(*given, **options)
    return str(raised.value)


# -- Config ----------------------------------------------------------------------------------------------------

GO_TOGETHER = {
    "checkpoint_interval": {"checkpoint_mode": "interval"},
    "max_attempts": {"dead_letters": "discard"},
    "max_record_age": {"dead_letters": "discard"},
    "max_unacked": {"checkpoint_mode": "ack"},
    "processor_timeout": {"processor_warn_after": 0.1},
}


@pytest.mark.parametrize("name", [name for name in FIELDS if name in _SMALLEST])
@pytest.mark.parametrize("wrong", [-1, 10**12])
def test_a_number_out_of_range_is_refused_with_bounds_that_are_accepted(name, wrong):
    bounds = re.search(r"Write ([\d.]+) to ([\d.]+)\.$", refusal(config, **{name: wrong})).groups()
    for bound in bounds:
        number = float(bound) if name not in _WHOLE else int(bound)
        config(**{name: number, **GO_TOGETHER.get(name, {})})


def test_a_memory_bound_that_is_too_small_is_refused_with_the_least():
    least = re.search(r"Raise it to at least (\d+)\.", refusal(config, max_buffered_bytes=1))[1]
    config(max_buffered_bytes=int(least))


def test_a_start_that_is_no_position_is_refused_with_three_that_are():
    text = refusal(config, initial_position="yesterday")
    for advised in re.search(r"Use (\w+), (\w+) or a time such as (.*)\.$", text).groups():
        config(initial_position=advised)


def test_a_time_without_its_zone_is_accepted_with_the_letter_to_add():
    time = datetime(2026, 11, 20, 9)  # noqa: DTZ001 - that is the mistake
    letter = re.search("add '(Z)' or an offset", refusal(config, initial_position=time))[1]
    config(initial_position=time.isoformat() + letter)


@pytest.mark.parametrize(("name", "misspelt"), [
    ("checkpoint_mode", "intervall"), ("on_error", "skipp"), ("http_transport", "boto"), ("record_encoding", "cborr"),
    ("lease_scan_mode", "segment"), ("fleet_mode", "3"), ("leader", "equals"), ("worker_metrics", "CPU"),
])  # fmt: skip
def test_a_choice_that_is_misspelt_is_accepted_as_meant(name, misspelt):
    text = refusal(config, **{name: misspelt})
    meant = re.search(r"Did you mean '(\w+)'\?", text) or re.search(r"one of .*'(\w+)'\.$", text)
    config(**{name: meant[1]})


def test_an_option_that_is_misspelt_is_accepted_as_meant():
    text = refusal(Config.from_options, {"application": "orders-app", "stream": "orders", "max_lease": 3})
    config(**{re.search(r"Did you mean '(\w+)'", text)[1]: 3})


CONTRADICTIONS = [
    {"checkpoint_interval": 5.0},
    {"max_unacked": 5},
    {"record_encoding": "cbor", "http_transport": "boto3"},
    {"processor_timeout": 1.0},
    {"max_attempts": 3},
    {"max_record_age": 60.0, "on_error": "skip"},
    {"bisect": True, "on_error": "raise"},
    {"max_attempts": 3, "checkpoint_mode": "ack", "dead_letters": "discard"},
]


@pytest.mark.parametrize("options", CONTRADICTIONS, ids=str)
def test_options_that_contradict_go_together_after_what_is_advised(options):
    """Each refusal names an option that can be left out, or another value for one. Both ways end."""
    for way in ("drop", "set"):
        given = dict(options)
        for _ in range(3):
            try:
                config(**given)
                break
            except ConfigError as error:
                given = (without_one if way == "drop" else with_another)(given, str(error))
        else:
            raise AssertionError(f"{way} does not end: {given}")


def without_one(options, text):
    assert re.search(r"\bdrop|Drop|Lower|Name a destination", text)
    return dict(list(options.items())[1:])


def with_another(options, text):
    value = re.search(r"(?:Use|such as) (\w+)=['\"]([\w:]+)['\"]", text)
    lower = re.search(r"than (processor_warn_after)=.* Lower the latter", text)
    return (
        {**options, lower[1]: 0.1}
        if lower
        else {**options, value[1]: value[2]}
        if value
        else without_one(options, text)
    )


# -- destinations of dead letters ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["/var/letters", "file://host/letters", "file:", "s3://", "s3://A_B?owner=me"]
)
def test_a_destination_that_is_none_is_accepted_as_advised(text):
    said = refusal(config, dead_letters=text)
    advised = re.search(r"may be a directory: (\S+)\. ", said) or re.search(r"Do: (\S+?)[.,]", said)
    config(dead_letters=filled(advised[1]))


def test_the_forms_of_a_destination_are_accepted():
    said = refusal(config, dead_letters="letters")
    for form in re.search(r"Do: (.*), or the ARN", said)[1].split(", "):
        config(dead_letters=filled(form))
    assert "the ARN of an SQS queue, an SNS topic, an S3 bucket or a Kinesis stream" in said
    for arn in ("sqs:eu-west-1:123456789012:q", "sns:eu-west-1:123456789012:t", "s3:::bucket"):
        config(dead_letters=f"arn:aws:{arn}")
    config(dead_letters="arn:aws:kinesis:eu-west-1:123456789012:stream/letters")


def filled(form):
    return form.replace("DIRECTORY", "letters").replace("BUCKET/PREFIX", "bucket/prefix")


# -- Lambda ----------------------------------------------------------------------------------------------------


def handle(event, context):
    """Stands for a handler that shares nothing."""


def test_a_function_is_named_in_each_of_the_forms_that_are_advised():
    advised = re.search(r"Write (\S+), (\S+) or (\S+)\.$", refusal(FunctionName.parse, "my orders")).groups()
    for form in advised:
        named = form.replace("NAME", "orders").replace("VERSION", "7").replace("REGION", "eu-west-1")
        FunctionName.parse(named.replace("ACCOUNT", "123456789012"))


def test_several_calls_at_once_are_accepted_without_concurrency_or_with_what_is_said_of_the_handler():
    said = refusal(lambda_processor, handle, concurrency=4)
    lambda_processor(handle, **{re.search(r"or (handler_is_thread_safe)=True", said)[1]: True}, concurrency=4)
    assert "drop concurrency=" in said
    lambda_processor(handle)


@pytest.mark.parametrize(
    "options", [{"window": 0.5}, {"window": 901}, {"concurrency": 0}, {"function_timeout": 0}]
)
def test_a_number_of_lambda_processor_is_accepted_as_advised(options):
    ((name, _),) = options.items()
    said = refusal(lambda_processor, handle, **options)
    advised = re.search(r"Do: \w+=(\d+)|Do: write 1 to (\d+)|up to (\d+)", said)
    number = int(next(filter(None, advised.groups())))
    lambda_processor(handle, handler_is_thread_safe=True, **{name: number})


# -- words of the command line ---------------------------------------------------------------------------------

NOW = 1_800_000_000_000


@pytest.mark.parametrize(("read", "wrong", "advised"), [
    (parse_duration, "soon", r"Write (.*)\.$"),
    (parse_time, "yesterday", r"Write it like (.*)\.$"),
    (lambda text: parse_since(text, NOW), "yesterday", r"how long ago \((.*)\), a time"),
    (lambda text: parse_since(text, NOW), "yesterday", r"its zone \((.*)\), (?=earliest)"),
    (lambda text: parse_since(text, NOW), "yesterday", r"\), (earliest or latest)\.$"),
    (lambda text: parse_since(text, NOW), "2099-01-01T00:00:00Z", r"--since (latest)\.$"),
    (lambda text: parse_position(text.replace("…", "0")), "first", r"processed: (.*)\.$"),
    (http.Address.of, "host", r"Use (PORT for 127.0.0.1 only, HOST:PORT, or \[::1\]:PORT)\."),
])  # fmt: skip
def test_a_word_that_is_refused_is_accepted_in_each_of_the_forms_that_are_advised(read, wrong, advised):
    forms = re.split(r",? or |, ", re.search(advised, refusal(read, wrong))[1])
    for form in forms:
        read(form.removesuffix(" for 127.0.0.1 only").replace("HOST", "localhost").replace("PORT", "8080"))


def test_each_sign_of_a_format_that_is_listed_prints_something():
    said = refusal(template, "%x")
    signs = re.findall(r"%\w(?= )", said.partition("There are: ")[2])
    assert len(signs) > 5
    for sign in signs:
        template(sign)


# -- files of properties ---------------------------------------------------------------------------------------

LEAST = {"applicationName": "orders-app", "streamName": "orders"}
WRONG = ["-1", "99999999999", "99999999999999999999", "1.5", "soon", "a b"]
ADVISED = (
    r"Write (\d+) to (\d+)\b", r"Write a whole number of [\w ]+, (digits) only", r"Write a whole number, (digits) only",
    r"is neither (true) nor (false)\. Write one", r"is none of (\w+), (\w+)", r"such as (\S+?)[.,]?(?: or|$)",
    r"Write (\w+=SECONDS)_SINCE_1970", r"Known: (\w+), (\w+), ", r"[13] to \d+ (of A-Z a-z 0-9 _ . -)",
)  # fmt: skip


def read(**properties):
    return interpret({**LEAST, **properties}, entry_point="kclpy")


def refusals_of(key):
    """Yield what is said of each value of WRONG that the key is refused with."""
    for value in WRONG:
        try:
            read(**{key: value})
        except ConfigError as error:
            yield str(error)


@pytest.mark.parametrize("key", [key for key in KEYS if any(refusals_of(key))])
def test_a_value_of_a_key_is_refused_with_values_that_are_accepted(key):
    for said in refusals_of(key):
        advised = next(filter(None, (re.search(form, said) for form in ADVISED)), None)
        assert advised, said
        for form in advised.groups():
            name, _, value = form.rpartition("=")
            for word, meant in {
                "SECONDS": "1767225600",
                "digits": "4000",
                "of A-Z a-z 0-9 _ . -": "Shop_1.-x",
            }.items():
                value = value.replace(word, meant)
            read(**({key: "AT_TIMESTAMP", name: value} if name else {key: value}))
