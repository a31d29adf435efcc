"""Bugs where bytes and files of others are read. No simulation gives such input: each bug names the test that does."""

from __future__ import annotations

import json

from pykcl.handlers import filters
from pykcl.operate.dead_letters import sources
from tests.mutants.mutant import Mutant, Patch


def json_without_limits(patch: Patch) -> None:
    patch.replace(filters, "read_json", lambda _: lambda text, **limits: json.loads(text))


def notes_settle_whatever_is_at_their_place(patch: Patch) -> None:
    patch.replace(sources, "_is_of", lambda _: lambda note, found: True)


INPUT = (
    Mutant("M101", "a filter reads data of any depth", "here", (), json_without_limits,
            tests=("tests/handlers/test_filters.py::test_data_that_is_nested_too_deeply_is_not_valid_json",)),
    Mutant("M102", "a note of a redriven letter settles whichever letter is at its place", "here", (),
            notes_settle_whatever_is_at_their_place,
            tests=("tests/operate/dead_letters/test_redrive.py"
                   "::test_the_notes_of_letters_that_are_gone_settle_no_other_letter",)),
)  # fmt: skip
