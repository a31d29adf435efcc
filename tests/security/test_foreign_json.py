"""Whatever a stranger writes as JSON, each reader of it gives a good value or an error of ours, soon and in little memory.

`python tests/security/json_fuzz.py 200000` is the long form of it.
"""

import json_fuzz
import pytest


def test_every_reader_keeps_its_bounds_for_inputs_of_all_kinds():
    """Bounds in seconds are of CPU time, and three times what the worst input takes on a slow machine."""
    worst = json_fuzz.run(600, seed=1)
    assert worst.keys() == json_fuzz.READERS.keys()
    assert all(one.calls == 600 for one in worst.values())


@pytest.mark.slow
def test_the_same_for_many_more():
    json_fuzz.run(20_000, seed=2)
