"""Producer of the demo: its records, its aggregates, and its counts."""

from __future__ import annotations

from typing import Any

import pytest

from pykcl.demo.producer import CELLS, Mix, Producer, cell_of, cells_in
from pykcl.demo.record_log import is_poison, payload, payload_id
from pykcl.local.shards import HASH_KEYS
from pykcl.local.stream import AwsError, LocalKinesis
from pykcl.local.stream import Entry as PutEntry
from pykcl.model.kpl import MAGIC, deaggregate
from pykcl.model.record import Record
from pykcl.model.shard import HashRange


class ModelClient:
    """put_records of boto3's client over the stream model; every n-th entry is refused once."""

    def __init__(self, kinesis: LocalKinesis, refuse_every: int = 0) -> None:
        self.kinesis = kinesis
        self.refuse_every = refuse_every
        self.entries = 0

    def put_records(self, **request: Any) -> dict[str, Any]:
        answers: list[dict[str, str]] = []
        for record in request["Records"]:
            self.entries += 1
            if self.refuse_every and self.entries % self.refuse_every == 0:
                answers.append({"ErrorCode": "InternalFailure"})
                continue
            (put,) = self.kinesis.put_records("demo", [PutEntry(record["Data"], record["PartitionKey"])])
            assert not isinstance(put, AwsError)
            answers.append({"ShardId": put.shard_id, "SequenceNumber": put.sequence_number})
        return {"Records": answers}


@pytest.fixture
def kinesis() -> LocalKinesis:
    model = LocalKinesis(lambda: 1_700_000_000_000)
    model.create_stream("demo", 4)
    return model


def users_of(data: bytes, partition_key: str) -> list[Record]:
    return list(deaggregate(Record(data, partition_key, "1"), None))


def test_the_same_seed_draws_the_same_records_and_another_one_does_not():
    first, second, other = (Mix(seed).draw(300) for seed in (7, 7, 8))
    assert first == second
    assert [put.data for put in first] != [put.data for put in other]


def test_a_draw_holds_exactly_the_ids_it_names_plain_and_aggregated():
    puts = Mix(7).draw(500)
    assert [number for put in puts for number in put.ids] == list(range(500))
    for put in puts:
        users = users_of(put.data, put.partition_key)
        assert [payload_id(user.data) for user in users] == list(put.ids)
    assert {put.data.startswith(MAGIC) for put in puts} == {True, False}


def test_all_records_of_an_aggregate_lie_in_one_cell():
    for put in Mix(3).draw(2000):
        cells = {cell_of(user.partition_key) for user in users_of(put.data, put.partition_key)}
        assert len(cells) == 1


def test_no_shard_of_the_demo_cuts_a_cell(kinesis):
    kinesis.split("demo", "shardId-000000000001")
    kinesis.merge("demo", "shardId-000000000002", "shardId-000000000003")
    ranges = [shard.hash_range for shard in kinesis.list_shards("demo") if shard.is_open]
    assert sorted(cell for one in ranges for cell in cells_in(one)) == list(range(CELLS))


def test_a_range_smaller_than_a_cell_holds_none():
    assert cells_in(HashRange(0, HASH_KEYS // CELLS - 2)) == ()


def test_the_producer_counts_what_the_server_counts_even_when_entries_are_refused(kinesis):
    producer = Producer(ModelClient(kinesis, refuse_every=5), "demo", seed=1, rate=100)
    everything = HashRange(0, HASH_KEYS - 1)
    producer.burst(700, [everything])
    assert producer.placed.keys() == set(range(700))
    assert producer.kinesis_records == sum(kinesis.put_counts("demo").values())
    assert {shard: len(numbers) for shard, numbers in producer.sequences.items()} == kinesis.put_counts(
        "demo"
    )
    last = producer.last_sequence("shardId-000000000000")
    assert last is not None
    assert producer.put_up_to("shardId-000000000000", last) == len(producer.sequences["shardId-000000000000"])


def test_a_burst_goes_into_the_given_ranges_only(kinesis):
    producer = Producer(ModelClient(kinesis), "demo", seed=1, rate=100)
    wanted = kinesis.list_shards("demo")[2]
    producer.burst(50, [wanted.hash_range])
    assert set(producer.placed.values()) == {wanted.shard_id}


def test_a_poison_record_is_put_alone_among_others_and_its_position_is_known(kinesis):
    producer = Producer(ModelClient(kinesis), "demo", seed=1, rate=100)
    wanted = kinesis.list_shards("demo")[2]
    number = producer.put_poison(wanted.hash_range, 10)
    assert number == 5
    assert producer.placed == dict.fromkeys(range(11), wanted.shard_id)
    assert producer.poison.keys() == {number}
    iterator = kinesis.get_shard_iterator("demo", wanted.shard_id, "TRIM_HORIZON")
    poison = [record for record in kinesis.get_records(iterator).records if is_poison(record.data)]
    assert [(payload_id(one.data), one.sequence_number) for one in poison] == [*producer.poison.items()]


def test_a_payload_carries_its_number_and_anything_else_none():
    assert payload_id(payload(17, 100)) == 17
    assert len(payload(17, 100)) == 100
    assert payload_id(payload(17, 100, poison=True)) == 17
    assert len(payload(17, 100, poison=True)) == 100
    assert payload_id(b"not json") is None
    assert payload_id(b"[1]") is None
    assert payload_id(b'{"id": "x"}') is None
