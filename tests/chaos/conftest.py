import sys
from pathlib import Path

import pytest

# Test modules are imported by path (--import-mode=importlib), so their helpers are found only if we say where.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))

from chaos_checks import ACTIONS, all_checks
from chaos_story import good_story


@pytest.fixture
def story():
    return good_story(lambda: ACTIONS)


@pytest.fixture
def judge(tmp_path):
    """What was found, by the name of the check."""

    def judged(story):
        return {check.name: check for check in all_checks(story.evidence(tmp_path))}

    return judged
