"""The shape of the package as docs/about/design.md draws it: who may import whom, and what only one room may do.

Every rule is a function from source text to complaints, and every rule is first shown a bad snippet: a rule that
cannot complain is no rule.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykcl.planning.lifecycle import FINAL, TABLE, Signal, State

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pykcl"
MODULES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))
}
GENERATED = "_pb2.py"

MOST_LINES = 700
MOST_FUNCTION_LINES = 60
LONG_FILES: dict[str, int] = {"pykcl/events.py": 960}
"""Files that may be longer, and how long. An entry that is no longer needed fails a test."""
LONG_FUNCTIONS: dict[str, int] = {}

VALUES = {"errors", "model"}
WIRING = {
    "config", "errors", "event_dispatch", "events", "interfaces", "metrics", "model", "processor", "runtime", "status", "times",
}  # fmt: skip
ALLOWED = {
    "__main__": {"cli"},
    "error_catalog": set(),
    "errors": {"error_catalog"},
    "events": {"error_catalog"},
    "runtime": {"errors"},
    "status": set(),
    "awaiting": {"runtime"},
    "event_dispatch": {"errors", "events", "runtime"},
    "logs": {"event_dispatch", "events"},
    "health": {"errors", "health", "host_names", "status"},
    "host_names": {"errors"},
    "model": VALUES,
    "dead_letters": VALUES | {"aws", "config", "interfaces", "runtime"},
    "config": VALUES | {"times"},
    "times": VALUES,
    "examples": {"Batch", "InitializationInput", "RecordProcessor", "Worker"},
    "metrics": {"config", "errors", "events", "metrics", "model", "runtime", "status"},
    "processor": VALUES,
    "interfaces": VALUES | {"events"},
    "planning": VALUES | {"planning"},
    "aws": {"aws", "config", "errors", "interfaces", "metrics", "model", "runtime"},
    "stores": VALUES | {"aws", "runtime", "stores"},
    "worker": WIRING | {"worker", "planning"},
    "producer": WIRING | {"awaiting", "producer"},
    "handlers": WIRING | {"awaiting", "handlers", "planning", "worker"},
    "asgi_server": set(),
    "local": {"asgi_server", "host_names", "local", "model"},
    "compat": WIRING | {"compat", "logs", "planning", "worker", "aws"},
    "testing": WIRING | {"handlers", "testing", "planning", "stores", "worker", "aws", "local"},
    "operate": WIRING | {"operate", "planning", "producer", "aws", "dead_letters"},
    "ui": WIRING | {"asgi_server", "ui", "health", "operate", "planning", "aws"},
    "demo": WIRING | {"aws", "demo", "local", "worker"},
    "cli": WIRING
    | {
        "logs",
        "error_catalog",
        "handlers",
        "health",
        "ui",
        "cli",
        "demo",
        "compat",
        "operate",
        "planning",
        "stores",
        "worker",
        "aws",
        "local",
    },
    "": {
        "config",
        "errors",
        "event_dispatch",
        "events",
        "handlers",
        "interfaces",
        "metrics",
        "model",
        "processor",
        "producer",
        "status",
        "stores",
        "worker",
    },
}
"""Room -> rooms of pykcl it may import. "" is pykcl/__init__.py."""
EXCEPT = {
    "pykcl/worker/worker.py": {"aws", "dead_letters", "stores"},
    "pykcl/worker/options.py": {"stores"},
    "pykcl/producer/producer.py": {"aws"},
    "pykcl/operate/dead_letters/redrive.py": {"worker"},
    "pykcl/config.py": {"metrics"},
    "pykcl/compat/kclpy/__main__.py": {"cli"},
}
"""The composition roots alone know the adapters, a redrive checks a processor as a worker does, Config (when asked) where it can be read from, a module run as a command the command line."""

AWS_LIBRARIES = {"boto3", "botocore"}
OPERATORS_AWS = "pykcl/operate/aws/"
"""Requests that no worker sends."""
CLOCKS_AND_THREADS = {
    "time", "threading", "random", "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "sched",
}  # fmt: skip
EVENT_LOOPS = {
    "pykcl/awaiting.py",
    "pykcl/handlers/async_consumer.py",
    "pykcl/handlers/loop.py",
    "pykcl/producer/async_producer.py",
    "tests/simulation/lanes.py",
}
"""They run in an event loop, that of a program or of pykcl: a simulation gives them another one."""
LOOKS_ON = ("asgi_server", "health", "ui")
"""They look at a worker or at a fleet from outside, in real time, with sockets and threads of their own: they ask for what
is so, and neither a record nor a simulation ever waits for them. `asgi_server` serves the page, and the local AWS."""
NO_SEED_MODULES = CLOCKS_AND_THREADS | {"secrets"}
NO_SEED = {
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today",
    "os.urandom", "os.getrandom", "uuid.uuid1", "uuid.uuid4", "uuid.getnode", "tempfile.mkstemp",
}  # fmt: skip
SIMULATED = ("pykcl/testing/memory/", "pykcl/testing/simulation/")
SIMULATED_IN_TESTS = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for room in ("java_peer", "simulation")
    for path in sorted((ROOT / "tests" / room).rglob("*.py"))
    if not path.name.startswith("test_")
}
AROUND_SIMULATIONS = {
    f"tests/simulation/{name}.py" for name in ("__main__", "runner", "seeds", "report", "effects", "checking")
}
"""Modules that run simulations, and are in none."""
REAL_PROCESSES = "pykcl/compat/multilang/"
"""It starts, hears and ends processes of the operating system: no seed commands those, and no simulated clock moves
them on, so its patience is in real time and its pipes are served by a real thread."""
PURE = {
    "__future__", "bisect", "collections", "dataclasses", "enum", "functools", "graphlib", "math", "random", "typing", "zlib",
}  # fmt: skip


def room_of(path: str) -> str:
    """The second part of the path without its suffix; "" for pykcl/__init__.py."""
    name = path.split("/")[1].removesuffix(".py")
    return "" if name == "__init__" else name


def imports(source: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, imported names), wherever in the file; names are empty for `import module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "." * node.level, ()
            else:
                yield node.module or "", tuple(alias.name for alias in node.names)


def wrong_direction(path: str, source: str) -> list[str]:
    allowed = ALLOWED[room_of(path)] | EXCEPT.get(path, set())

    found = []
    for module, names in imports(source):
        if module.startswith("."):
            found.append(f"{path}: a relative import hides where it goes")
        if module.split(".")[0] != "pykcl":
            continue
        # `from pykcl import x`: x is a room, a root module or one of the two public facts everybody may know.
        targets = [module.split(".")[1]] if "." in module else [n for n in names if n != "__version__"]
        found += [f"{path}: may not import pykcl.{target}" for target in targets if target not in allowed]
    return found


def wrong_library(path: str, source: str) -> list[str]:
    room, found = room_of(path), []
    for module, names in imports(source):
        top = module.split(".")[0]
        if (
            top in AWS_LIBRARIES
            and room not in ("aws", "local", "cli", "stores", "testing")
            and not path.startswith(OPERATORS_AWS)
        ):
            found.append(f"{path}: imports {top}")
        if top == "random" and names == ("Random",):
            continue  # a type: the source of chance is an argument
        if (
            top in CLOCKS_AND_THREADS
            and not (top == "asyncio" and path in EVENT_LOOPS)
            and room not in ("runtime", "local", "cli", "demo", "testing", *LOOKS_ON)
            and not path.startswith(REAL_PROCESSES)
        ):
            found.append(f"{path}: imports {top}")
        if room == "planning" and top not in PURE | {"pykcl"}:
            found.append(f"{path}: a pure decision imports {top}")
    return found


def reads_the_clock(path: str, source: str) -> list[str]:
    if room_of(path) in ("runtime", "local", "cli", "demo", "testing", *LOOKS_ON):
        return []
    return [
        f"{path}:{node.lineno}: {node.func.attr}() reads the clock"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("now", "utcnow", "today")
    ]


def names_in(source: str) -> Iterator[tuple[ast.expr, str]]:
    """(node, full name) of what a module looks up in modules it imported: `now` of `from datetime import datetime as d`
    and `d.now` is datetime.datetime.now, called or not.
    """
    tree = ast.parse(source)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # `import os.path` binds os.
            known |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            root, *rest = ast.unparse(node).split(".")
            if root in known:
                yield node, ".".join([known[root], *rest])


def goes_past_the_runtime(path: str, source: str) -> list[str]:
    """What no seed decides, wherever code of ours runs in a simulation. DeterminismGuard sees most of it, but only if it is
    called in a simulation; the clock of datetime it cannot see at all.
    """
    if (
        room_of(path) in ("runtime", "local", "cli", "demo", *LOOKS_ON)
        or (path.startswith(("pykcl/testing/", "tests/")) and not is_simulated(path))
        or path.startswith(REAL_PROCESSES)
    ):
        return []
    found = []
    empty = {
        (node.func.lineno, node.func.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and not node.args and not node.keywords
    }
    for node, name in names_in(source):
        is_unseeded = name == "random.Random" and (node.lineno, node.col_offset) in empty
        if name.split(".")[0] == "asyncio" and path in EVENT_LOOPS:
            continue
        if is_unseeded or (name not in ("random.Random", "random") and is_outside_of_a_seed(name)):
            found.append(f"{path}:{node.lineno}: {name} is decided by no seed")
    return found


def is_simulated(path: str) -> bool:
    return (
        path.startswith((*SIMULATED, "tests/java_peer/", "tests/simulation/"))
        and path not in AROUND_SIMULATIONS
    )


def is_outside_of_a_seed(name: str) -> bool:
    return name in NO_SEED or name.split(".")[0] in NO_SEED_MODULES


MAY_EXIT = {"pykcl/worker/signals.py": "os._exit"}
"""What ends the process that a user's code has forked: it must not come back to the copy of the worker in it."""


def talks_to_the_terminal(path: str, source: str) -> list[str]:
    if room_of(path) in ("cli", "demo"):
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name == MAY_EXIT.get(path):
            continue
        if name in ("print", "exit", "quit", "input", "sys.exit", "os._exit", "logging.basicConfig"):
            found.append(f"{path}:{node.lineno}: library code calls {name}")
    return found


def too_long(path: str, source: str) -> list[str]:
    found = []
    lines = source.count("\n")
    if lines > LONG_FILES.get(path, MOST_LINES):
        found.append(f"{path}: {lines} lines")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > LONG_FUNCTIONS.get(f"{path}:{node.name}", MOST_FUNCTION_LINES):
                found.append(f"{path}: {node.name} has {length} lines")
    return found


def silent(path: str, source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                found.append(f"{path}:{node.lineno}: bare except")
            if len(node.body) == 1 and isinstance(node.body[0], ast.Pass):
                found.append(f"{path}:{node.lineno}: an exception is passed over in silence")
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node):
            found.append(f"{path}:{node.lineno}: a stub")
    return found


RULES = {
    "imports point down": (
        wrong_direction,
        [
            ("pykcl/model/x.py", "from pykcl.worker.worker import Worker"),
            ("pykcl/planning/x.py", "def f():\n    import pykcl.interfaces"),
            ("pykcl/worker/lease_worker.py", "from pykcl.aws.clients import connect"),
            ("pykcl/aws/x.py", "from pykcl import planning"),
            ("pykcl/handlers/x.py", "from pykcl.aws.clients import connect"),
            ("pykcl/worker/x.py", "from pykcl.handlers.filters import criteria_of"),
            ("pykcl/local/x.py", "from pykcl.runtime import Runtime"),
            ("pykcl/cli/run.py", "from pykcl.testing.fleet import Fleet"),
            ("pykcl/demo/x.py", "from pykcl.cli.ui import ui"),
            ("pykcl/worker/x.py", "from . import context"),
        ],
        [
            ("pykcl/worker/worker.py", "from pykcl.aws.clients import connect"),
            ("pykcl/aws/x.py", "from pykcl import __version__"),
            ("pykcl/cli/demo.py", "from pykcl.demo.scenario import Scenario"),
        ],
    ),
    "boto3, clocks, threads and chance have their rooms": (
        wrong_library,
        [
            ("pykcl/worker/x.py", "import boto3"),
            ("pykcl/model/x.py", "from botocore.exceptions import ClientError"),
            ("pykcl/operate/x.py", "import botocore"),
            ("pykcl/worker/x.py", "def f():\n    from time import sleep"),
            ("pykcl/aws/x.py", "import threading"),
            ("pykcl/compat/kclpy/x.py", "import threading"),
            ("pykcl/planning/x.py", "from random import choice"),
            ("pykcl/planning/x.py", "import os"),
            ("pykcl/handlers/consumer.py", "import asyncio"),
            ("pykcl/handlers/async_consumer.py", "import threading"),
            ("pykcl/handlers/loop.py", "import threading"),
        ],
        [
            ("pykcl/handlers/loop.py", "import asyncio"),
            ("pykcl/planning/x.py", "from random import Random"),
            ("pykcl/runtime.py", "import time, threading"),
            ("pykcl/operate/aws/x.py", "from botocore.config import Config"),
            ("pykcl/compat/multilang/x.py", "import time, threading"),
        ],
    ),
    "nobody reads the wall clock by the back door": (
        reads_the_clock,
        [("pykcl/worker/x.py", "from datetime import datetime\ndatetime.now()")],
        [("pykcl/worker/x.py", "runtime.monotonic()")],
    ),
    "what runs in a simulation is decided by its seed": (
        goes_past_the_runtime,
        [
            ("pykcl/worker/x.py", "import uuid\nuuid.uuid4()"),
            ("pykcl/worker/x.py", "from uuid import uuid4\nfield(default_factory=uuid4)"),
            ("pykcl/aws/x.py", "import os\nos.urandom(3)"),
            ("pykcl/planning/x.py", "import secrets\nsecrets.token_hex()"),
            ("pykcl/model/x.py", "import datetime as d\nd.datetime.now(d.timezone.utc)"),
            ("pykcl/aws/x.py", "from datetime import datetime as at\ndef f(now=at.utcnow): return now()"),
            ("pykcl/testing/memory/x.py", "from datetime import date\ndate.today()"),
            ("pykcl/testing/simulation/x.py", "from time import monotonic as now\nnow()"),
            ("pykcl/testing/memory/x.py", "import threading\nthreading.Lock()"),
            ("pykcl/testing/simulation/x.py", "import random\nrandom.choice([])"),
            ("pykcl/testing/simulation/x.py", "import random\nrandom.Random()"),
            ("pykcl/worker/x.py", "from random import Random\nRandom()"),
            ("pykcl/compat/properties/x.py", "import time\ntime.time()"),
            ("pykcl/testing/simulation/x.py", "from random import SystemRandom\nSystemRandom()"),
        ],
        [
            ("pykcl/testing/simulation/x.py", "import random\ndef f(rng: random.Random): random.Random(7)"),
            ("tests/simulation/runner.py", "import time\ntime.monotonic()"),
            ("pykcl/compat/multilang/x.py", "import time\ntime.monotonic()"),
            ("pykcl/worker/x.py", "import os\nos.path.join('a')\ntime = simulation.now()\ntime.time()"),
            ("pykcl/aws/x.py", "from datetime import datetime\ndatetime.fromtimestamp(0)"),
        ],
    ),
    "library code leaves the terminal alone": (
        talks_to_the_terminal,
        [
            ("pykcl/worker/x.py", "print(1)"),
            ("pykcl/aws/x.py", "import sys\nsys.exit(1)"),
            ("pykcl/local/x.py", "import logging\nlogging.basicConfig()"),
        ],
        [("pykcl/cli/x.py", "print(1)")],
    ),
    "files and functions stay short": (
        too_long,
        [("pykcl/x.py", "a = 1\n" * 701), ("pykcl/x.py", "def f():\n" + "    a = 1\n" * 60)],
        [("pykcl/x.py", "a = 1\n" * 700), ("pykcl/x.py", "def f():\n" + "    a = 1\n" * 59)],
    ),
    "nothing is swallowed or left as a stub": (
        silent,
        [
            ("pykcl/x.py", "try:\n    f()\nexcept:\n    raise"),
            ("pykcl/x.py", "try:\n    f()\nexcept OSError:\n    pass"),
            ("pykcl/x.py", "raise NotImplementedError('later')"),
        ],
        [("pykcl/x.py", "try:\n    f()\nexcept OSError:\n    g()")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_the_package_keeps_to_the_rule(name):
    rule, bad, good = RULES[name]
    for path, snippet in bad:
        assert rule(path, snippet), f"the rule does not see what is wrong with: {snippet[:80]!r}"
    for path, snippet in good:
        assert not rule(path, snippet), f"the rule complains about: {snippet[:80]!r}"
    complaints = [
        complaint
        for path, source in MODULES.items()
        if not path.endswith(GENERATED)
        for complaint in rule(path, source)
    ]
    assert not complaints, "\n".join(complaints)


def test_the_parts_of_simulations_in_tests_are_decided_by_a_seed():
    assert len(SIMULATED_IN_TESTS) > 20
    assert goes_past_the_runtime("tests/java_peer/x.py", "import threading\nthreading.Lock()")
    complaints = [
        line for path, source in SIMULATED_IN_TESTS.items() for line in goes_past_the_runtime(path, source)
    ]
    assert complaints == []


def test_every_module_is_in_a_room_that_has_a_rule():
    assert len(MODULES) > 50
    assert {room_of(path) for path in MODULES} == ALLOWED.keys()


def test_no_exception_has_outlived_its_reason():
    for path, limit in LONG_FILES.items():
        assert MOST_LINES < MODULES[path].count("\n") <= limit, f"{path} is short enough: drop the exception"
    for place in LONG_FUNCTIONS:
        path, name = place.split(":")
        assert f"def {name}(" in MODULES[path], place


def test_the_doorway_of_every_room_says_what_lives_there_and_what_it_may_touch():
    doorways = [path for path in MODULES if path.count("/") == 2 and path.endswith("/__init__.py")]
    assert len(doorways) >= 7
    for path in doorways:
        words = ast.get_docstring(ast.parse(MODULES[path])) or ""
        assert len(words.splitlines()) >= 3, f"{path}: {words!r}"
        assert any(word in words for word in ("import", "knows", "act on")), f"{path} says no boundary"


def test_every_module_says_what_it_is_for():
    empty = [path for path, source in MODULES.items() if not ast.get_docstring(ast.parse(source))]
    assert [path for path in empty if not path.endswith(GENERATED)] == []


# -- the life of a lease worker --------------------------------------------------------------------------------


def activities() -> set[str]:
    """The states for which LeaseWorker.run has an activity, read from its source."""
    tree = ast.parse(MODULES["pykcl/worker/lease_worker.py"])
    tables = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "activities"
    ]
    assert len(tables) == 1
    assert isinstance(tables[0], ast.Dict)
    return {ast.unparse(key).removeprefix("State.") for key in tables[0].keys if key}


def test_every_state_that_is_not_final_has_a_way_out_and_an_activity():
    leaving = {state for state, _ in TABLE}
    assert leaving == set(State) - FINAL
    assert activities() == {state.name for state in leaving}


def test_every_state_can_be_reached_and_every_signal_is_used():
    reached = {State.ACQUIRING}
    while more := {after for (before, _), after in TABLE.items() if before in reached} - reached:
        reached |= more
    assert reached == set(State)
    assert {signal for _, signal in TABLE} == set(Signal)


def test_from_every_state_that_holds_a_lease_its_loss_leads_to_lost():
    holding = set(State) - FINAL - {State.ACQUIRING, State.LOSING}
    for state in holding:
        after = TABLE[state, Signal.LEASE_LOST]
        assert after is State.LOST or TABLE[after, Signal.DONE] is State.LOST
