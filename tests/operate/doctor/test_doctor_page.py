"""The table of docs/operate/operate.md is the catalogue; so is every code named in it one of the errors' codes."""

import re
from pathlib import Path

from pykcl.error_catalog import MISTAKES
from pykcl.operate.doctor.findings import CATALOGUE, LEVELS, TOPICS, found

PAGE = (Path(__file__).parents[3] / "docs" / "operate" / "operate.md").read_text("utf-8")


def rows():
    lines = PAGE.split("| id | about |")[1].splitlines()[2:]
    table = lines[: lines.index("")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table]


def test_the_page_lists_every_finding_as_the_code_has_it():
    assert rows() == [
        (f"`{one.id}`", one.topic, one.level, one.code or "", one.means) for one in CATALOGUE.values()
    ]


def test_ids_levels_and_codes_are_of_their_form():
    for one in CATALOGUE.values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.id)
        assert one.level in LEVELS
        assert one.code is None or one.code in MISTAKES
        assert found(one.id, "x").level == one.level
    assert len(TOPICS) == len(set(TOPICS))


def test_the_calls_named_on_the_page_are_those_that_are_made():
    sentence = re.search(r"It only reads: (.*?)\. A test", PAGE, re.DOTALL).group(1)
    assert set(re.findall(r"[A-Z]\w+", sentence)) == {
        "GetCallerIdentity", "DescribeTable", "DescribeTimeToLive", "Scan", "GetItem", "DescribeStreamSummary", "ListShards",
        "GetShardIterator",
        "GetRecords", "ListStreamConsumers", "DescribeStreamConsumer", "ListStreams", "GetQueueUrl", "GetQueueAttributes",
    }  # fmt: skip
