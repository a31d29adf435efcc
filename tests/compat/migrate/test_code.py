"""What migrate tells of a program, by its source alone; and what it does not tell where there is nothing to tell."""

import ast

import pytest
from migrate_programs import IMPORTS, MAIN, program

from pykcl.compat.migrate import Program, code_findings
from pykcl.compat.migrate.program import own_nodes
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


FINE = {("fine", "Orders is of version 3"), ("fine", "KCLProcess(...).run() starts the worker")}


def test_of_a_sound_program_nothing_else_is_told():
    assert told(program()) == FINE


def test_of_no_program_nothing_is_told():
    assert findings() == []


def test_a_program_is_read_and_never_run(tmp_path):
    text = f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit(9)\n" + program()
    assert told(text)
    assert not (tmp_path / "ran").exists()


# (what is put into the sound program, weight, words of the finding, the line's words)
CASES = {
    "print": ({"process": "print(record)"}, "fine", "print() is fine now", "print("),
    "stdout": ({"globals": "import sys", "process": "sys.stdout.write('x')"}, "fine", "print()", "write("),
    "b64 attribute": ({"globals": "import base64", "process": "base64.b64decode(record.data)"}, "can go", "base64", "b64d"),
    "b64 get": ({"globals": "import base64 as b", "process": "b.b64decode(record.get('data'))"}, "can go", "base64", "b64d"),
    "b64 item": ({"globals": "from base64 import b64decode as d", "process": "d(record['data'])"}, "can go", "base64", "d(rec"),
    "b64 by a name": (
        {"globals": "import base64", "process": "data = record.data; base64.b64decode(data)"}, "can go", "base64", "b64d"),
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
    "mutable of the class": (
        {"attributes": "seen = []", "process": "self.seen.append(record)"}, "changes", "Orders.seen belongs", None),
    "client": ({"globals": "import boto3\ns3 = boto3.client('s3')"}, "changes", "a boto3 client", "s3 ="),
    "resource": ({"globals": "from boto3 import resource\nd = resource('dynamodb')"}, "changes", "a boto3 client", "d ="),
    "session's client": ({"globals": "import boto3\ns3 = boto3.Session().client('s3')"}, "changes", "a boto3", "s3 ="),
    "client of the class": ({"globals": "import boto3", "attributes": "s3 = boto3.client('s3')"}, "changes", "a boto3", "s3 ="),
    "exit": ({"globals": "import sys", "process": "sys.exit(1)"}, "changes", "sys.exit()", "sys.exit"),
    "exit by raising": ({"process": "raise SystemExit"}, "changes", "sys.exit()", "SystemExit"),
    "exit at once": ({"globals": "import os", "process": "os._exit(1)"}, "must", "ended without a word", "_exit"),
    "swallowed": (
        {"process": "try: f()\n            except Exception: print()"}, "look", "swallowed", "except"),
    "swallowed bare": ({"process": "try: f()\n            except: f()"}, "look", "swallowed", "except"),
    "swallowed among others": (
        {"process": "try: f()\n            except (OSError, BaseException): f()"}, "look", "swallowed", "except"),
    "signal before": ({"globals": "import signal\nsignal.signal(1, f)"}, "changes", "signal.signal()", "signal.signal"),
    "signal inside": (
        {"globals": "import signal", "initialize": "signal.signal(1, f)"}, "must", "in a method", "signal.signal"),
    "foreign module": ({"globals": "from amazon_kclpy import samples"}, "must", "amazon_kclpy.samples", "samples"),
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
    "a client in a function": "import boto3\ndef f():\n    return boto3.client('s3')",
    "an exception that goes on": "def f():\n    try: g()\n    except Exception:\n        raise",
    "an exception of one kind": "def f():\n    try: g()\n    except ValueError: h()",
    "base64 of something else": "import base64\ndef f(x): return base64.b64decode(x.token)",
    "a module's function called add": "import events\ndef f(): events.add(1)",
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_what_only_looks_like_it_is_not_told(name):
    assert told(program(globals=NOTHING[name], process="f()")) == FINE


def test_a_mutable_of_the_class_that_each_instance_replaces_is_its_own():
    text = program(attributes="seen = []", initialize="self.seen = []", process="self.seen.append(record)")
    assert told(text) == FINE


def processor_class(base, *methods):
    body = "".join(f"    def {method}:\n        c.checkpoint()\n" for method in methods)
    return f"{IMPORTS}from amazon_kclpy.v2 import processor as v2\nclass Orders({base}):\n{body}{MAIN}\n"


NEW = (
    "process_records(self, i)",
    "lease_lost(self, i)",
    "shard_ended(self, i)",
    "shutdown_requested(self, i)",
)
OLD = ("process_records(self, records, checkpointer)", "shutdown(self, checkpointer, reason)")
MIDDLE = ("process_records(self, i)", "shutdown(self, i)")


@pytest.mark.parametrize(
    ("base", "methods", "expected"),
    [
        ("kcl.RecordProcessorBase", OLD, ("fine", "Orders is of version 1")),
        ("v2.RecordProcessorBase", MIDDLE, ("fine", "Orders is of version 2")),
        ("processor.RecordProcessorBase", NEW, ("fine", "Orders is of version 3")),
        (
            "kcl.RecordProcessorBase",
            NEW,
            ("changes", "Orders says version 1 and has the methods of version 3"),
        ),
        ("object", NEW, ("changes", "Orders says no version and has the methods of version 3")),
        (
            "processor.RecordProcessorBase",
            MIDDLE,
            ("changes", "Orders says version 3 and has the methods of version 2"),
        ),
    ],
)
def test_the_version_of_a_class_is_recognised(base, methods, expected):
    assert expected in told(processor_class(base, *methods))


ENDS = "    def shutdown_requested(self, c):\n        c.checkpoint()\n"


def version_1(imports, base, process):
    body = "".join(f"    def {method}:\n        c.checkpoint()\n" for method in ("initialize(self, s)", *OLD))
    body = body.replace("checkpointer", "c")
    return f"{imports}\nclass Orders({base}):\n{body}{ENDS}{process}(Orders()).run()\n"


OTHER_NAMES = {
    "star": ("from amazon_kclpy.kcl import *", "RecordProcessorBase", "KCLProcess"),
    "star of the edited import": ("from pykcl.compat.kclpy.kcl import *", "RecordProcessorBase", "KCLProcess"),
    "the edited package": (
        "from pykcl.compat import kclpy\nimport pykcl.compat.kclpy.kcl", "kclpy.kcl.RecordProcessorBase", "kclpy.kcl.KCLProcess"),
    "star of the package": ("from amazon_kclpy import *", "kcl.RecordProcessorBase", "kcl.KCLProcess"),
    "assignments": (
        "from amazon_kclpy import kcl\nBase = kcl.RecordProcessorBase\nProcess = kcl.KCLProcess", "Base", "Process"),
    "assignment of a pair": (
        "from amazon_kclpy import kcl\nB, P = kcl.RecordProcessorBase, kcl.KCLProcess", "B", "P"),
    "assignment with a type": (
        "from amazon_kclpy import kcl\nB: type = kcl.RecordProcessorBase\nP: type = kcl.KCLProcess", "B", "P"),
    "assignments in a row": (
        "import amazon_kclpy.kcl\nk = amazon_kclpy.kcl\nA = B = k.RecordProcessorBase\nP = k.KCLProcess", "B", "P"),
    "assignment under a condition": (
        "from amazon_kclpy import kcl\nP = None\nif True:\n    P = kcl.KCLProcess", "kcl.RecordProcessorBase", "P"),
    "a way out of an import": (
        "try:\n    from amazon_kclpy.kcl import *\nexcept ImportError:\n    import fake\n    KCLProcess = fake.Process",
        "RecordProcessorBase", "KCLProcess"),
    "a class called like its base": (
        "from amazon_kclpy import kcl\nfrom amazon_kclpy.kcl import *\n"
        "class RecordProcessorBase(RecordProcessorBase): pass", "RecordProcessorBase", "KCLProcess"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_star_imports_and_other_names_are_followed(name):
    assert told(version_1(*OTHER_NAMES[name])) == {
        ("fine", "Orders is of version 1"),
        ("fine", "KCLProcess(...).run() starts the worker"),
    }


@pytest.mark.parametrize("number", [2, 3])
def test_versions_are_known_by_the_modules_that_a_star_import_brings(number):
    methods = MIDDLE if number == 2 else NEW
    text = processor_class(f"v{number}processor.RecordProcessorBase", *methods)
    text = text.replace("class Orders", "from amazon_kclpy.kcl import *\nclass Orders")
    assert ("fine", f"Orders is of version {number}") in told(text)


UNSEEN = {
    "star of another file": ("from base import *", "Base", "Process"),
    "star of a file beside it": ("from .base import *", "Base", "Process"),
    "a name of another file": ("from base import Base, KCLProcess", "Base", "KCLProcess"),
    "an assignment that is no name": (
        "from amazon_kclpy import kcl\nfrom base import Base\nProcess = {1: kcl.KCLProcess}[1]", "Base", "Process"),
    "by its text": (
        "from amazon_kclpy import kcl\nfrom base import Base\nProcess = getattr(kcl, 'KCLProcess')", "Base", "Process"),
    "in a circle": ("from base import KCLProcess as P, Base\nA = B\nB = A\nclass D(A): pass", "Base", "P"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
def test_what_may_be_kclprocess_or_its_base_is_to_be_looked_at_and_no_must(name):
    text = version_1(*UNSEEN[name])
    assert told(text) == {
        ("look", "whether a file calls KCLProcess(...).run() cannot be seen"),
        ("look", "Orders has the methods of version 1, and a base class that was not read"),
    }
    assert one(text, "cannot be seen").lines
    without_end = text.replace("def shutdown(", "def other(")
    assert ("look", "Orders has no shutdown") in told(without_end)


@pytest.mark.parametrize(
    "imports",
    ["from amazon_kclpy.messages import *", "from tkinter import *", "from amazon_kclpy.kcl import *"],
)
def test_star_imports_that_bring_no_kclprocess_leave_the_must(imports):
    assert ("must", "no file calls KCLProcess(...).run()") in told(f"{imports}\nthread.run()\n")


def test_a_module_of_amazon_kclpy_without_a_stand_in_is_told_under_a_star_too():
    assert ("must", "amazon_kclpy.samples is imported") in told(
        "from amazon_kclpy.samples import *\n" + program()
    )


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
    assert told(parsed(program(globals=DEEP[name]))) == FINE


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


def test_the_class_of_the_readme_is_known_as_such():
    assert "README" in one(processor_class("kcl.RecordProcessorBase", *NEW), "says version 1").text


def test_the_versions_of_the_edited_imports_are_recognised_too():
    text = processor_class("kcl.RecordProcessorBase", *OLD).replace(
        "from amazon_kclpy", "from pykcl.compat.kclpy"
    )
    assert ("fine", "Orders is of version 1") in told(text)


def test_a_base_class_in_the_same_file_counts_and_is_no_processor_itself():
    text = processor_class("processor.RecordProcessorBase", *NEW).replace("class Orders", "class Base")
    text = text.replace(MAIN, "class Orders(Base):\n    pass\n" + MAIN)
    assert told(text) == FINE


def test_a_class_that_cannot_be_called_is_told():
    text = processor_class("processor.RecordProcessorBase", "process_records(self, a, b, c)")
    assert ("must", "Orders cannot be called") in told(text)


@pytest.mark.parametrize(
    ("base", "methods", "words"),
    [
        ("processor.RecordProcessorBase", NEW, "does not checkpoint in its shard_ended"),
        ("kcl.RecordProcessorBase", OLD, "does not checkpoint in its shutdown"),
        ("v2.RecordProcessorBase", MIDDLE, "does not checkpoint in its shutdown"),
        ("processor.RecordProcessorBase", NEW[:2], "has no shard_ended"),
    ],
)
def test_an_end_of_the_shard_without_a_checkpoint_is_told(base, methods, words):
    text = processor_class(base, *methods).replace("c.checkpoint()", "pass")
    assert ("must", f"Orders {words}") in told(text)
    followed = text.replace("        pass", "        self.save()").replace(
        MAIN, "    def save(self):\n        c.checkpoint()\n" + MAIN
    )
    assert ("must", f"Orders {words}") not in told(followed) or "has no" in words


@pytest.mark.parametrize(
    ("base", "methods"),
    [
        ("kcl.RecordProcessorBase", OLD),
        ("v2.RecordProcessorBase", MIDDLE),
        ("processor.RecordProcessorBase", NEW),
    ],
)
def test_a_stop_without_a_checkpoint_is_told(base, methods):
    text = processor_class(base, *[line for line in methods if "shutdown_requested" not in line])
    asks = "def shutdown_requested(self, c):\n        c.checkpoint()"
    (found,) = [found for found in findings(text) if found.what == "Orders has no shutdown_requested"]
    assert found.weight == "look"
    assert "comes again after each stop, as under Java" in found.text
    assert ("look", "Orders has no shutdown_requested") not in told(text.replace(MAIN, f"    {asks}\n{MAIN}"))
    silent = asks.replace("c.checkpoint()", "pass")
    does_not = ("look", "Orders does not checkpoint in its shutdown_requested")
    assert does_not in told(text.replace(MAIN, f"    {silent}\n{MAIN}"))


def test_an_instance_that_can_be_neither_copied_nor_made_again_is_told():
    text = program(
        attributes="def __init__(self, name):\n        self.lock = threading.Lock()",
        globals="import threading",
    )
    assert ("must", "Orders cannot be copied, nor made again") in told(text)
    assert told(text.replace("(self, name)", "(self)")) == FINE


@pytest.mark.parametrize(
    "given", ["lambda: Orders('a')", "record_processor=lambda: Orders('a')", "Orders", "make"]
)
def test_a_class_or_function_that_makes_one_for_each_shard_is_settled(given):
    text = program(
        attributes="def __init__(self, name):\n        self.lock = threading.Lock()",
        globals="import threading\ndef make(): return Orders('a')",
        main=f"kcl.KCLProcess({given}).run()",
    )
    assert told(text) == FINE


def test_one_that_is_made_with_its_defaults_can_be_made_again():
    text = program(
        attributes="def __init__(self, n=3):\n        self.n, self.lock = n, threading.Lock()\n"
        "        self.lock = threading.Lock()",
        globals="import threading",
        main="kcl.KCLProcess(Orders()).run()",
    )
    must = ("must", "Orders cannot be copied, nor made again")
    assert told(text) == FINE
    for one, other in (
        ("Orders()", "Orders(4)"),
        ("self.n, self", "other, self"),
        ("n=3", "n"),
        ("n=3", "*n"),
    ):
        assert must in told(text.replace(one, other)), other


def test_a_file_that_starts_nothing_is_told_unless_another_one_does():
    helper = "def help(): pass"
    assert ("must", "no file calls KCLProcess(...).run()") in told(helper)
    assert ("look", "no class with process_records was found") in told(helper)
    assert told(helper, program()) == FINE


def test_the_guard_of_the_main_module_is_recognised():
    assert "`if __name__`" in one(program(), "KCLProcess").text
    assert "`if __name__`" not in one(program(main="kcl.KCLProcess(Orders()).run()"), "KCLProcess").text


def test_the_heaviest_comes_first():
    text = program(globals="import os", process="print(); os._exit(1)")
    assert [found.weight for found in findings(text)] == ["must", "fine", "fine", "fine"]


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
