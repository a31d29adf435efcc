"""Java KCL and amazon_kclpy take apart what `Producer` has put into aggregates: record for record, where its results say."""

import json
from collections import Counter
from contextlib import closing

import kclpy_package
import pytest
from fleet_evidence import STREAM, TABLE
from fleet_recording import complete_lines
from fleet_stream import client
from java_worker import make_leases
from kclpy_worker import DAEMON, JARS
from scenario_stories import table_of

from pykcl import Producer

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("reader", ["2.7.2", "amazon_kclpy"])
def test_each_record_is_read_once_where_its_result_says_through_a_split_and_a_merge(java, fleet, reader):
    java(JARS if reader == "amazon_kclpy" else reader)
    with fleet(shards=3) as run, closing(client(run.server.url)) as kinesis:
        worker = _started(run, reader)
        run.wait_until_started(worker)
        with Producer(STREAM, clients={"kinesis": kinesis}, linger=0.05) as producer:
            futures = []
            for what in ("split", "merge", None):
                futures += [_put(producer, number) for number in range(len(futures), len(futures) + 1000)]
                producer.flush()
                if what is not None:
                    run.reshard(what)
        put = Counter(
            (said.shard_id, said.sequence_number, said.sub_sequence_number, number)
            for number, said in enumerate(future.result() for future in futures)
        )
        run.wait_for("all records", lambda: put.keys() <= _read(worker).keys())
        assert _read(worker) == put
    assert len({(shard, sequence) for shard, sequence, _, _ in put}) < len(put) / 10, (
        "they came in aggregates"
    )
    assert len({shard for shard, *_ in put}) > 3, "also into the children"


def _put(producer, number):
    return producer.put(json.dumps({"id": number}).encode(), f"key-{number % 97}")


def _started(run, reader):
    if reader != "amazon_kclpy":
        return run.java("j1", reader)
    try:
        package = kclpy_package.unpacked()
    except kclpy_package.Unavailable as reason:
        pytest.skip(f"Java with the daemon of amazon_kclpy SKIPPED: {reason}")
    with table_of(run) as dynamodb:
        # Its start is at LATEST.
        make_leases(dynamodb, TABLE, run.open_ranges())
    return run.kclpy("k1", package, DAEMON)


def _read(worker):
    """Count what the processors of a worker have done: shard, sequence number, sub-sequence number, number of the record."""
    lines = (line for line in complete_lines(worker.recording) if line["what"] == "done")
    return Counter((line["shard"], *line["record"]) for line in lines)
