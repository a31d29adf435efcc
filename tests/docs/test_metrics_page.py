"""docs/operate/monitoring.md says what the code does: its catalogue, causes, sinks and numbers."""

import re

import metrics_table

from pykcl.events import LossReason
from pykcl.metrics.catalog import CATALOGUE, PRODUCER_CATALOGUE, SINKS
from pykcl.metrics.cloudwatch import MAX_METRICS_PER_REQUEST
from pykcl.metrics.opentelemetry import ATTRIBUTES, METER
from pykcl.metrics.prometheus import LABELS

TEXT = metrics_table.PAGE.read_text("utf-8")
WORDS = " ".join(TEXT.split())


def test_the_catalogue_is_the_codes():
    assert metrics_table.written() == TEXT, "run: python tests/docs/metrics_table.py"


def test_names_are_told_apart_by_operation_and_no_text_is_missing():
    measures = (*CATALOGUE, *PRODUCER_CATALOGUE)
    assert len({(one.operation, one.name) for one in measures}) == len(measures)
    assert all(one.text and "|" not in one.text for one in measures)


KPL = {
    "UserRecordsReceived": ("DETAILED", "Count", "stream"),
    "UserRecordsPending": ("DETAILED", "Count", "stream"),
    "UserRecordsPut": ("SUMMARY", "Count", "shard"),
    "UserRecordsDataPut": ("DETAILED", "Bytes", "shard"),
    "KinesisRecordsPut": ("SUMMARY", "Count", "shard"),
    "KinesisRecordsDataPut": ("DETAILED", "Bytes", "shard"),
    "ErrorsByCode": ("SUMMARY", "Count", "code"),
    "AllErrors": ("SUMMARY", "Count", "shard"),
    "RetriesPerRecord": ("DETAILED", "Count", "shard"),
    "BufferingTime": ("SUMMARY", "Milliseconds", "shard"),
    "RequestTime": ("DETAILED", "Milliseconds", "stream"),
    "UserRecordsPerKinesisRecord": ("DETAILED", "Count", "shard"),
    "KinesisRecordsPerPutRecordsRequest": ("DETAILED", "Count", "stream"),
    "UserRecordsPerPutRecordsRequest": ("DETAILED", "Count", "stream"),
}
"""Level, unit and finest dimension of the metrics in "Monitor the KPL with CloudWatch" of the developer guide. That
RequestTime has no values of shards, as a request goes to several, is of the source, `Retrier::emit_metrics` of 1.0.7.
There ErrorsByCode has values of each shard, too."""
FINEST = {
    ("StreamName",): "stream",
    ("StreamName", "ShardId"): "shard",
    ("StreamName", "ErrorCode"): "code",
}


def test_a_producer_has_the_metrics_that_kpl_documents_with_their_levels_units_and_dimensions():
    assert {one.name: (one.level, one.unit, FINEST[one.dimensions]) for one in PRODUCER_CATALOGUE} == KPL
    assert all(one.has_total is (KPL[one.name][2] == "shard") for one in PRODUCER_CATALOGUE)


def test_every_metric_the_page_names_is_one():
    head = TEXT.partition("## The catalogue")[0].partition("## What to alarm on")[2]
    named = set(re.findall(r"`([A-Z][A-Za-z]+(?:\.(?:Time|Success))?)`", head))
    names = {one.name for one in CATALOGUE} | {one.operation for one in CATALOGUE}
    assert named - names == {reason.value for reason in LossReason}
    assert {one.name for one in CATALOGUE if one.is_ours} - {"DroppedMetrics"} <= named


def test_sinks_labels_attributes_and_numbers_are_the_codes():
    assert re.findall(r'`metrics="(\w+)"`', TEXT)[:3] == list(SINKS)
    assert all(f"`{label}`" in TEXT for label in LABELS.values())
    assert all(f"`{attribute}`" in TEXT for attribute in ATTRIBUTES.values())
    assert f"`{METER}`" in TEXT
    assert f"up to {MAX_METRICS_PER_REQUEST:,} metrics" in WORDS


def test_as_many_metrics_as_the_page_says_come_of_a_shard_and_of_a_worker():
    summary = [one for one in CATALOGUE if one.level == "SUMMARY" and not one.is_ours]
    shard = sum(one.dimension == "ShardId" for one in summary)
    worker = sum(one.dimension != "ShardId" for one in summary)
    assert "six for each shard and up to twenty-five for each worker" in WORDS
    # Of a shard ExpiredIterator has data only when there is one.
    assert (shard - 1, worker) == (6, 25)
