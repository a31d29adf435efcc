"""The measures see what they are to see, and the tree does not fall behind what it has reached."""

import pytest

from tests.measure import ROOT, clauses, cycles, imports, is_core, lines_of, lonely, prose, sources, words

REACHED = {
    "cycles": 0,
    "small files with one importer": 1,
    "docstrings that are clauses": 0,
    "words": 29,
}
"""What each measure may come to; a change that lowers one lowers it here."""
SIZES = {
    "files of pykcl/": 329,
    "lines of pykcl/": 84_900,
    "lines of the core": 36_350,
    "lines of tests/": 135_600,
}
"""Sizes that may not be exceeded. A change that needs more raises the number here and gives the reason in its message."""


@pytest.fixture(scope="module")
def modules():
    return sources()


def test_a_cycle_is_seen_through_a_lazy_import_and_through_a_package():
    found = imports({
        "pykcl/a.py": "from pykcl.room import b",
        "pykcl/room/__init__.py": "",
        "pykcl/room/b.py": "def f():\n    from pykcl.room.c import x",
        "pykcl/room/c.py": "import pykcl.a",
        "pykcl/room/d.py": "from pykcl import __version__",
    })  # fmt: skip
    assert cycles(found) == [["pykcl/a.py", "pykcl/room/b.py", "pykcl/room/c.py"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_a_small_file_with_one_importer_is_seen():
    found = {
        "pykcl/a.py": "import pykcl.b\nimport pykcl.c",
        "pykcl/b.py": "x = 1\n" * 59,
        "pykcl/c.py": "x = 1\n" * 60,
    }
    assert lonely(found, imports(found)) == ["pykcl/b.py"]
    found["pykcl/d.py"] = "import pykcl.b"
    assert lonely(found, imports(found)) == []


def test_docstrings_that_are_clauses_and_words_given_up_are_seen():
    assert len(clauses({"a.py": '"""Whether it holds."""\ndef f():\n    """How to do it."""'})) == 2
    assert (
        len(clauses({"a.py": '"""Of a record.\n\nAt most one."""\ndef f():\n    """Once; once more."""'}))
        == 2
    )
    assert clauses({"a.py": '"""Whatever holds."""\ndef f():\n    """Return it.\n\n    In order."""'}) == []
    assert words({"pykcl/storm/x.md": "It was told, and looks at the JUDGE's door_way; outlook, retold."}) == {
        "door": 1, "judge": 1, "looks": 1, "storm": 1, "told": 1,
    }  # fmt: skip


def test_the_tree_keeps_what_it_has_reached(modules):
    graph = imports(modules)
    now = {
        "cycles": len(cycles(graph)),
        "small files with one importer": len(lonely(modules, graph)),
        "docstrings that are clauses": len(clauses(modules)),
        "words": sum(words(prose()).values()),
    }
    assert {name: value for name, value in now.items() if value > REACHED[name]} == {}


def test_the_tree_does_not_grow_unnoticed(modules):
    now = {
        "files of pykcl/": len(modules),
        "lines of pykcl/": lines_of(modules.values()),
        "lines of the core": lines_of(text for path, text in modules.items() if is_core(path)),
        "lines of tests/": lines_of(sources(ROOT / "tests").values()),
    }
    assert {name: value for name, value in now.items() if value > SIZES[name]} == {}
