"""What a producer measures, under KPL's names, and what becomes of it. In simulated time."""

import re

import pytest

from pykcl import AsyncProducer, PutFailed
from pykcl.aws.kinesis_decode import put_answers
from pykcl.errors import ConfigError, NotDelivered, SetupError, Throttled
from pykcl.metrics import catalog
from pykcl.metrics.catalog import PRODUCER_CATALOGUE
from pykcl.metrics.prometheus import LEAVES_AFTER
from pykcl.testing.runtime.event_loop import run_coroutine
from tests.metrics.metric_sinks import CloudWatch, Recorder
from tests.producer.stream_kit import no_answer

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def put_some(stage, **options):
    """Two aggregates for the one shard, a plain record for the other; returns what a sink got."""
    sink = Recorder()
    low, high = stage.key_for("0"), stage.key_for("1")
    with stage.producer(metrics_sinks=[sink], **options) as producer:
        for _ in range(2):
            for _ in range(10):
                producer.put(b"12345", low)
            producer.flush()
        producer.put(b"1", high)
    return sink


def test_records_and_requests_are_counted_for_the_stream_and_in_detail_for_each_shard(stage):
    sink = put_some(stage, metrics_level="DETAILED", linger=2.0)
    assert {one for one in PRODUCER_CATALOGUE if sink.of(one)} == set(PRODUCER_CATALOGUE) - {
        catalog.ALL_ERRORS,
        catalog.ERRORS_BY_CODE,
    }
    assert sum(sink.of(catalog.USER_RECORDS_RECEIVED)) == 21
    assert sum(sink.of(catalog.USER_RECORDS_PUT, FIRST)) == 20
    assert sum(sink.of(catalog.USER_RECORDS_DATA_PUT, FIRST)) == 100
    assert sum(sink.of(catalog.USER_RECORDS_PUT, SECOND)) == 1
    assert sink.of(catalog.KINESIS_RECORDS_PUT, FIRST) == [1.0, 1.0]
    assert sum(sink.of(catalog.KINESIS_RECORDS_DATA_PUT, FIRST)) > 100
    assert sink.of(catalog.USER_RECORDS_PER_KINESIS_RECORD, FIRST) == [10.0, 10.0]
    assert sink.of(catalog.USER_RECORDS_PER_REQUEST) == [10.0, 10.0, 1.0]
    assert sink.of(catalog.KINESIS_RECORDS_PER_REQUEST) == [1.0, 1.0, 1.0]
    assert sink.of(catalog.USER_RECORDS_PENDING)[-1] == 0.0
    assert set(sink.of(catalog.RETRIES_PER_RECORD)) == {0.0}


def test_the_level_summary_counts_for_the_stream_alone(stage):
    sink = put_some(stage)
    seen = {one for one in PRODUCER_CATALOGUE if sink.of(one)}
    assert seen == {catalog.USER_RECORDS_PUT, catalog.KINESIS_RECORDS_PUT, catalog.BUFFERING_TIME}
    assert {label for one in seen for label in sink.labels(one)} == {""}
    assert sum(sink.of(catalog.USER_RECORDS_PUT)) == 21


def test_times_are_those_until_the_first_request_and_of_the_request(stage):
    def slow_and_unanswered(records):
        stage.answer = lambda _: stage.sleep(1)
        stage.sleep(3)
        no_answer(records)

    stage.answer = slow_and_unanswered
    sink = Recorder()
    with stage.producer(metrics_sinks=[sink], metrics_level="DETAILED", linger=0.5) as producer:
        producer.put(b"a")
    assert sink.of(catalog.REQUEST_TIME) == [pytest.approx(3000, abs=1), pytest.approx(1000, abs=1)]
    assert sink.of(catalog.RETRIES_PER_RECORD) == [1.0]
    # A flush, that of the end, lets no record wait; the second request is no longer one of a fresh record.
    assert sink.of(catalog.BUFFERING_TIME) == [pytest.approx(0, abs=1)]


def test_errors_are_counted_by_code_and_by_the_shard_that_was_meant(stage):
    def throttled(records):
        stage.trouble = throttled_wholly
        return [0, 1]

    def throttled_wholly(_):
        stage.trouble = lambda _: ()
        raise Throttled("too much")

    stage.trouble = throttled
    sink = Recorder()
    with stage.producer(metrics_sinks=[sink], metrics_level="DETAILED", aggregate=False) as producer:
        for _ in range(3):
            producer.put(b"x", stage.key_for("1"))
    assert sink.labels(catalog.ERRORS_BY_CODE) == {"ProvisionedThroughputExceededException", "Throttled"}
    assert sum(sink.of(catalog.ERRORS_BY_CODE, "ProvisionedThroughputExceededException")) == 2
    assert sum(sink.of(catalog.ERRORS_BY_CODE, "Throttled")) == 2
    assert sum(sink.of(catalog.ALL_ERRORS, SECOND)) == 4
    assert sum(sink.of(catalog.USER_RECORDS_PUT, SECOND)) == 3


def test_a_record_that_is_given_up_is_an_error_and_was_not_put(stage):
    stage.trouble = no_answer
    sink = Recorder()
    with stage.producer(metrics_sinks=[sink], record_ttl=2, on_failure=lambda *_: None) as producer:
        future = producer.put(b"x")
        stage.sleep(10)
        assert isinstance(future.exception(0), NotDelivered)
        with pytest.raises(Exception, match="1 records were not delivered"):
            producer.flush()
    assert sink.of(catalog.ERRORS_BY_CODE, "NotDelivered") == [1.0]
    assert sink.of(catalog.USER_RECORDS_PUT) == []


def test_a_record_that_lacks_a_permission_is_given_up_too_with_the_retries_it_had(stage):
    def refused(_):
        raise SetupError("kinesis:PutRecords is missing")

    stage.trouble = refused
    sink = Recorder()
    producer = stage.producer(metrics_sinks=[sink], metrics_level="DETAILED")
    producer.start()
    producer.put(b"x")
    with pytest.raises(PutFailed):
        producer.close()
    requests = len(stage.requests)
    assert sink.of(catalog.ERRORS_BY_CODE, "SetupError") == [1.0] * requests
    assert sink.of(catalog.ERRORS_BY_CODE, "NotDelivered") == [1.0]
    assert sum(sink.of(catalog.ALL_ERRORS)) == requests + 1
    assert sink.of(catalog.RETRIES_PER_RECORD, "") == [requests - 1.0]


def test_an_answer_with_fewer_results_than_records_counts_for_each_record_of_the_request(stage):
    def cut_short(records):
        stage.answer = lambda _: ()
        put_answers({"Records": [{"ShardId": FIRST, "SequenceNumber": "1"}]}, len(records))

    stage.answer = cut_short
    sink = Recorder()
    low, high = stage.key_for("0"), stage.key_for("1")
    with stage.producer(metrics_sinks=[sink], metrics_level="DETAILED", linger=2.0) as producer:
        futures = [producer.put(b"x", key) for key in (low, high, high)]
    assert sink.of(catalog.ERRORS_BY_CODE, "AnswerRefused") == [2.0]
    assert [sink.of(catalog.ALL_ERRORS, shard) for shard in (FIRST, SECOND)] == [[1.0], [1.0]]
    # Nobody knows which of them were put, so all went again.
    assert sum(sink.of(catalog.KINESIS_RECORDS_PER_REQUEST)) == 4
    assert sum(sink.of(catalog.KINESIS_RECORDS_PUT)) == 2
    assert sum(sink.of(catalog.USER_RECORDS_PUT)) == 3
    assert all(future.result(0).perhaps_twice for future in futures)


def test_a_stream_that_takes_nothing_shows_in_the_records_that_wait(stage):
    stage.trouble = no_answer
    sink = Recorder()
    with stage.producer(metrics_sinks=[sink], metrics_level="DETAILED") as producer:
        for _ in range(7):
            producer.put(b"x")
        stage.sleep(1)
        assert sink.of(catalog.USER_RECORDS_PENDING)[-1] == 7.0
        stage.trouble = lambda _: ()


def test_a_sink_that_raises_is_left_out_and_no_record_notices(stage):
    class Broken(Recorder):
        def take(self, label, values):
            raise ValueError

    good = Recorder()
    with stage.producer(metrics_sinks=[Broken(), good]) as producer:
        result = producer.put(b"x")
    assert result.result(0).attempts == 1
    assert sum(good.of(catalog.USER_RECORDS_PUT)) == 1


def test_nothing_is_measured_by_default(stage):
    with stage.producer() as producer:
        producer.put(b"x")
        assert not producer._metering.meter.is_on
        assert producer.prometheus_page() is producer.prometheus_collector() is None


def test_cloudwatch_has_all_values_once_the_producer_is_closed_of_the_stream_and_of_each_shard(stage):
    cloudwatch = CloudWatch()
    put_some(stage, metrics="cloudwatch", metrics_level="DETAILED", clients={"cloudwatch": cloudwatch})
    (request,) = cloudwatch.requests
    assert request["Namespace"] == "KinesisProducerLibrary"
    puts = {
        tuple(one["Value"] for one in datum["Dimensions"]): datum["StatisticValues"]["Sum"]
        for datum in cloudwatch.data("UserRecordsPut")
    }
    assert puts == {("s",): 21, ("s", FIRST): 20, ("s", SECOND): 1}
    (datum,) = cloudwatch.data("UserRecordsReceived")
    assert datum["Dimensions"] == [{"Name": "StreamName", "Value": "s"}]


def test_without_detail_cloudwatch_has_the_stream_alone_in_the_namespace_that_was_given(stage):
    cloudwatch = CloudWatch()
    stage.trouble = no_answer
    options = {"metrics": "cloudwatch", "metrics_namespace": "shop", "clients": {"cloudwatch": cloudwatch}}
    with stage.producer(**options) as producer:
        producer.put(b"x")
        stage.sleep(1)
        stage.trouble = lambda _: ()
    assert {request["Namespace"] for request in cloudwatch.requests} == {"shop"}
    (put,) = cloudwatch.data("UserRecordsPut")
    assert put["Dimensions"] == [{"Name": "StreamName", "Value": "s"}]
    (error,) = cloudwatch.data("ErrorsByCode")
    assert {one["Name"]: one["Value"] for one in error["Dimensions"]} == {
        "StreamName": "s",
        "ErrorCode": "TemporaryError",
    }


def test_cloudwatch_in_trouble_is_logged_once_and_holds_up_neither_a_record_nor_the_end(stage, caplog):
    def refuse():
        raise OSError

    options = {"metrics": "cloudwatch", "clients": {"cloudwatch": CloudWatch(refuse)}}
    began = stage.runtime.monotonic()
    with stage.producer(**options) as producer:
        for _ in range(5):
            producer.put(b"x")
            stage.sleep(60)
    assert stage.seen() == {b"x": 5}
    assert stage.runtime.monotonic() - began < 302
    assert len([record for record in caplog.records if "publishing metrics fails" in record.message]) == 1


def test_prometheus_has_a_page_of_the_stream(stage):
    pytest.importorskip("prometheus_client")
    with stage.producer(metrics="prometheus") as producer:
        producer.put(b"x")
        producer.flush()
        text = producer.prometheus_page()[0].decode()
    assert 'pykcl_producer_user_records_put_total{stream="s"} 1.0' in text
    assert "pykcl_records_processed" not in text


def shards_on(producer):
    """The shards that have series."""
    page = producer.prometheus_page()[0].decode()
    return set(re.findall(r'shard="(shardId-\d+)"', page))


def test_the_series_of_shards_that_have_ended_leave_five_minutes_later_and_no_count_is_lost(stage):
    pytest.importorskip("prometheus_client")
    with stage.producer(metrics="prometheus", metrics_level="DETAILED", ordered=True) as producer:
        for number in range(8):
            for at in range(20):
                producer.put(b"x", f"k{at}")
            producer.flush()
            stage.sleep(LEAVES_AFTER - 60)
            shown = shards_on(producer)
            assert {shard.shard_id for shard in stage.open_shards()} <= shown
            assert len(shown) - len(stage.open_shards()) <= 1, "the shard that has ended a moment ago"
            if number < 7:
                stage.kinesis.split("s", stage.open_shards()[0].shard_id)
        stage.sleep(61)
        assert shards_on(producer) == {shard.shard_id for shard in stage.open_shards()}
        page = producer.prometheus_page()[0].decode()
    assert 'pykcl_producer_user_records_put_all_shards_total{stream="s"} 160.0' in page


def test_a_shard_is_not_forgotten_before_it_has_ended_by_a_listing(stage):
    sink = Recorder()
    with stage.producer(metrics_sinks=[sink], metrics_level="DETAILED", aggregate=False) as producer:
        low, lists = stage.key_for("0"), stage.list_shards
        late = lists()
        producer.put(b"a", low)
        producer.flush()
        stage.list_shards = lambda: late
        stage.kinesis.split("s", FIRST)
        for _ in range(5):
            producer.put(b"b", low)
            producer.flush()
            stage.sleep(1)
        assert len(sink.labels(catalog.USER_RECORDS_PUT)) == 2, "the child has records, and no listing has it"
        assert sink.forgotten == []
        stage.list_shards = lists
        producer.put(b"c", low)
        producer.flush()
        stage.sleep(1)
        assert sink.forgotten == [FIRST]


def test_a_shard_that_retention_has_removed_from_the_listing_is_forgotten_too(stage):
    sink = Recorder()
    with stage.producer(metrics_sinks=[sink], metrics_level="DETAILED") as producer:
        low = stage.key_for("0")
        producer.put(b"a", low)
        producer.flush()
        stage.kinesis.split("s", FIRST)
        stage.sleep(25 * 3600)
        assert FIRST not in {shard.shard_id for shard in stage.list_shards().shards}
        producer.put(b"b", low)
        producer.flush()
        stage.sleep(1)
    assert sink.forgotten == [FIRST]


def test_a_sink_that_cannot_forget_is_left_out_and_no_record_notices(stage):
    class Broken(Recorder):
        def forget(self, shard):
            raise ValueError

    good = Recorder()
    options = {"metrics_sinks": [Broken(), good], "metrics_level": "DETAILED"}
    with stage.producer(**options) as producer:
        low = stage.key_for("0")
        for _ in range(2):
            producer.put(b"x", low)
            producer.flush()
            stage.kinesis.split("s", stage.open_shards()[0].shard_id)
        producer.put(b"x", low)
        producer.flush()
        stage.sleep(1)
    assert stage.seen() == {b"x": 3}
    assert good.forgotten


def test_an_async_producer_measures_the_same(stage):
    sink = Recorder()

    async def main():
        async with stage.producer(AsyncProducer, metrics_sinks=[sink]) as producer:
            await producer.put(b"x")

    run_coroutine(stage.runtime, main())
    assert sum(sink.of(catalog.USER_RECORDS_PUT)) == 1


@pytest.mark.parametrize(
    "options", [{"metrics": "statsd"}, {"metrics_level": "ALL"}, {"metrics_sinks": "otel"}], ids=str
)
def test_options_of_metrics_are_checked(stage, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        stage.producer(**options)
