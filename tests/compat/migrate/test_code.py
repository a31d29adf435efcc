"""What migrate tells of a program, by its source alone; and what it does not tell where there is nothing to tell."""

import ast

import pytest
from migrate_programs import IMPORTS, MAIN, program

from pykcl.compat.migrate import Program, code_findings
from pykcl.compat.migrate.code import own_nodes
from pykcl.errors import ConfigError


def findings(*texts):
    programs = [Program(f"app{number or ''}.py", text.encode()) for number, text in enumerate(texts)]
    return code_findings(programs)


def told(*texts):
    return {(found.weight, found.what) for found in findings(*texts)}


def one(text, words):
    (found,) = [found for found in findings(text) if words in found.what]
    return found


def line_of(text, words):
    (number,) = [number for number, line in enumerate(text.splitlines(), 1) if words in line]
    return number


def test_of_a_sound_program_nothing_is_told():
    assert told(program()) == set()


def test_of_no_program_nothing_is_told():
    assert findings() == []


def test_a_program_is_read_and_never_run(tmp_path):
    text = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit(9)\n" + program()
    assert told(text) == set()
    assert not (tmp_path / "ran").exists()


# (what is put into the sound program, weight, words of the finding, the line's words)
CASES = {
    "global rebound": (
        {"globals": "count = 0", "initialize": "global count; count += 1"}, "changes", "the global count", "count += 1"),
    "global element": ({"globals": "seen = {}", "process": "seen[record.data] = 1"}, "changes", "the global seen", "seen["),
    "global deleted": ({"globals": "seen = {}", "process": "del seen[record.data]"}, "changes", "the global seen", "del seen"),
    "global method": ({"globals": "seen = []", "process": "seen.append(record)"}, "changes", "the global seen", "append"),
    "global deep": ({"globals": "seen = {}", "process": "seen['a']['b'].add(1)"}, "changes", "the global seen", "add"),
    "global through a function": (
        {"globals": "seen = []\ndef keep(one):\n    seen.append(one)", "process": "keep(record)"},
        "changes", "the global seen", "append"),
    "module attribute": (
        {"globals": "import settings", "process": "settings.last = record"}, "changes", "settings.last", "settings.last"),
    "environment": ({"globals": "import os", "process": "os.environ['A'] = 'b'"}, "changes", "os.environ", "environ"),
    "attribute of the class by name": ({"process": "Orders.last = record"}, "changes", "Orders.last", "Orders.last"),
    "exit": ({"globals": "import sys", "process": "sys.exit(1)"}, "changes", "sys.exit()", "sys.exit"),
    "exit by raising": ({"process": "raise SystemExit"}, "changes", "sys.exit()", "SystemExit"),
    "exit at once": ({"globals": "import os", "process": "os._exit(1)"}, "must", "ended abruptly", "_exit"),
    "swallowed": (
        {"process": "try: f()\n            except Exception: print()"}, "review", "swallowed", "except"),
    "swallowed bare": ({"process": "try: f()\n            except: f()"}, "review", "swallowed", "except"),
    "swallowed among others": (
        {"process": "try: f()\n            except (OSError, BaseException): f()"}, "review", "swallowed", "except"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_migrants_ask_about_is_told_with_its_line(name):
    parts, weight, words, where = CASES[name]
    text = program(**parts)
    found = one(text, words)
    assert found.weight == weight
    assert found.file == "app.py"
    if where is not None:
        assert found.lines == (line_of(text, where),)


RETRY = """
    def save(self, checkpointer):
        {loop}
            try:
                {call}
                return
            except kcl.CheckpointError:
                {pause}
"""


@pytest.mark.parametrize("loop", ["for n in range(5):", "while True:"])
def test_a_retry_loop_around_checkpoint_and_its_sleep_are_told(loop):
    text = program(
        attributes=RETRY.format(loop=loop, call="checkpointer.checkpoint()", pause="time.sleep(5)"),
        globals="import time",
    )
    (retry,) = [found for found in findings(text) if found.what.startswith("a retry loop")]
    assert retry.lines == (line_of(text, loop),)
    (sleep,) = [found for found in findings(text) if found.what.startswith("time.sleep()")]
    assert sleep.lines == (line_of(text, "time.sleep"),)
    without = text.replace(
        "checkpointer.checkpoint()\n                return", "checkpointer.other()\n                return"
    )
    assert not [found for found in findings(without) if "retry" in found.what]


NOTHING = {
    "a loop over records": "import time\ndef f(records, c):\n    for r in records:\n        try: c.checkpoint()\n        except OSError: time.sleep(1)",
    "a local of the same name": "seen = []\ndef f():\n    seen = []\n    seen.append(1)",
    "a global that is read": "seen = {}\ndef f():\n    return seen['a'], seen.get('b')",
    "what nobody calls": "seen = []\ndef other():\n    seen.append(1)\n    sys.exit(1)\nimport sys\ndef f(): pass",
    "an exception that goes on": "def f():\n    try: g()\n    except Exception:\n        raise",
    "an exception of one kind": "def f():\n    try: g()\n    except ValueError: h()",
    "a module's function called add": "import events\ndef f(): events.add(1)",
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_what_only_looks_like_it_is_not_told(name):
    assert told(program(globals=NOTHING[name], process="f()")) == set()


def test_an_attribute_of_the_instance_is_its_own():
    text = program(attributes="seen = []", initialize="self.seen = []", process="self.seen.append(record)")
    assert told(text) == set()


def test_methods_of_a_base_class_in_the_same_file_count():
    text = program(globals="seen = []", process="seen.append(record)").replace("class Orders", "class Base")
    text = text.replace(MAIN, "class Orders(Base):\n    pass\n" + MAIN)
    assert told(text) == {("changes", "the global seen is written from a processor")}


def test_methods_of_other_classes_of_the_file_are_followed():
    sink = "seen = []\nclass Sink:\n    def put(self, one):\n        seen.append(one)\n"
    text = program(globals=sink, initialize="self.sink = Sink()", process="self.sink.put(record)")
    assert told(text) == {("changes", "the global seen is written from a processor")}


@pytest.mark.parametrize(
    "methods", ["process_records(self, records, checkpointer)", "shutdown(self, checkpointer, reason)"]
)
def test_processors_of_every_version_are_known_by_process_records(methods):
    text = f"{IMPORTS}import sys\nclass Orders:\n    def process_records(self, r, c): pass\n    def {methods}: sys.exit(1)\n"
    assert [found.what for found in findings(text)] == ["sys.exit() in a method of the processor"]


DEEP = {
    "sum": "x = " + " + ".join(["'a'"] * 1500),
    "elif": "if x == 0: pass\n" + "".join(f"elif x == {number}: pass\n" for number in range(1, 1200)),
    "attributes": "x = a" + ".b" * 1500,
    "tested sum": "if " + " + ".join(["'a'"] * 1500) + ": pass",
    "bases": "class C0: pass\n" + "".join(f"class C{n}(C{n - 1}): pass\n" for n in range(1, 1500)),
}


def parsed(text):
    try:
        ast.parse(text)
    except RecursionError:
        pytest.skip("this Python's own parser goes no deeper")
    return text


@pytest.mark.parametrize("name", DEEP)
def test_no_chain_is_too_long(name):
    assert told(parsed(program(globals=DEEP[name]))) == set()


def test_a_long_chain_that_is_written_is_told_by_its_beginning():
    text = program(globals="import settings", process="settings" + ".b" * 1500 + " = 1")
    assert ("changes", "the global settings… is written from a processor") in told(parsed(text))


def test_everything_is_walked_in_the_order_of_the_file():
    tree = ast.parse("a = b + c\nif d:\n    e\nelse:\n    def f(): g\nlambda: h\ni")
    assert [node.id for node in own_nodes(tree) if isinstance(node, ast.Name)] == list("abcdei")
    assert [type(node) for node in own_nodes(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)] == [
        ast.FunctionDef,
        ast.Lambda,
    ]


def test_the_heaviest_comes_first():
    text = program(globals="import os, sys", process="sys.exit(); os._exit(1)")
    assert [found.weight for found in findings(text)] == ["must", "changes"]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (b"x = 1\nprint 'secret'\n", "app.py, line 2"),
        (b"x = (\n", "app.py, line 1"),
        (b"x = 1\0", "app.py"),
        (b"x = '\xff'", "app.py"),
        (b"(" * 5000, "app.py"),
    ],
)
def test_what_is_no_python_3_is_refused_with_its_line_and_none_of_its_text(source, place):
    with pytest.raises(ConfigError) as caught:
        Program("app.py", source)
    assert str(caught.value).startswith(place)
    assert "secret" not in str(caught.value)
