"""Names do not come out of a redacted text, whatever they look like and wherever they stand."""

from fleet_table import lease, shard
from hypothesis import given
from hypothesis import strategies as st

from pykcl import Config
from pykcl.model.lease import PykclMetadata
from pykcl.model.lease_item import to_item
from pykcl.operate.doctor.bundle import Redactor, bundle_of, redactor_of
from pykcl.operate.doctor.consumers import check_consumers
from pykcl.operate.doctor.facts import (
    AccountFacts,
    ConsumerFacts,
    Facts,
    ProcessFacts,
    StreamFacts,
    TableFacts,
    WatchFacts,
)
from pykcl.operate.doctor.findings import Finding
from pykcl.operate.lag import ShardLag
from pykcl.operate.snapshot import shown, snapshot_of

ARN = "arn:aws:sts::123456789012:assumed-role/payments-reader/i-0abc"


def test_the_same_name_is_the_same_hash_and_another_report_has_another():
    one, other = (Redactor(salt, {"stream": ["orders"], "table": ["orders-app"]}) for salt in ("a", "b"))
    text = one.text("orders-app reads orders; orders-app-orders and orders-app-CoordinatorState do not tell")
    assert "orders" not in text
    assert text.count(one.token("table", "orders-app")) == 3
    assert one.text("orders") != other.text("orders")


def test_arns_accounts_addresses_keys_and_urls_go_without_being_named():
    redactor = Redactor("salt", {})
    text = redactor.text(
        f"{ARN}; account 123456789012 at 10.0.1.7, http://u:p@proxy.corp:80/x AKIAIOSFODNN7EXAMPLE, 1.44.5"
    )
    for secret in ("123456789012", "payments", "10.0.1.7", "proxy", "AKIA"):
        assert secret not in text
    assert text.endswith("1.44.5")


def test_shards_and_sequence_numbers_stay():
    number = "49590338271490256608559692538361571095921575989136588898"
    assert Redactor("s", {}).text(f"shardId-000000000007 at {number}") == f"shardId-000000000007 at {number}"


def test_a_name_that_looks_like_a_hash_or_a_pattern_does_no_harm():
    redactor = Redactor("s", {"worker": ["a.*", "[", "worker", "stream-1a2b3c4d", "\udc000\udc01"]})
    assert "worker-" in redactor.text("worker")
    assert "[" not in redactor.text("it is [ here")
    assert redactor.text("nothing to see") == "nothing to see"


@given(st.lists(st.text(min_size=4, max_size=30), max_size=5), st.text(max_size=80))
def test_no_known_name_is_left(names, around):
    redactor = Redactor("s", {"worker": names})
    text = redactor.text(around + " ".join(names) + around)
    left = set(names) - {name for name in names if name in _hashes(redactor, names)}
    assert not [name for name in left if name in text]


def _hashes(redactor, names):
    """A name may be a part of what stands for another: then nothing is given away."""
    return " ".join(redactor.token("worker", name) for name in names) + " \\ud"


def test_names_that_are_keys_of_mappings_go_too():
    redactor = Redactor("s", {"row": ["tenant-acme"]})
    told = redactor.value({"tenant-acme": {"shardId-000000000001": ["tenant-acme"], 5: 1}})
    token = redactor.token("row", "tenant-acme")
    assert told == {token: {"shardId-000000000001": [token], 5: 1}}


KEYS = {
    "customerXY@example.com": "customerXY",
    "tenant-acme-corp": "acme",
    "tenant-\n-acme": "acme",
    f"tenant-{'acme' * 60}": "acme",
    "acme-shardId-000000000005": "acme",
    "123456789012:payments:1790000000:shardId-000000000007": "payments",
}


def test_consumers_of_enhanced_fan_out_are_in_no_report():
    note = PykclMetadata(owner="w", consumer="acme-in-a-row")
    view = snapshot_of([to_item(lease(1).with_(owner="w", metadata=note))])
    facts = Facts(
        config=Config(
            application="orders-app", stream="orders", retrieval="fanout", consumer="acme-configured"
        ),
        application="orders-app",
        process=ProcessFacts(python="3.11", pykcl="1"),
        account=AccountFacts(),
        stream=StreamFacts(name="orders", open_shards=2),
        table=TableFacts(name="orders-app", watch=WatchFacts(snapshot=view)),
        consumers=ConsumerFacts(names=("acme-listed", "acme-in-a-row"), unused=("acme-listed",)),
    )
    findings = [*check_consumers(facts), Finding("x", "fleet", "info", "acme-in-a-row and acme-configured")]
    texts = "".join(bundle_of(facts, findings, redactor_of(facts, "salt"), "now").values())
    assert "consumer-unused" in texts
    assert "acme" not in texts


def test_of_a_lease_key_only_the_id_of_a_shard_is_in_a_report():
    rows = [{**to_item(lease(1)), "leaseKey": {"S": key}} for key in (*KEYS, shard(1))]
    rows[0] |= {"parentShardId": {"SS": ["parent-of-acme"]}}
    rows[1] |= {"childShardIds": {"SS": ["child-of-acme"]}}
    rows[5] |= {"streamName": {"S": "123456789012:payments:1790000000"}}
    rows.append({"leaseKey": {"S": "unreadable-acme"}, "leaseCounter": {"S": "x"}})
    rows.append({"leaseKey": {"S": "foreign-acme"}, "entityType": {"S": "LEADER"}})
    view = snapshot_of(rows)
    watch = WatchFacts(snapshot=view, unmoved_for=dict.fromkeys(view.leases, 1.0))
    config = Config(application="orders-app", stream="orders")
    facts = Facts(
        config=config,
        application="orders-app",
        process=ProcessFacts(python="3.11", pykcl="1"),
        account=AccountFacts(),
        table=TableFacts(name="orders-app", watch=watch),
        lags=dict.fromkeys(view.leases, ShardLag(1.0)),
    )
    findings = [
        Finding("x", "table", "warn", f"The lease {shown(key)} is odd.") for key in [*KEYS, *view.unreadable]
    ]
    texts = "".join(bundle_of(facts, findings, redactor_of(facts, "salt"), "now").values())
    assert not [name for name in ("acme", "customerXY", "example.com", "payments") if name in texts]
    for kept in (shard(1), shard(5), shard(7)):
        assert kept in texts
