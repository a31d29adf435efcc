"""Children that are real processes, started by the code under test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "hostile"))

from multilang_kit import TALKATIVE, Heard, Journal, initialization, is_running

from pykcl.compat.multilang.children import Children, Patience
from pykcl.compat.multilang.processor import ChildProcessor


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def new_children(journal: Journal, heard: Heard) -> Iterator[Callable[..., Children]]:
    """new_children(behaviour, *words): Children that run `talkative.py` that way."""
    made: list[Children] = []

    def make(behaviour: str, *words: str, patience: Patience | None = None) -> Children:
        command = [sys.executable, "-I", "-S", str(TALKATIVE), behaviour, str(journal.path), *words]
        made.append(Children(command, patience=patience or Patience(5.0, 5.0), events=heard))
        return made[-1]

    yield make
    for children in made:
        children.close()
    # Whatever a test did: nothing of it runs on.
    assert [pid for pid in journal.pids if is_running(pid)] == []


@pytest.fixture
def start(new_children: Callable[..., Children]) -> Callable[..., ChildProcessor]:
    """start(behaviour, *words): a ChildProcessor that was initialized, with that child."""

    def make(behaviour: str, *words: str, timeout: float | None = 30.0, **options: Any) -> ChildProcessor:
        processor = ChildProcessor(new_children(behaviour, *words, **options), timeout)
        processor.initialize(initialization())
        return processor

    return make
