"""The figures of docs/guides/mixed-fleet.md, which `make interop ARGS=--write-docs` writes, tell of fleets that kept every promise."""

from doc_pages import table_under

PAGE = "docs/guides/mixed-fleet.md"
VERSIONS = ("2 x 2.7.2", "3.5.1 COMPATIBLE_WITH_2X_PHASE1 + 2.7.2", "3.1.3 COMPATIBLE_WITH_2X + 2.7.2",
            "3.5.1 COMPATIBLE_WITH_2X")  # fmt: skip


def test_the_page_tells_of_all_four_fleets_and_nothing_was_lost():
    rows = table_under(PAGE, "fleet")
    assert [row[0] for row in rows] == [f"2 pykcl + {versions}" for versions in VERSIONS]
    for _, records, lost, disorder, _, unexplained, spread, foreign, errors in rows:
        assert int(records) > 1000
        assert (lost, disorder, unexplained, foreign, errors) == ("0",) * 5
        assert int(spread) <= 1


def test_the_page_tells_how_long_each_way_of_a_lease_took():
    told = {(row[0], row[1]) for row in table_under(PAGE, "what ended the old owner")}
    ends = ("kill -9", "SIGSTOP", "SIGTERM")
    assert told >= {(end, "pykcl → Java") for end in ends}
    assert told >= {("kill -9", "Java → pykcl"), ("SIGTERM", "Java → pykcl")}
    assert {end for end, ways in told if ways == "pykcl → pykcl"} & set(ends)
