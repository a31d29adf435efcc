"""A program after the two-line edit, as the child of a MultiLangDaemon: it writes, does and exits as with the real package
(protocol_golden.json holds what came out of that)."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from kclpy_programs import PROGRAMS, after_the_edit
from kclpy_protocol import CASES, GOLDEN, converse

REAL = json.loads(GOLDEN.read_text("utf-8"))
README = "README: batches, then the lease is lost"
KNOWN_DIFFERENCES = {README: {"noted": REAL["v3: batches, then the lease is lost"]["noted"]}}
"""The README's class loses every record there; here it is called by its methods."""


def all_of(python, edit=lambda program: program):
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda case: converse(python, edit(PROGRAMS[case[0]]), case[1]), CASES.values())
        return dict(zip(CASES, results, strict=True))


@pytest.fixture(scope="module")
def ours():
    return all_of(sys.executable, after_the_edit)


@pytest.mark.parametrize("case", CASES)
def test_the_edited_program_converses_as_with_the_real_package(ours, case):
    assert ours[case] == {**REAL[case], **KNOWN_DIFFERENCES.get(case, {})}


def test_the_table_shows_both_a_clean_end_and_a_death():
    assert {result["exit"] for result in REAL.values()} == {0, 1, 3}
    assert not REAL[README]["noted"][:-1]


def test_the_golden_conversations_are_still_those_of_the_real_package():
    python = os.environ.get("REAL_KCLPY")
    if python is None:
        pytest.skip("REAL_KCLPY names no Python that has the real amazon_kclpy (kclpy-ext==3.1.3.post4)")
    assert all_of(python) == REAL
