"""The start table: every key of the file once, with what becomes of it; no secret in it; what Java did otherwise is said."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from properties_files import ALL_KEYS, LEAST, meaning, row, written

from pykcl.cli.settings import settings_of
from pykcl.compat.properties import KEYS, interpret, read_properties, verdict_table
from pykcl.compat.properties.keys import Number
from pykcl.errors import ConfigError

EXPECTED = dict(
    line.split(": ") for line in ALL_KEYS.with_name("verdicts_88.txt").read_text("utf-8").splitlines()
)
"""Written by hand."""


@pytest.fixture(scope="module")
def everything():
    return interpret(read_properties(ALL_KEYS), entry_point="multilang")


def test_the_file_with_all_88_keys_has_each_of_them_once(everything):
    properties = read_properties(ALL_KEYS)
    assert len(EXPECTED) == len(KEYS) == len(properties) == 88
    assert not properties.repeated
    assert EXPECTED.keys() == properties.keys()
    assert {key.lower() for key in EXPECTED} == {key.lower() for key in KEYS}


def test_each_of_the_88_keys_stands_in_the_table_exactly_once_with_its_verdict(everything):
    assert {row.key: row.verdict for row in everything.verdicts} == EXPECTED
    head, *lines = verdict_table(everything.verdicts).splitlines()
    assert head.split("  ")[0] == "KEY"
    assert len(lines) == 88
    for line, verdict in zip(lines, everything.verdicts, strict=True):
        cells = re.split(r" {2,}", line)
        assert cells[0] == verdict.key
        assert verdict.verdict in cells
        assert cells[-1] == verdict.text
        assert len(verdict.text) > 5


def test_what_java_takes_for_an_absent_key_is_written_down_for_every_key():
    assert all(key.default and key.text for key in KEYS.values())
    assert KEYS["failoverTimeMillis"].default == "10000"


def test_no_secret_of_the_file_is_in_the_table_or_in_a_description_of_it(everything):
    assert "CANARY" in ALL_KEYS.read_text("latin-1")
    for text in (verdict_table(everything.verdicts), repr(everything.verdicts), "".join(everything.notices)):
        assert "CANARY" not in text
    assert "CANARY" not in repr(everything.clients["kinesis"].credentials)
    # It has arrived all the same.
    assert everything.clients["kinesis"].credentials[0].external_id == "CANARY-1"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("awsSecretKey", "CANARY"),
        ("maxRecord", "CANARY"),
        ("CANARY\\u002dlike", "CANARY"),
        ("kinesisClient.httpClient.proxyPassword", "CANARY"),
        ("kinesisCredentialsProvider.secretAccessKey", "CANARY"),
        ("AwsCredentialsProviderFoo", "CANARY"),
        ("executableName", "python3 app.py --db-password CANARY --token=CANARY"),
        ("kinesisEndpoint", "https://u:CANARY@127.0.0.1/?key=CANARY"),
        ("kinesisEndpoint", "u:CANARY@127.0.0.1:4567"),
        ("kinesisClient.endpointOverride", "u:CANARY@127.0.0.1?key=CANARY"),
        ("kinesisEndpoint", "http://u:p@CANARY@127.0.0.1:4567"),
        ("executableName", "python3 app.py --dsn=postgres://user:CANARY/CANARY@CANARY@db/x --port 1"),
        ("executableName", "curl -H 'Authorization: Bearer CANARY' https://127.0.0.1"),
        ("executableName", "app --conn Server=h;Password=CANARY;Port=1"),
        ("executableName", "app --api-key:CANARY"),
        ("executableName", "app password CANARY"),
        ("executableName", "python3 app.py --api-key CANARY --pwd=CANARY --auth CANARY apikey=CANARY"),
        (
            "AwsCredentialsProviderCloudWatch",
            "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/x|y2|externalId=CANARY",
        ),
        ("clientVersionConfig", "x" * 100 + "CANARY"),
    ],
)
def test_values_of_unknown_keys_and_of_secret_ones_are_never_printed(tmp_path, key, value):
    lines = [f"{name}={text}" for name, text in {**LEAST, key: value}.items()]
    found = interpret(read_properties(written(tmp_path, "\n".join(lines))), entry_point="multilang")
    told = [found for found in found.verdicts if found.key[:5] == key[:5]]
    assert told
    for verdict in told:
        assert "CANARY" not in verdict.value + verdict.text


def test_of_a_command_is_shown_what_stands_before_a_secret():
    command = "python3 app.py --port 1 --auth-file=/x --verbose"
    assert row(
        interpret({**LEAST, "executableName": command}, entry_point="multilang"), "executableName"
    ).value == ("python3 app.py --port 1 --auth-file=*** …")


def test_a_value_cannot_forge_a_line_of_the_table():
    found = meaning(clientVersionConfig="3X\nmaxRecords  5\x1b[2J\r")
    assert len(verdict_table(found.verdicts).splitlines()) == 5
    assert "\x1b" not in verdict_table(found.verdicts)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("maxrecords", "maxRecords"),
        ("MaxRecords", "maxRecords"),
        ("failoverTimeMilis", "failoverTimeMillis"),
        ("stream", "streamArn"),
        ("WorkerIdentifier", "workerIdentifier"),
        ("fanoutConfig.consumername", "fanoutConfig.consumerName"),
    ],
)
def test_a_key_nobody_knows_is_told_with_the_nearest_name_and_without_its_value(key, near):
    told = row(interpret({**LEAST, key: "CANARY"}, entry_point="multilang"), key)
    assert (told.verdict, told.value) == ("unknown", "***")
    assert f"Did you mean {near}?" in told.text


@pytest.mark.parametrize(
    ("key", "value", "service", "field"),
    [
        ("dynamoDBRegionName", "eu-west-1", "dynamodb", "region"),
        ("kinesisRegion", "eu-west-1", "kinesis", "region"),
        ("cloudwatchRegionName", "eu-west-1", "cloudwatch", "region"),
        ("dynamoEndpointUrl", "http://127.0.0.1:1", "dynamodb", "endpoint"),
        ("kinesisEndPoint", "http://127.0.0.1:1", "kinesis", "endpoint"),
    ],
)
def test_a_key_that_speaks_of_one_client_is_answered_with_the_key_of_that_client(key, value, service, field):
    text = row(meaning(**{key: value}), key).text
    advised = re.search(r"Did you mean ([\w.]+)\?", text)[1]
    clients = meaning(**{advised: value}).clients
    assert getattr(clients[service], field) == value
    assert all(getattr(spec, field) is None for name, spec in clients.items() if name != service)


def test_a_key_like_no_other_is_told_without_a_guess():
    assert "No key has a similar name" in row(meaning(xyzzy="1"), "xyzzy").text


@pytest.mark.parametrize(
    "key", ["leaseCleanupIntervalMillis", "kinesisClientConfig", "userAgent", "cloudWatchEndpoint"]
)
def test_keys_of_other_times_and_places_are_known_as_such(key):
    told = row(meaning(**{key: "5"}), key)
    assert told.verdict == "ignored, as Java does"


# -- what Java does without saying so ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "maxRecords", "failoverTimeMillis", "maxLeasesForWorker", "parentShardPollIntervalMillis",
        "idleTimeBetweenReadsInMillis",
    ],
)  # fmt: skip
def test_a_zero_that_java_cannot_see_is_not_seen_here_either_and_that_is_told(key):
    found = meaning(**{key: "0"})
    assert found.config == meaning().config
    told = row(found, key)
    assert told.verdict == "ignored, as Java does"
    assert KEYS[key].default in told.text


@pytest.mark.parametrize("key", [key for key in KEYS if isinstance(KEYS[key].effect, Number)])
@pytest.mark.parametrize("zero", ["0", "+0", "-0"])
def test_a_zero_is_told_of_or_refused_whatever_the_key(key, zero):
    try:
        said = row(meaning(**{key: zero}), key).text
    except ConfigError as refused:
        said = str(refused)
    assert key in said or "0" in said


def test_no_grace_as_in_java_s_default_is_no_reason_to_let_each_stop_fail():
    """A file that says what Java does anyway: with no grace at all even an idle worker would stop too late."""
    found = meaning(shutdownGraceMillis="0")
    assert found.config == meaning().config
    told = row(found, "shutdownGraceMillis")
    assert (told.verdict, told.text) == (
        "mapped",
        "0 is Java's default, the same as no value; here shutdown_grace=25: "
        "how long a stop waits for running batches and their checkpoints",
    )


def test_cleaning_up_can_be_switched_off_which_java_only_says_it_can():
    found = meaning(cleanupLeasesUponShardCompletion="false")
    assert found.config.cleanup_interval == 0
    assert "Java ignores false" in row(found, "cleanupLeasesUponShardCompletion").text
    assert meaning(cleanupLeasesUponShardCompletion="true").config.cleanup_interval == 60


def test_an_arn_is_honoured_whole_where_java_takes_its_name_only():
    found = meaning(streamName=None, streamArn="arn:aws:kinesis:eu-west-1:210987654321:stream/orders")
    assert found.config.stream_arn == "arn:aws:kinesis:eu-west-1:210987654321:stream/orders"
    assert "in its own account" in row(found, "streamArn").text


TIME_OF_1X = "timestampAtInitialPositionInStream"


@pytest.mark.parametrize("position", [None, "AT_TIMESTAMP", "LATEST"])
def test_the_time_of_kcl_1_is_honoured_where_later_daemons_start_at_latest(position):
    found = meaning(**{TIME_OF_1X: "1767225600", "initialPositionInStream": position})
    assert found.config.initial_position == datetime(2026, 1, 1, tzinfo=UTC)
    told = row(found, TIME_OF_1X)
    assert (told.verdict, told.value) == ("mapped", "1767225600")
    assert "starts at 2026-01-01T00:00:00+00:00" in told.text
    assert "KCL 2 and 3 ignore this key: they read initialPositionInStreamExtended" in told.text


def test_two_times_are_a_contradiction_and_the_same_time_twice_is_none():
    with pytest.raises(
        ConfigError, match=f"{TIME_OF_1X} and initialPositionInStreamExtended spell the same setting"
    ):
        meaning(initialPositionInStreamExtended="1767225600", **{TIME_OF_1X: "1767225601"})
    found = meaning(initialPositionInStreamExtended="1767225600", **{TIME_OF_1X: "1767225600"})
    assert found.config.initial_position == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "key",
    ["initialPositionInStreamExtend", "InitialPositionInStreamExtended", "timestampAtInitialPosition",
     "initialPositionInStreamTimestamp"],
)  # fmt: skip
def test_a_misspelt_key_that_asks_for_a_time_starts_nothing_at_latest(key):
    with pytest.raises(
        ConfigError, match=f"{key} is no key.* LATEST.*initialPositionInStreamExtended"
    ) as error:
        meaning(**{key: "1767225600"})
    assert "1767225600" not in str(error.value)
    meant = re.search(r"[Ww]rite (\w+)", str(error.value))[1]
    assert meaning(**{meant: "1767225600"}).config.initial_position == datetime(2026, 1, 1, tzinfo=UTC)
    # Whoever says where to start has said it.
    assert row(meaning(**{key: "1767225600", "initialPositionInStream": "LATEST"}), key).verdict == "unknown"


@pytest.mark.parametrize(
    "key", ["dataFetchingStrategy", "maxPendingProcessRecordsInput", "idleMillisBetweenCalls"]
)
def test_a_key_of_kcl_1_is_known_as_such(key):
    told = row(meaning(**{key: "5"}), key)
    assert (told.verdict, told.text) == (
        "ignored, as Java does", "a key of KCL 1.x; Java's daemon has not read it since"
    )  # fmt: skip


def test_a_key_set_twice_is_told_with_its_first_line(tmp_path):
    path = written(
        tmp_path, "executableName=a b\napplicationName=orders-app\nstreamName=s\nmaxRecords=7\nmaxRecords=8\n"
    )
    found = interpret(read_properties(path), entry_point="multilang")
    assert found.config.max_records == 8
    assert "first in line 4: the last one counts" in row(found, "maxRecords").text


def test_an_empty_value_is_no_value():
    found = meaning(maxRecords=" ", retrievalMode="", AwsCredentialsProvider="", tableName="")
    assert found.config == meaning().config
    assert {row.verdict for row in found.verdicts if not row.value.strip()} == {"ignored, as Java does"}


# -- fan-out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "is_pushed"),
    [
        ({}, True),
        ({"retrievalMode": "DEFAULT"}, True),
        ({"retrievalMode": "fanout"}, True),
        ({"retrievalMode": "FANOUT", "maxRecords": "5"}, True),
        ({"retrievalMode": "FANOUT", "RetrievalMode": "POLLING"}, True),
        ({"retrievalMode": "POLLING"}, False),
        ({"RetrievalMode": "POLLING"}, False),
        ({"RetrievalMode": "FANOUT"}, True),
        ({"RetrievalMode": "FANOUT", "maxRecords": "5"}, False),
        ({"maxRecords": "5"}, False),
        ({"maxRecords": "0"}, True),
        ({"idleTimeBetweenReadsInMillis": "500"}, False),
        ({"millisBehindLatestThresholdForReducedTps": "5"}, False),
        ({"millisBehindLatestThresholdForReducedTps": "0"}, True),
        ({"retryGetRecordsInSeconds": "0"}, False),
        ({"maxGetRecordsThreadPool": "1"}, False),
        ({"fanoutConfig.consumerName": "c"}, True),
    ],
)
def test_records_are_pushed_where_java_uses_fan_out_unless_polling_is_accepted(keys, is_pushed):
    found = interpret({**LEAST, **keys}, entry_point="multilang")
    assert found.config.retrieval == ("fanout-or-polling" if is_pushed else "polling")
    notice = " ".join(found.notices)
    assert ("billed by shard and hour" in notice) is is_pushed
    assert ("--accept-polling" in notice) is is_pushed
    accepted = interpret({**LEAST, **keys}, entry_point="multilang", accepts_polling=True)
    assert (accepted.config.retrieval, accepted.config.consumer, accepted.notices) == ("polling", None, ())


OF_FANOUT = {
    "retrievalMode": "FANOUT",
    "fanoutConfig.consumerName": "c",
    "fanoutConfig.retryBackoffMillis": "5",
}


def test_the_keys_of_fan_out_are_honoured_or_named_as_fixed():
    found = interpret({**LEAST, **OF_FANOUT}, entry_point="multilang")
    assert found.config.consumer == "c"
    assert (
        row(found, "retrievalMode").verdict == row(found, "fanoutConfig.consumerName").verdict == "honoured"
    )
    fixed = row(found, "fanoutConfig.retryBackoffMillis")
    assert (fixed.verdict, fixed.text.partition(":")[0]) == ("ignored, Java only", "fixed")


def test_the_arn_of_a_consumer_goes_before_its_name_as_in_java():
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1700000000"
    found = interpret({**LEAST, **OF_FANOUT, "fanoutConfig.consumerArn": arn}, entry_point="multilang")
    assert found.config.consumer == arn
    assert row(found, "fanoutConfig.consumerName").verdict == "ignored, as Java does"
    other = arn.replace("orders", "parcels")
    with pytest.raises(ConfigError, match=r"fanoutConfig\.consumerArn.* one of another stream"):
        interpret({**LEAST, "fanoutConfig.consumerArn": other}, entry_point="multilang")


def test_the_keys_of_fan_out_have_no_effect_where_records_are_polled():
    found = interpret({**LEAST, **OF_FANOUT}, entry_point="multilang", accepts_polling=True)
    assert row(found, "retrievalMode").verdict == "mapped"
    assert row(found, "fanoutConfig.consumerName").verdict == "ignored, Java only"
    polled = meaning(retrievalMode="POLLING", fanoutConfig__consumerName="c")
    assert row(polled, "fanoutConfig.consumerName").verdict == "ignored, as Java does"
    capital = meaning(RetrievalMode="POLLING")
    assert row(capital, "RetrievalMode").verdict == "mapped"
    assert "Java ignores this spelling" in row(capital, "RetrievalMode").text


@pytest.mark.parametrize("polling", [{"accept_polling": True}, {"overrides": {"retrieval": "polling"}}])
def test_polling_on_the_command_line_goes_before_the_file_and_is_silent(tmp_path, caplog, polling):
    path = written(tmp_path, "\n".join(f"{key}={value}" for key, value in {**LEAST, **OF_FANOUT}.items()))
    given = {"entry_point": "multilang", "properties": path, "config_file": None, "accept_polling": False}
    caplog.set_level("INFO")
    pushed = settings_of(**given, overrides={}).config
    assert (pushed.retrieval, pushed.consumer) == ("fanout-or-polling", "c")
    assert caplog.text.count("read by enhanced fan-out") == 1
    caplog.clear()
    polled = settings_of(**{**given, "overrides": {}, **polling}).config
    assert (polled.retrieval, polled.consumer) == ("polling", None)
    assert "fan-out" not in caplog.text


def test_metrics_are_published_as_java_publishes_them_unless_the_file_says_none():
    assert (meaning().config.metrics, meaning().config.metrics_level) == ("cloudwatch", "DETAILED")
    summary = meaning(metricsLevel="summary").config
    assert (summary.metrics_sinks, summary.metrics_level) == (("cloudwatch",), "SUMMARY")
    assert meaning(metricsLevel="none").config == replace(
        meaning().config, metrics="none", metrics_level="SUMMARY", metrics_buffer_time=60.0
    )
    with pytest.raises(ConfigError, match="metricsLevel is none of NONE, SUMMARY, DETAILED"):
        meaning(metricsLevel="DETAIL")
    with pytest.raises(ConfigError, match=r"metricsEnabledDimensions is not valid: .*'Shard' is none of ALL"):
        meaning(metricsEnabledDimensions="Operation,Shard")


# -- refused -------------------------------------------------------------------------------------------------------

CASES = [
    ({"maxRecords": "many CANARY"}, "maxRecords is not a number. Write a whole number"),
    ({"maxRecords": "10.5"}, "maxRecords is a decimal number"),
    ({"maxRecords": "1_000"}, "maxRecords is not a number"),
    ({"maxRecords": "-1"}, "maxRecords is out of range. Write 1 to 10000"),
    ({"maxRecords": "10001"}, "maxRecords is out of range"),
    ({"maxRecords": "9" * 5000}, "maxRecords is too large"),
    ({"maxLeasesToStealAtOneTime": "2147483648"}, "maxLeasesToStealAtOneTime is too large"),
    ({"metricsMaxQueueSize": "-2147483648"}, "metricsMaxQueueSize is too small"),
    ({"shutdownGraceMillis": "9223372036854775808"}, "shutdownGraceMillis is too large"),
    ({"failoverTimeMillis": "9" * 20}, "failoverTimeMillis is too large"),
    ({"failoverTimeMillis": "-" + "9" * 20}, "failoverTimeMillis is too small"),
    ({"failoverTimeMillis": "500"}, "failoverTimeMillis is out of range. Write 1000 to 1000000000 milliseconds"),
    ({"timeoutInSeconds": "0"}, "timeoutInSeconds is out of range"),
    ({"timeoutInSeconds": "soon"}, "timeoutInSeconds is not a number. Write a whole number of seconds"),
    ({"leaseTablePitrEnabled": "CANARY"}, "leaseTablePitrEnabled is neither true nor false"),
    ({"cleanupLeasesUponShardCompletion": "nope"}, "neither true nor false"),
    ({"initialPositionInStream": "OLDEST"}, "initialPositionInStream is none of LATEST, TRIM_HORIZON"),
    ({"initialPositionInStream": "AT_TIMESTAMP"}, "initialPositionInStreamExtended="),
    ({"initialPositionInStreamExtended": "1767225600000"}, "not milliseconds"),
    ({"initialPositionInStreamExtended": "-5"}, "not a time in seconds"),
    ({"retrievalMode": "PUSH"}, "retrievalMode is none of DEFAULT, FANOUT, POLLING"),
    ({"regionName": "Ireland (eu)"}, "regionName is not an AWS region"),
    ({"kinesisEndpoint": "ftp://x"}, "kinesisEndpoint is not an http or https URL"),
    ({"kinesisEndpoint": "http://127.0.0.1:99999"}, "kinesisEndpoint is not an http or https URL"),
    ({"kinesisEndpoint": "http://[CANARY"}, "kinesisEndpoint is not an http or https URL"),
    ({"kinesisEndpoint": "https://a", "kinesisClient.endpointOverride": "https://b"}, "different endpoints"),
    ({"streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/other"}, "name different streams"),
    ({"streamName": "", "streamArn": "arn:aws:sqs:eu-west-1:1:x"}, "streamArn is not a stream ARN"),
    ({"streamName": "", "streamArn": "CANARY"}, "streamArn is not a stream ARN. Write one, such as arn:aws:kinesis:"),
    ({"streamArn": "orders"}, "streamArn is not a stream ARN"),
    (
        {"streamName": "", "regionName": "us-east-1", "streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"},
        "Do: replace the streamArn line by streamName=orders to read stream 'orders' in us-east-1, as Java does.",
    ),
    (
        {"regionName": "us-east-1", "streamArn": "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"},
        "streamArn is in eu-west-1, but the region is us-east-1. Do: delete the streamArn line to read stream 'orders' in "
        "us-east-1, as Java does. To read the stream of the ARN, delete the region.",
    ),
    ({"applicationName": "a b"}, "applicationName is not valid"),
    ({"streamName": "a b"}, "streamName is not valid"),
    ({"tableName": "a b"}, "tableName is not valid"),
    ({"coordinatorStateTableName": "a b"}, "coordinatorStateTableName is not valid"),
    ({"workerId": "x" * 300}, "workerId is not valid"),
    ({"workerId": "a", "workerIdentifier": "b"}, "workerIdentifier and workerId spell the same setting"),
    (
        {"AWSCredentialsProvider": "DefaultCredentialsProvider", "awsCredentialsProvider": "ProfileCredentialsProvider"},
        "awsCredentialsProvider and AWSCredentialsProvider spell the same setting",
    ),
    ({"AwsCredentialsProvider": "MyProvider"}, "names MyProvider that is not a credentials provider"),
    ({"AwsCredentialsProvider": "ProfileCredentialsProvider|CANARY|prod"}, "more than a profile name"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "told"), CASES, ids=lambda case: str(case)[:60])
def test_a_bad_value_is_refused_with_its_key_and_line_and_not_repeated(tmp_path, keys, told):
    lines = [f"{name}={text}" for name, text in {**LEAST, **keys}.items()]
    with pytest.raises(ConfigError) as error:
        interpret(read_properties(written(tmp_path, "\n".join(lines))), entry_point="multilang")
    assert told in str(error.value)
    number = int(re.match(r"app\.properties, line (\d+): ", str(error.value))[1])
    assert lines[number - 1].split("=")[0] in str(error.value)
    assert "CANARY" not in str(error.value)
    assert len(str(error.value)) < 1500


def test_the_start_logs_what_is_taken_as_it_stands(tmp_path, caplog):
    lines = [f"{name}={text}" for name, text in {**LEAST, "workerId": "${HOSTNAME}"}.items()]
    path = written(tmp_path, "\n".join(lines))
    settings_of(entry_point="multilang", properties=path, config_file=None, overrides={}, accept_polling=True)
    assert "app.properties: workerId: the $ in it stands for no variable" in caplog.text


VARIABLE = "the $ in it stands for no variable, in Java either."
COMMENT = "the # in it begins no comment, in Java either. Put the comment on a line of its own"
HOME = "the ~ in it is no home folder, in Java either: no shell runs the command. Write the whole path"
TAB = "the tab in it divides no words, in Java either: only blanks do. Write a blank there"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("workerId", "${HOSTNAME}", VARIABLE + " Leave the key out, and each process gets a name of its own"),
        ("workerId", "$HOSTNAME", VARIABLE),
        ("workerIdentifier", "$(hostname)-1", VARIABLE + " Leave the key out"),
        ("workerId", "web-1 # the first", COMMENT),
        ("kinesisEndpoint", "http://${HOST}:4567", VARIABLE + " Write what it stands for"),
        ("executableName", "python3 ${HOME}/app.py", VARIABLE + " Write what it stands for"),
        ("executableName", "python3 ~/app.py", HOME),
        ("executableName", "~root/app", HOME),
        ("executableName", "python3\tapp.py", TAB),
        ("executableName", "python3 app.py  # the program", COMMENT),
        ("tableName", "leases", ""),
        ("workerId", "web#1$", ""),
        ("executableName", "python3 app.py --cost 5$ --tag a~b #1", ""),
        ("maxActiveThreads", "8 # has no effect", ""),
    ],
)
def test_what_a_value_has_that_only_a_shell_would_replace_is_told(key, value, told):
    found = row(meaning(**{key: value}), key)
    assert found.literal.startswith(told)
    assert bool(found.literal) is bool(told)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("failoverTimeMillis", "5000   # five", COMMENT),
        ("metricsLevel", "NONE # quiet", COMMENT),
        ("applicationName", "orders-${STAGE}", VARIABLE),
        ("regionName", "$AWS_REGION", VARIABLE),
        ("AwsCredentialsProvider", "DefaultCredentialsProvider # of the pod", COMMENT),
    ],
)
def test_a_value_that_is_refused_for_it_is_refused_with_that_reason(key, value, told):
    with pytest.raises(ConfigError) as error:
        meaning(**{key: value})
    assert told[1:] in str(error.value)


@pytest.mark.parametrize("key", LEAST)
@pytest.mark.parametrize("value", [None, " "])
def test_a_missing_key_is_told_with_the_line_to_write(key, value):
    with pytest.raises(ConfigError, match=rf"{key}.* is missing or empty\. Write a line such as {key}="):
        meaning(**{key: value})


@pytest.mark.parametrize(
    ("wrong", "key", "why"),
    [
        ("ApplicationName", "applicationName", "keys are case-sensitive: write applicationName"),
        ("streamname", "streamName", "keys are case-sensitive: write streamName"),
        ("StreamARN", "streamName", "keys are case-sensitive: write streamArn"),
        ("executable_name", "executableName", "nothing reads it: write executableName"),
    ],
)
def test_a_missing_key_is_told_with_the_one_that_was_meant(tmp_path, wrong, key, why):
    lines = [f"{wrong if name == key else name} = {text}" for name, text in LEAST.items()]
    with pytest.raises(ConfigError) as error:
        interpret(read_properties(written(tmp_path, "\n".join(lines))), entry_point="multilang")
    number = 1 + list(LEAST).index(key)
    assert re.match(rf"app\.properties: {key}.* is missing or empty\. ", str(error.value))
    assert str(error.value).endswith(f" There is {wrong} in app.properties, line {number}, and {why}")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("workerId = w\\ud83d", "workerId"),
        ("workerIdentifier = w\\udcff", "workerIdentifier"),
        ("executableName = python a\\ud83d.py", "executableName"),
    ],
)
def test_half_of_a_character_is_refused_with_its_line(tmp_path, line, key):
    lines = [f"{name} = {text}" for name, text in LEAST.items() if name != key]
    path = written(tmp_path, "\n".join([line, *lines]))
    with pytest.raises(ConfigError) as error:
        interpret(read_properties(path), entry_point="multilang")
    assert str(error.value).startswith(f"app.properties, line 1: {key} ")
    assert "half of a character" in str(error.value)
    assert str(error.value).endswith("Write it whole, in UTF-8.")


def test_a_whole_character_may_be_written_as_its_halves(tmp_path):
    lines = [f"{name} = {text}" for name, text in (LEAST | {"executableName": "a\\ud83d\\ude00 b"}).items()]
    path = written(tmp_path, "\n".join([*lines, "workerId = w\\ud83d\\ude00"]))
    found = interpret(read_properties(path), entry_point="multilang")
    assert (found.config.worker_id, found.executable) == ("w😀", ("a😀", "b"))


def test_only_children_need_an_executable():
    for entry_point in ("kclpy", "native"):
        assert meaning(entry_point, executableName=None).executable == ()
    assert row(meaning("kclpy"), "executableName").verdict == "ignored, Java only"


def test_the_same_value_under_two_spellings_is_no_contradiction():
    found = meaning(workerId="a", workerIdentifier="a")
    assert found.config.worker_id == "a"
    assert len(found.verdicts) == 5


def test_the_file_of_a_java_daemon_is_taken_as_it_is(tmp_path):
    text = """executableName = python3 child.py
streamName = orders
applicationName = orders-app
AwsCredentialsProvider=EnvironmentVariableCredentialsProvider
metricsLevel=NONE
retrievalMode=POLLING
initialPositionInStream=TRIM_HORIZON
failoverTimeMillis=5000
shardSyncIntervalMillis=3000
parentShardPollIntervalMillis=1000
idleTimeBetweenReadsInMillis=500
leaseCleanupIntervalMillis=5000
completedLeaseCleanupIntervalMillis=5000
garbageLeaseCleanupIntervalMillis=10000
kinesisEndpoint = http://127.0.0.1:4567
dynamoDBEndpoint = http://127.0.0.1:4567
regionName = us-east-1
workerId = java-1
clientVersionConfig = CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X
"""
    found = interpret(read_properties(written(tmp_path, text)), entry_point="multilang")
    assert found.config.retrieval == "polling"
    assert not found.notices
    assert not [row for row in found.verdicts if row.verdict == "unknown"]
    assert (found.config.failover_time, found.config.worker_id, found.config.checkpoint_mode) == (
        5.0,
        "java-1",
        "manual",
    )
