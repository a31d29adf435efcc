"""Reading a stream from a start to its end, through the port the worker reads with."""

from pykcl.model.checkpoint import ReadFrom

FIRST = "shardId-000000000000"
HORIZON = ReadFrom("TRIM_HORIZON")
LATEST = ReadFrom("LATEST")
HASH_KEYS = 2**128
MANY = 10_000


def at_time(millis):
    return ReadFrom("AT_TIMESTAMP", at_millis=int(millis))


def at(number):
    return ReadFrom("AT_SEQUENCE_NUMBER", sequence_number=number)


def after(number):
    return ReadFrom("AFTER_SEQUENCE_NUMBER", sequence_number=number)


def read_on(stream, shard_id, iterator, *, limit=MANY, pages=1000):
    """Page after page until the end of the shard or an empty one at its tip: (records, last page)."""
    records = []
    for _ in range(pages):
        page = stream.fetch(shard_id, iterator, limit)
        assert len(page.records) <= limit
        records.extend(page.records)
        if page.next_iterator is None or (not page.records and page.millis_behind_latest == 0):
            return records, page
        iterator = page.next_iterator
    raise AssertionError(f"{shard_id} has no end after {pages} pages")


def read(stream, shard_id, start, **how):
    return read_on(stream, shard_id, stream.open(shard_id, start), **how)


def data_of(records):
    return [record.data for record in records]


def data_from(stream, shard_id, start):
    return data_of(read(stream, shard_id, start)[0])


def ranges_of(stream, ids):
    by_id = stream.list_shards().by_id
    return [(by_id[one].hash_range.first, by_id[one].hash_range.last) for one in ids]


def within(shard, hash_key):
    return shard.hash_range.first <= hash_key <= shard.hash_range.last


def three_records(streams, stream):
    """b"0", b"1" and b"2", ten seconds apart; their sequence numbers and arrival times, and ten seconds after."""
    numbers = []
    for text in (b"0", b"1", b"2"):
        numbers.append(streams.put(stream, text)[1])
        streams.later(10)
    records, _ = read(stream, FIRST, HORIZON)
    return numbers, [record.arrived_at_millis for record in records]
