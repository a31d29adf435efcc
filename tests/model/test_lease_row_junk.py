"""Whatever a table holds, parse_row answers with a value, and a Lease only with values in range."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pykcl.model import lease_writes
from pykcl.model.lease import ForeignRow, Lease, UnreadableRow
from pykcl.model.lease_writes import parse_row, to_item

NAMES = [
    "leaseKey",
    "leaseOwner",
    "leaseCounter",
    "ownerSwitchesSinceCheckpoint",
    "checkpoint",
    "checkpointSubSequenceNumber",
    "parentShardId",
    "childShardIds",
    "startingHashKey",
    "endingHashKey",
    "pendingCheckpoint",
    "pendingCheckpointSubSequenceNumber",
    "pendingCheckpointState",
    "checkpointOwner",
    "entityType",
    "pykcl",
    "throughputKBps",
]
GOOD = {
    "leaseKey": {"S": "shardId-000000000000"},
    "leaseCounter": {"N": "4"},
    "ownerSwitchesSinceCheckpoint": {"N": "1"},
    "checkpoint": {"S": "10"},
    "checkpointSubSequenceNumber": {"N": "0"},
}

numbers = st.one_of(
    st.integers().map(str),
    st.sampled_from(
        ["", "-0", "00", "1e3", "1.0", "NaN", "Infinity", "٣", "9" * 400, str(2**63), str(2**63 - 1)]
    ),
)
texts = st.one_of(
    st.text(max_size=300),
    numbers,
    st.sampled_from(["SHARD_END", "LATEST", "LEASE", "AT_TIMESTAMP", "x" * 257]),
)
scalars = st.one_of(
    texts.map(lambda text: {"S": text}),
    numbers.map(lambda text: {"N": text}),
    st.binary(max_size=20).map(lambda data: {"B": data}),
    st.booleans().map(lambda flag: {"BOOL": flag}),
    st.just({"NULL": True}),
    st.lists(texts, max_size=4).map(lambda members: {"SS": members}),
    st.lists(st.one_of(texts, st.integers()), max_size=3).map(lambda members: {"SS": members}),
)
maps = st.dictionaries(st.sampled_from(["streamArn", "owner", "latestFrom", "x"]), scalars, max_size=3)
broken = st.sampled_from(
    [{}, {"S": None}, {"N": 5}, {"S": "a", "N": "1"}, {"M": []}, {"SS": "abc"}, None, "S", 7]
)
values = st.one_of(scalars, maps.map(lambda inner: {"M": inner}), broken)
changes = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)


@settings(max_examples=400)
@given(changes=changes, whole=st.booleans())
def test_junk_never_raises_and_never_becomes_a_lease_out_of_range(changes, whole):
    item = {**GOOD, **changes} if whole else changes
    found = parse_row(item)
    assert isinstance(found, Lease | ForeignRow | UnreadableRow)
    assert len(found.key) <= 256
    if not isinstance(found, Lease):
        return
    assert found.key
    assert 0 <= found.counter < 2**63
    assert 0 <= found.owner_switches < 2**63
    assert 0 <= found.checkpoint.sub_sequence_number < 2**63
    assert len(found.parents) <= 2
    assert all(0 < len(name) <= 256 for name in (*found.parents, *found.children))
    assert found.owner is None or 0 < len(found.owner) <= 256
    assert found.entity_type in (None, "LEASE")
    if found.hash_range is not None:
        assert 0 <= found.hash_range.first < found.hash_range.last < 2**128


@settings(max_examples=400)
@given(changes=changes)
def test_a_lease_out_of_junk_keeps_every_attribute_and_can_be_taken(changes):
    # DynamoDB itself sees to it that an attribute has exactly one type.
    typed = {name: value for name, value in changes.items() if isinstance(value, dict) and len(value) == 1}
    item = {**GOOD, **typed}
    found = parse_row(item)
    if not isinstance(found, Lease):
        return
    back = to_item(found)
    assert all(back[name] == value for name, value in item.items() if not name.endswith("SubSequenceNumber"))
    write = lease_writes.take(found, "me")
    assert write.after.counter == found.counter + 1
    assert to_item(write.after)["leaseOwner"] == {"S": "me"}
    write.request()
