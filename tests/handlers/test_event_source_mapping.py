"""The mapping of `--esm`: every documented key and what becomes of it, values at the limits, and what is refused."""

import json

import pytest

from pykcl.config import Config
from pykcl.errors import ConfigError
from pykcl.handlers.event_source_mapping import _KEYS, _WITHOUT_COUNTERPART, mapping_of

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
QUEUE = "arn:aws:sqs:eu-west-1:123456789012:orders-dlq"
PATTERNS = {"Filters": [{"Pattern": '{"data": {"City": ["Seattle"]}}'}]}
FULL = {
    "UUID": "f89f8514-cdd9-4602-9e1f-01a5b77d449b",
    "StartingPosition": "AT_TIMESTAMP",
    "StartingPositionTimestamp": "2026-11-20T09:00:00+01:00",
    "BatchSize": 500,
    "MaximumBatchingWindowInSeconds": 5,
    "ParallelizationFactor": 2,
    "EventSourceArn": ARN,
    "FilterCriteria": PATTERNS,
    "KMSKeyArn": "arn:aws:kms:eu-west-1:123456789012:key/1",
    "MetricsConfig": {"Metrics": ["EventCount"]},
    "FunctionArn": "arn:aws:lambda:eu-west-1:123456789012:function:orders",
    "LastModified": "2026-11-20T09:00:00+00:00",
    "LastProcessingResult": "OK",
    "State": "Enabled",
    "StateTransitionReason": "User action",
    "DestinationConfig": {"OnFailure": {"Destination": QUEUE}},
    "MaximumRecordAgeInSeconds": 3600,
    "BisectBatchOnFunctionError": True,
    "MaximumRetryAttempts": 2,
    "TumblingWindowInSeconds": 0,
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
    "EventSourceMappingArn": "arn:aws:lambda:eu-west-1:123456789012:event-source-mapping:f89f",
    "ProvisionedPollerConfig": {"MinimumPollers": 1},
    "Whatever": 1,
}
OUTCOMES = {
    "UUID": "not used: names the mapping in Lambda",
    "StartingPosition": "initial_position='2026-11-20T09:00:00+01:00'",
    "StartingPositionTimestamp": "initial_position='2026-11-20T09:00:00+01:00'",
    "BatchSize": "batch_size=500",
    "MaximumBatchingWindowInSeconds": "batch_window=5.0",
    "ParallelizationFactor": "not used: use --processes 2, where each has a copy of the module, as in Lambda; one process "
    "makes one call at a time. Only if calls share nothing that they change: --handler-is-thread-safe --concurrency 2",
    "EventSourceArn": f"stream={ARN!r}",
    "FilterCriteria": "1 pattern",
    "KMSKeyArn": "not used: the patterns of this file are read as they are",
    "MetricsConfig": "not used: see metrics and metrics_level",
    "FunctionArn": "--function-name orders; --lambda names the handler",
    "LastModified": "not used: state of the mapping in Lambda",
    "LastProcessingResult": "not used: state of the mapping in Lambda",
    "State": "not used. As long as the mapping is enabled, Lambda processes the same records, too",
    "StateTransitionReason": "not used: state of the mapping in Lambda",
    "DestinationConfig": f"dead_letters={QUEUE!r}",
    "MaximumRecordAgeInSeconds": "max_record_age=3600.0",
    "BisectBatchOnFunctionError": "bisect=True",
    "MaximumRetryAttempts": "max_attempts=3",
    "TumblingWindowInSeconds": "no windows",
    "FunctionResponseTypes": "--report-batch-item-failures",
    "EventSourceMappingArn": "not used: names the mapping in Lambda",
    "ProvisionedPollerConfig": "not used: start as many processes as are needed (--processes)",
    "Whatever": "not used: pykcl does not know this key",
}
OPTIONS = {
    "initial_position": "2026-11-20T09:00:00+01:00",
    "batch_size": 500,
    "batch_window": 5.0,
    "stream": ARN,
    "dead_letters": QUEUE,
    "max_record_age": 3600.0,
    "bisect": True,
    "max_attempts": 3,
}


def read(**keys):
    return mapping_of(json.dumps({"EventSourceArn": ARN, **keys}))


def test_every_documented_key_is_read_or_listed_and_so_is_an_unknown_one():
    found = mapping_of(json.dumps(FULL))
    assert dict(found.outcomes) == OUTCOMES
    assert [key for key, _ in found.outcomes] == list(FULL)
    assert found.options == OPTIONS
    assert found.reports_failures
    assert found.filter_criteria == PATTERNS
    assert Config.from_options({"application": "orders-app", **found.options}).stream_name == "orders"


def test_the_defaults_of_lambda_change_nothing():
    found = read(
        StartingPosition="LATEST",
        BatchSize=100,
        MaximumBatchingWindowInSeconds=0,
        ParallelizationFactor=1,
        MaximumRecordAgeInSeconds=-1,
        MaximumRetryAttempts=-1,
        BisectBatchOnFunctionError=False,
        FunctionResponseTypes=[],
        DestinationConfig={"OnFailure": {}},
    )
    assert found.options == {
        "stream": ARN,
        "initial_position": "LATEST",
        "batch_size": 100,
        "batch_window": 0.0,
        "max_record_age": None,
        "max_attempts": None,
        "bisect": False,
    }
    assert not found.reports_failures
    assert found.filter_criteria is None
    plain = Config(application="orders-app", stream=ARN, batch_size=100)
    assert Config.from_options({"application": "orders-app", **found.options}) == plain


@pytest.mark.parametrize(
    ("keys", "name", "value"),
    [
        ({"MaximumRetryAttempts": 0}, "max_attempts", 1),
        ({"MaximumRetryAttempts": 10_000}, "max_attempts", 10_001),
        ({"MaximumRecordAgeInSeconds": 604_800}, "max_record_age", 604_800.0),
        ({"BatchSize": 10_000}, "batch_size", 10_000),
        ({"StartingPosition": "TRIM_HORIZON"}, "initial_position", "TRIM_HORIZON"),
        (
            {"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": 1_763_800_000},
            "initial_position",
            "2025-11-22T08:26:40+00:00",
        ),
        (
            {"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": "1763800000.0"},
            "initial_position",
            "2025-11-22T08:26:40+00:00",
        ),
        ({"DestinationConfig": {"OnFailure": {"Destination": "arn:aws:s3:::letters"}}}, "dead_letters", "arn:aws:s3:::letters"),
    ],
)  # fmt: skip
def test_values_that_an_option_takes(keys, name, value):
    assert read(**keys).options[name] == value


def test_a_consumer_with_enhanced_fan_out_is_polled():
    found = mapping_of(json.dumps({"EventSourceArn": f"{ARN}/consumer/lambda:1700000000"}))
    assert found.options == {"stream": ARN}
    assert "enhanced fan-out" in dict(found.outcomes)["EventSourceArn"]


def test_a_list_of_one_mapping_and_a_resource_of_a_template_are_read():
    one = {"EventSourceArn": ARN, "BatchSize": 7}
    for found in (
        {"EventSourceMappings": [one]},
        {"Type": "AWS::Lambda::EventSourceMapping", "Properties": one},
    ):
        assert mapping_of(json.dumps(found)).options == {"stream": ARN, "batch_size": 7}


def test_a_destination_for_success_is_listed():
    found = read(DestinationConfig={"OnSuccess": {"Destination": QUEUE}, "OnFailure": {}})
    assert "OnSuccess not used" in dict(found.outcomes)["DestinationConfig"]
    assert "dead_letters" not in found.options


@pytest.mark.parametrize("value", ["Disabled", "Disabling", False])
def test_a_disabled_mapping_runs_all_the_same(value):
    assert dict(read(State=value).outcomes)["State"] == "not used: the worker runs all the same"


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (
            {"EventSourceArn": "arn:aws:dynamodb:eu-west-1:123456789012:table/a/stream/b"},
            "a mapping of DynamoDB",
        ),
        ({"EventSourceArn": "arn:aws:sqs:eu-west-1:123456789012:queue"}, "a mapping of SQS"),
        ({"EventSourceArn": "arn:aws:kafka:eu-west-1:123456789012:cluster/a/b"}, "a mapping of Amazon MSK"),
        ({"EventSourceArn": "arn:aws:mq:eu-west-1:123456789012:broker:a"}, "a mapping of Amazon MQ"),
        (
            {"EventSourceArn": "arn:aws:rds:eu-west-1:123456789012:cluster:a"},
            "a mapping of Amazon DocumentDB",
        ),
        ({"SelfManagedEventSource": {"Endpoints": {}}}, "a mapping of Apache Kafka"),
        ({"EventSourceArn": "arn:aws:kinesis:eu-west-1:123456789012:orders"}, "no ARN of a Kinesis stream"),
        ({"EventSourceArn": {"Fn::GetAtt": ["Orders", "Arn"]}}, "no EventSourceArn that is text"),
        ({}, "no EventSourceArn"),
        ([], "not the JSON object"),
        ({"EventSourceMappings": []}, "lists 0 mappings"),
        ({"EventSourceMappings": [{}, {}]}, "lists 2 mappings"),
    ],
)
def test_what_is_no_mapping_of_a_kinesis_stream_is_refused_by_name(found, problem):
    with pytest.raises(ConfigError, match=problem):
        mapping_of(json.dumps(found))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("BatchSize", 0),
        ("BatchSize", 10_001),
        ("BatchSize", "many"),
        ("BatchSize", "10001"),
        ("BatchSize", True),
        ("MaximumBatchingWindowInSeconds", 301),
        ("ParallelizationFactor", 11),
        ("MaximumRetryAttempts", -2),
        ("MaximumRetryAttempts", 1.5),
        ("MaximumRecordAgeInSeconds", 604_801),
        ("BisectBatchOnFunctionError", "yes"),
        ("FunctionResponseTypes", "ReportBatchItemFailures"),
        ("FunctionResponseTypes", ["Other"]),
        ("DestinationConfig", QUEUE),
        ("DestinationConfig", {"OnFailure": QUEUE}),
        ("DestinationConfig", {"OnFailure": {"Destination": 1}}),
        ("TumblingWindowInSeconds", 901),
        ("FilterCriteriaError", {"ErrorCode": "KMSAccessDeniedException"}),
        ("FilterCriteria", {"Filters": [{"Pattern": "{"}]}),
        ("StartingPosition", 1),
        ("StartingPosition", "AT_TIMESTAMP"),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_its_key(key, value):
    with pytest.raises(ConfigError, match=key):
        read(**{key: value})


def test_a_time_that_is_none_is_refused():
    for value in ([], 1e300, "soon"):
        with pytest.raises(ConfigError, match=r"StartingPositionTimestamp|initial_position"):
            found = read(StartingPosition="AT_TIMESTAMP", StartingPositionTimestamp=value)
            Config.from_options({"application": "orders-app", **found.options})


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "UUID: x"])
def test_what_is_no_json_is_refused_with_the_command_that_gives_it(text):
    with pytest.raises(ConfigError, match="aws lambda get-event-source-mapping"):
        mapping_of(text)


def test_a_tumbling_window_is_read_and_0_means_none():
    found = read(TumblingWindowInSeconds=120)
    assert found.window == 120
    assert dict(found.outcomes)["TumblingWindowInSeconds"] == "--window 120"
    assert read(TumblingWindowInSeconds=0).window is None


def test_numbers_and_flags_as_text_are_those_of_cloudformation():
    found = read(
        BatchSize="100",
        MaximumRetryAttempts="-1",
        BisectBatchOnFunctionError="true",
        ParallelizationFactor="1",
    )
    options = {name: found.options[name] for name in ("batch_size", "max_attempts", "bisect")}
    assert options == {"batch_size": 100, "max_attempts": None, "bisect": True}


def test_null_is_no_value_whatever_the_key():
    keys = [key for key in (*_KEYS, *_WITHOUT_COUNTERPART) if key != "EventSourceArn"]
    found = read(**dict.fromkeys(keys))
    assert found.options == {"stream": ARN}
    assert {outcome for key, outcome in found.outcomes if key != "EventSourceArn"} == {"no value"}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("arn:aws:lambda:us-east-1:123456789012:function:orders", "orders"),
        ("orders:7", "orders"),
        ({"Ref": "Orders"}, ""),
    ],
)
def test_the_function_of_the_mapping_is_known(value, name):
    found = read(FunctionArn=value)
    assert found.function == (value if name else "")
    assert (f"--function-name {name};" in dict(found.outcomes)["FunctionArn"]) is bool(name)
