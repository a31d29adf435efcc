"""Every checker reports the guarantee it watches over when it is fed what breaks it, and nothing when it is not."""

import re
from pathlib import Path

import pytest

from pykcl.testing.simulation import Guarantee
from pykcl.testing.simulation.delivery import RecordLog, position_of
from pykcl.testing.simulation.guarantees import Violations
from tests.simulation.checking import broken_by


def test_every_guarantee_is_broken_by_a_test_of_the_checkers():
    texts = [path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    tested = set(re.findall(r"Guarantee\.([A-Z_]+)", "".join(texts)))
    assert tested == {guarantee.name for guarantee in Guarantee}


def test_the_first_broken_guarantee_is_kept_and_a_blind_checker_keeps_none():
    violations, blind = Violations(), Violations(blind=True)
    for one in (violations, blind):
        one.expect(True, Guarantee.STOP, "fine")
        one.expect(False, Guarantee.BALANCE, "first")
        one.expect(False, Guarantee.STOP, "second")
    assert broken_by(violations) is Guarantee.BALANCE
    assert broken_by(blind) is None


# -- the record_log ------------------------------------------------------------------------------------------------


def test_the_record_log_owes_what_was_neither_delivered_nor_trimmed():
    horizon = [0]
    record_log = RecordLog(lambda: horizon[0])
    for number in (1, 2, 10):
        record_log.shard("s").add((number, 0), number * 100)
    record_log.delivered("s", [(2, 0)])
    assert record_log.owed() == {"s": 2}
    assert record_log.shard("s").first_owed() == (1, 0)
    assert record_log.shard("s").after((2, 0)) == [(10, 0)]
    horizon[0] = 300
    assert record_log.shard("s").first_owed() == (10, 0)
    assert record_log.shard("s").never_delivered() == [(1, 0)]
    record_log.delivered("s", [(10, 0)])
    assert record_log.owed() == {}
    assert (record_log.records(), record_log.deliveries) == (3, 2)


def test_places_are_ordered_as_numbers_with_sentinels_before_and_the_end_behind():
    names = ["AT_TIMESTAMP", "TRIM_HORIZON", "LATEST", "9", "10", "SHARD_END"]
    positions = [position_of(name, 0) for name in names]
    assert positions == sorted(positions)
    assert position_of("9", 3) < position_of("10", 0)
    with pytest.raises(ValueError, match="invalid literal"):
        position_of("SOMEWHERE", 0)
