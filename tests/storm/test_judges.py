"""Every judge reports the promise it watches over when it is fed what breaks it, and nothing when it is not."""

import re
from pathlib import Path

import pytest
from judging import broken_by

from pykcl.testing.storm import Promise
from pykcl.testing.storm.judge import Verdict
from pykcl.testing.storm.ledger import Ledger
from pykcl.testing.storm.places import place_of


def test_every_promise_is_broken_by_a_test_of_the_judges():
    texts = [path.read_text("utf-8") for path in Path(__file__).parent.glob("test_judges*.py")]
    tested = set(re.findall(r"Promise\.([A-Z_]+)", "".join(texts)))
    assert tested == {promise.name for promise in Promise}


def test_the_first_broken_promise_is_kept_and_a_blind_verdict_keeps_none():
    verdict, blind = Verdict(), Verdict(blind=True)
    for one in (verdict, blind):
        one.expect(True, Promise.STOP, "fine")
        one.expect(False, Promise.BALANCE, "first")
        one.expect(False, Promise.STOP, "second")
    assert broken_by(verdict) is Promise.BALANCE
    assert broken_by(blind) is None


# -- the ledger ------------------------------------------------------------------------------------------------


def test_the_ledger_owes_what_was_neither_delivered_nor_trimmed():
    horizon = [0]
    ledger = Ledger(lambda: horizon[0])
    for number in (1, 2, 10):
        ledger.shard("s").add((number, 0), number * 100)
    ledger.delivered("s", [(2, 0)])
    assert ledger.owed() == {"s": 2}
    assert ledger.shard("s").first_owed() == (1, 0)
    assert ledger.shard("s").after((2, 0)) == [(10, 0)]
    horizon[0] = 300
    assert ledger.shard("s").first_owed() == (10, 0)
    assert ledger.shard("s").never_delivered() == [(1, 0)]
    ledger.delivered("s", [(10, 0)])
    assert ledger.owed() == {}
    assert (ledger.records(), ledger.deliveries) == (3, 2)


def test_places_are_ordered_as_numbers_with_sentinels_before_and_the_end_behind():
    names = ["AT_TIMESTAMP", "TRIM_HORIZON", "LATEST", "9", "10", "SHARD_END"]
    places = [place_of(name, 0) for name in names]
    assert places == sorted(places)
    assert place_of("9", 3) < place_of("10", 0)
    with pytest.raises(ValueError, match="invalid literal"):
        place_of("SOMEWHERE", 0)
