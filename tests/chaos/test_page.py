"""The pages say of faults and of the fleet under fire what the code says."""

import json
import re
from pathlib import Path

import pytest
from chaos_breaks import BREAKS
from chaos_checks import all_checks
from chaos_report import table
from chaos_story import good_story

from pykcl.local.faults import KINDS, FaultRule, parse_rules

DOCS = Path(__file__).parents[2] / "docs"
FAULTS = (DOCS / "guides" / "testing.md").read_text("utf-8")
FIRE = (
    (DOCS / "about" / "verification.md")
    .read_text("utf-8")
    .partition("## Real processes under fire")[2]
    .partition("\n## ")[0]
)


def fenced(page, language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return found


def rows_under(head):
    lines = FAULTS.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(f"| {head} |")) + 2
    rows = []
    while lines[at].startswith("|"):
        rows.append([cell.strip() for cell in lines[at].strip("|").split(" | ")])
        at += 1
    return rows


def test_every_kind_is_explained_as_in_the_code():
    assert {kind.strip("`"): words for kind, words in rows_under("kind")} == KINDS


def test_every_field_of_a_rule_is_there_with_its_default():
    told = {name.strip("`"): default.strip("`") for name, _, default in rows_under("field")}
    made = FaultRule("error")
    fields = {name: str(getattr(made, name)) for name in FaultRule.__dataclass_fields__ if name != "kind"}
    assert told == {**fields, "times": "no end"}


def test_the_rules_of_the_page_are_accepted():
    rules, seed = parse_rules(fenced(FAULTS, "json").encode())
    assert (len(rules), seed) == (3, 3)
    assert json.loads(fenced(FAULTS, "json"))["rules"][0]["kind"] == rules[0].kind


def test_the_table_of_the_page_has_every_check_in_order(tmp_path):
    printed = table(all_checks(good_story().evidence(tmp_path)))
    names = [re.split(r"  +", line)[0] for line in printed.splitlines()]
    assert [re.split(r"  +", line)[0] for line in fenced(FIRE, "text").splitlines()] == names


@pytest.mark.parametrize("name", BREAKS)
def test_every_wrong_build_is_named(name):
    assert f"`{name}`" in FIRE
