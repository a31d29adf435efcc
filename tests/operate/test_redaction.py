"""Names do not come out of a redacted text, whatever they look like and wherever they stand."""

from hypothesis import given
from hypothesis import strategies as st

from pykcl.operate.redaction import Redactor

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
