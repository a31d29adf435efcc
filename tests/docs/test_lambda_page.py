"""docs/guides/from-lambda.md: each rule of Lambda that it claims has AWS's page and a test that exists."""

import ast
import re

import pytest
from doc_pages import ROOT, table_under

from pykcl.handlers.event_source_mapping import _KEYS

PAGE = "docs/guides/from-lambda.md"
RULES = table_under(PAGE, "rule | AWS")
LINKS = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", (ROOT / PAGE).read_text("utf-8"), re.MULTILINE))
OF_A_MAPPING_ONLY = {"FilterCriteriaError", "FunctionArn", "FunctionName", "State", "Enabled"}
"""Keys that are about the mapping itself, and no rule of what becomes of records."""


def missing(cell):
    """Tests of a table cell that are not in their files."""
    found = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
    assert "".join(f"`{file}::{name}`, " for file, name in found) == f"{cell}, ", (
        "nothing else is in the cell"
    )
    return [f"{file}::{name}" for file, name in found if name not in functions_of(file)]


def functions_of(file):
    path = ROOT / "tests" / file
    tree = ast.parse(path.read_text("utf-8")) if path.exists() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", RULES, ids=lambda row: row[0][:40])
def test_a_rule_of_lambda_has_the_page_of_aws_and_tests_that_exist(row):
    _, page, tests = row
    (link,) = re.findall(r"^\[[\w ]+\]\[([\w-]+)\]$", page)
    assert LINKS[link].startswith("https://docs.aws.amazon.com/lambda/latest/dg/")
    assert missing(tests) == []


def test_a_test_that_does_not_exist_is_missing():
    name = "handlers/test_filters.py::test_that_nobody_wrote"
    assert missing(f"`{name}`") == [name]
    assert missing(f"`no_such_file.py::{name.partition('::')[2]}`") != []


def test_each_key_of_a_mapping_that_becomes_an_option_has_a_rule():
    named = {name for rule, *_ in RULES for name in re.findall(r"`(\w+)`", rule)}
    assert _KEYS.keys() - OF_A_MAPPING_ONLY <= named
