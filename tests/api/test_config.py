"""Contradictions are refused with both values named; unknown options with the nearest name."""

import os
from datetime import UTC, datetime

import pytest

from pykcl import Config, ConfigError, RecordProcessor, Worker
from pykcl.model.checkpoint import StartPosition

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"


def _config(**options):
    return Config(**{"application": "orders-app", "stream": "orders", **options})


class Orders(RecordProcessor):
    def process_records(self, batch):
        raise NotImplementedError


def test_defaults_are_consistent_and_derived_times_follow_the_failover_time():
    config = _config()
    assert config.table == "orders-app"
    assert (config.renew_interval, config.request_timeout, config.belief_time) == (
        5.0,
        1.2,
        9.0,
    )
    fast = _config(failover_time=3.0)
    assert fast.request_timeout == pytest.approx(0.36)
    assert 3 * fast.request_timeout < fast.belief_time
    assert fast.renew_interval + 3 * fast.request_timeout < fast.belief_time


def test_an_arn_names_stream_and_region():
    config = _config(stream=ARN)
    assert (config.stream_name, config.effective_region, config.stream_arn) == ("orders", "eu-west-1", ARN)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stream": ARN, "region": "us-east-1"}, "us-east-1.*eu-west-1"),
        ({"stream": "no such/name"}, "neither a stream name"),
        ({"application": "ab"}, "3 to 255"),
        ({"table_name": "a b"}, "table name"),
        ({"worker_id": ""}, "1 to 256"),
        ({"initial_position": "LATST"}, "Did you mean 'LATEST'"),
        ({"initial_position": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
        ({"initial_position": 17}, "not a position"),
        ({"failover_time": 0.5}, "Write 1 to"),
        ({"failover_time": "10"}, "takes a number of seconds"),
        ({"failover_time": float("inf")}, "Write 1 to"),
        ({"max_leases": 0}, "Write 1 to"),
        ({"max_leases": 1.5}, "whole number"),
        ({"max_leases": True}, "takes a whole number"),
        ({"max_records": 10_001}, "10000"),
        ({"audit_interval": -1}, "audit_interval is out of range. Write 0 to 1000000."),
        ({"application": "a"}, "the lease table has that name, of 3 to 255 of A-Z"),
        ({"audit_confidence_threshold": 0}, "audit_confidence_threshold is out of range"),
        ({"failover_time": "abc"}, "failover_time takes a number of seconds, not 'abc'"),
        ({"audit_confidence_threshold": 2.5}, "audit_confidence_threshold takes a whole number, not 2.5"),
        ({"max_buffered_bytes": 1_000_000}, "cannot hold two"),
        ({"checkpoint_mode": "automatic"}, "Did you mean 'auto'"),
        ({"on_error": "ignore"}, "'retry', 'skip', 'raise'"),
        ({"processor_timeout": 10.0, "processor_warn_after": 60.0}, "10.0.*60.0"),
        ({"create_table": "false"}, "create_table is True or False, not str"),
        ({"create_table": 0}, "create_table is True or False, not int"),
        ({"application": 17}, "application is text, not int"),
        ({"application": None}, "application is text, not NoneType"),
        ({"stream": b"orders"}, "stream is text, not bytes"),
        ({"table_name": 17}, "table_name is text, not int"),
        ({"region": 17}, "region is text, not int"),
        ({"worker_id": 17}, "worker_id is text, not int"),
        ({"application": "orders-\ud83d"}, "application holds half of a character"),
        ({"stream": "orders\udcff"}, "stream holds half of a character"),
        ({"table_name": "orders\udcff"}, "table_name holds half of a character"),
        ({"region": "eu-west-\udcff"}, "region holds half of a character"),
        ({"worker_id": "w\ud83d"}, "worker_id holds half of a character"),
        ({"coordinator_state_table": "state\ud83d"}, "coordinator_state_table holds half of a character"),
        ({"metrics_namespace": "orders\ud83d"}, "metrics_namespace holds half of a character"),
        ({"checkpoint_mode": ["auto"]}, "is not one of"),
        ({"checkpoint_interval": 5.0}, "checkpoint_interval=5.0.*checkpoint_mode='auto'"),
        ({"max_unacked": 5}, "max_unacked=5.*checkpoint_mode='auto'"),
        ({"max_unacked": 0, "checkpoint_mode": "ack"}, "max_unacked is out of range"),
        ({"max_unacked": 2.5, "checkpoint_mode": "ack"}, "max_unacked takes a whole number"),
        ({"on_error": "skip", "checkpoint_mode": "ack"}, "on_error='skip'.*checkpoint_mode='ack'"),
        ({"bisect": True, "checkpoint_mode": "ack"}, "bisect=True.*checkpoint_mode='ack'"),
        (
            {"max_attempts": 3, "dead_letters": "discard", "checkpoint_mode": "ack"},
            "max_attempts=3.*checkpoint_mode='ack'",
        ),
        (
            {"max_record_age": 60.0, "dead_letters": "discard", "checkpoint_mode": "ack"},
            "max_record_age=60.0.*checkpoint_mode='ack'",
        ),
        (
            {"checkpoint_interval": 5.0, "checkpoint_mode": "manual"},
            "checkpoint_interval=5.0.*checkpoint_mode='manual'",
        ),
        ({"retrieval": "fan-out"}, "'fan-out' is not one of 'polling', 'fanout', 'fanout-or-polling'. Did"),
        ({"consumer": "mine"}, "consumer='mine'.*retrieval='polling'.*drop consumer"),
        ({"register_consumer": False}, "register_consumer=False.*retrieval='polling'"),
        ({"fanout_transport": "h2"}, "fanout_transport='h2'.*retrieval='polling': nothing is pushed"),
        ({"retrieval": "fanout", "fanout_transport": "http2"}, "'http2' is not one of 'auto', 'h2', 'http1'"),
        ({"retrieval": "fanout", "register_consumer": "no"}, "register_consumer is True or False, not str"),
        ({"retrieval": "fanout", "consumer": "a b"}, "neither the name of a consumer .* nor its ARN"),
        (
            {"retrieval": "fanout", "consumer": f"{ARN.replace('orders', 'parcels')}/consumer/mine:1"},
            "consumer='.*parcels/consumer/mine:1' is one of another stream than stream='orders'",
        ),
        (
            {"retrieval": "fanout", "application": "a" * 129},
            "application='a+' cannot name a consumer .* Do: name one with consumer",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, told):
    with pytest.raises(ConfigError, match=told):
        _config(**options)


@pytest.mark.parametrize("retrieval", ["fanout", "fanout-or-polling"])
@pytest.mark.parametrize("stream", ["orders", ARN])
@pytest.mark.parametrize("consumer", [None, "mine", f"{ARN}/consumer/mine:1700000000"])
def test_a_consumer_is_given_by_name_by_arn_or_not_at_all(retrieval, stream, consumer):
    config = _config(stream=stream, retrieval=retrieval, consumer=consumer, register_consumer=False)
    assert config.consumer == consumer


def test_a_byte_that_is_no_utf_8_is_refused_by_name_before_anything_starts(monkeypatch):
    monkeypatch.setenv("PYKCL_APPLICATION", "orders-app")
    monkeypatch.setenv("PYKCL_STREAM", "orders")
    monkeypatch.setenv("PYKCL_WORKER_ID", os.fsdecode(b"w\xff"))
    with pytest.raises(ConfigError, match=r"worker_id holds .* no UTF-8, .* Write it whole") as caught:
        Config.from_env()
    assert str(caught.value).isascii()
    monkeypatch.setenv("PYKCL_WORKER_ID", "wörker 😀")
    assert Config.from_env().worker_id == "wörker 😀"


@pytest.mark.parametrize(
    ("start", "position"),
    [
        ("LATEST", StartPosition("LATEST")),
        ("TRIM_HORIZON", StartPosition("TRIM_HORIZON")),
        ("2026-11-20T09:00:00Z", StartPosition("AT_TIMESTAMP", 1_795_165_200_000)),
        ("2026-11-20T10:00:00+01:00", StartPosition("AT_TIMESTAMP", 1_795_165_200_000)),
        (datetime(2026, 11, 20, 9, tzinfo=UTC), StartPosition("AT_TIMESTAMP", 1_795_165_200_000)),
    ],
)
def test_every_way_to_say_where_to_start(start, position):
    assert _config(initial_position=start).start_position == position


def test_an_unknown_option_of_worker_names_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'failover_time'"):
        Worker("orders-app", stream="orders", processor=Orders, failover_tme=3)


def test_worker_wants_a_name_a_stream_and_one_kind_of_configuration():
    with pytest.raises(ConfigError, match="No application name"):
        Worker(processor=Orders)
    with pytest.raises(ConfigError, match="has no stream"):
        Worker("orders-app", processor=Orders)
    with pytest.raises(ConfigError, match="Use one of them"):
        Worker(processor=Orders, config=_config(), max_leases=3)
    with pytest.raises(ConfigError, match="contradicts"):
        Worker("other-app", processor=Orders, config=_config())
