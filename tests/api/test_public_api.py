"""The public names: there, documented, typed, and cheap to import."""

import ast
import builtins
import dataclasses
import importlib.util
import inspect
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Unpack

import pykcl
from pykcl.model.record import PlainRecords
from pykcl.worker.options import AppOptions, Surroundings, WorkerOptions

ROOT = Path(__file__).parents[2]
NAMES = sorted(name for name in pykcl.__all__ if not name.startswith("__"))
CLASSES = [name for name in NAMES if isinstance(getattr(pykcl, name), type | types.FunctionType)]
HEAVY = (
    "boto3", "botocore", "google.protobuf", "click", "tenacity", "moto", "rich", "pydantic", "msgspec", "asyncio",
)  # fmt: skip

MAY_BE_ANY = {
    "Config.from_options(options)": "options come from outside and are checked one by one",
    **{
        f"{name}.prometheus_collector() ->": "of prometheus_client, which need not be installed"
        for name in ("Worker", "Producer", "AsyncProducer")
    },
    "Record.json() ->": "whatever the producer put",
    "Producer.__init__(session)": "as that of Worker",
    "Producer.__init__(clients)": "as those of Worker",
    "Producer.__init__(serializer)": "whatever the program puts",
    "AsyncProducer.__init__(session)": "as that of Worker",
    "AsyncProducer.__init__(clients)": "as those of Worker",
    "AsyncProducer.__init__(serializer)": "whatever the program puts",
    "Worker.__init__(session)": "a boto3.Session: boto3 has no types of its own",
    "Worker.__init__(clients)": "boto3 clients, likewise",
    "Worker.__init__(options)": "the fields of Config, checked there",
    "Context.__init__(record)": "None only where a function takes batches: a program that takes records need not ask",
    "Window.state": "whatever the function returned",
    "lambda_processor.lambda_processor(handler)": "a handler annotates event and context with its own libraries' types",
    "lambda_processor.lambda_processor(filter_criteria)": "JSON, checked there",
}
"""Where Any stands in a public signature, and why."""


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after `code`."""
    program = f"{code}\nimport sys\nprint('\\n' + '|'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    return set(done.stdout.splitlines()[-1].split("|"))


def test_importing_pykcl_loads_no_library_and_not_even_the_worker():
    loaded = modules_after("import pykcl; pykcl.__version__; dir(pykcl)")
    assert loaded.isdisjoint(HEAVY)
    assert {name for name in loaded if name.startswith("pykcl")} == {"pykcl"}


def test_writing_a_processor_and_building_a_worker_load_neither_boto3_nor_protobuf_of_aws():
    loaded = modules_after(
        "from pykcl import RecordProcessor, Worker, Config\n"
        "class P(RecordProcessor):\n    def process_records(self, batch): ...\n"
        "Worker('orders-app', stream='orders', processor=P)"
    )
    assert "pykcl.worker.worker" in loaded
    assert loaded.isdisjoint({"boto3", "botocore", "pykcl.aws.kinesis", "pykcl.aws.lease_table"})


def test_writing_a_handler_loads_neither_pydantic_nor_msgspec_nor_the_event_loop():
    loaded = modules_after(
        "from pykcl import App, handler\n"
        "app = App('orders-app')\n"
        "@app.stream('orders')\ndef on_order(order: dict): ...\n"
        "handler(on_order)()"
    )
    assert "pykcl.handlers.app" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_b_7_a_consumer_loads_neither_boto3_nor_an_event_loop():
    loaded = modules_after("from pykcl import Consumer\nConsumer('orders-app', stream='orders')")
    assert "pykcl.handlers.consumer" in loaded
    assert loaded.isdisjoint({"asyncio", "boto3", "pykcl.handlers.async_consumer"})


def test_a_producer_loads_neither_boto3_nor_an_event_loop():
    loaded = modules_after("from pykcl import Producer\nProducer('orders')")
    assert "pykcl.producer.producer" in loaded
    assert loaded.isdisjoint({"asyncio", "boto3", "pykcl.awaiting", "pykcl.producer.async_producer"})


def test_help_loads_neither_boto3_nor_any_verb():
    loaded = modules_after("from pykcl.cli.main import main\nmain(['--help'], standalone_mode=False)")
    assert "click" in loaded
    assert loaded.isdisjoint(
        {"boto3", "botocore", "moto", "rich", "hypercorn", "pykcl.cli.run", "pykcl.cli.demo"}
    )


def test_all_names_exactly_what_can_be_had():
    assert pykcl.__all__ == sorted(pykcl.__all__)
    assert dir(pykcl) == sorted(pykcl.__all__)
    for name in pykcl.__all__:
        assert getattr(pykcl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        pykcl.Wroker  # noqa: B018


def test_type_checkers_see_the_same_names_as_the_interpreter():
    source = (ROOT / "pykcl" / "__init__.py").read_text("utf-8")
    for name in NAMES:
        assert f"from {pykcl._HOMES[name]} import" in source
        if name in CLASSES:
            assert pykcl._HOMES[name] == getattr(pykcl, name).__module__


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_class_and_method_says_what_it_does(name):
    found = getattr(pykcl, name)
    assert found.__doc__
    assert not found.__doc__.startswith(f"{name}("), f"{name} has only the text dataclasses make up"
    for method, function in own_functions(found):
        if method.startswith("_"):
            continue
        assert inspect.getdoc(function), f"{name}.{method} says nothing"


def own_functions(found: type) -> Iterator[tuple[str, Any]]:
    """Functions, class methods and property getters written in the class or inherited from pykcl; a function itself."""
    if isinstance(found, types.FunctionType):
        yield found.__name__, found
        return
    for home in found.__mro__:
        if not home.__module__.startswith("pykcl"):
            continue
        for name, value in vars(home).items():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if isinstance(function, types.FunctionType) and function.__module__.startswith("pykcl"):
                yield name, function


def untyped(found: type) -> Iterator[str]:
    """What of a class has no type, or Any where no reason is written down."""
    name = found.__name__
    # Names that are imported for type checkers only, or lazily, are filled in from the public ones.
    names = {public: getattr(pykcl, public) for public in NAMES} | {"Unpack": Unpack}
    if dataclasses.is_dataclass(found):
        hints = typing.get_type_hints(found, localns=names)
        for field in dataclasses.fields(found):
            yield from _judged(f"{name}.{field.name}", hints.get(field.name))
    generated = {"__init__", "__eq__", "__repr__", "__setattr__", "__delattr__", "__hash__", "__replace__"}
    generated |= {
        "__getstate__",
        "__setstate__",
        "__match_args__",
        "_no_init_or_replace_init",
        "__subclasshook__",
    }
    for method, function in own_functions(found):
        if method in generated and (dataclasses.is_dataclass(found) or method.startswith("_no")):
            continue
        if method.startswith("_") and not method.startswith("__"):
            continue
        if not function.__code__.co_filename.endswith(".py"):
            continue  # made by a decorator, such as total_ordering's or Protocol's
        hints = typing.get_type_hints(function, localns=names)
        for parameter in list(inspect.signature(function).parameters):
            if parameter not in ("self", "cls"):
                yield from _judged(f"{name}.{method}({parameter})", hints.get(parameter))
        yield from _judged(f"{name}.{method}() ->", hints.get("return"))


def _judged(place: str, hint: Any) -> Iterator[str]:
    if hint is None:
        yield f"{place} has no type"
    elif _has_any(hint) and place not in MAY_BE_ANY:
        yield f"{place} is Any"


def _has_any(hint: Any) -> bool:
    return hint is Any or any(_has_any(part) for part in typing.get_args(hint))


class _Sloppy:
    def bare(self, left):
        return left

    def loose(self, value: dict[str, Any]) -> None:
        del value


def test_the_walk_sees_a_missing_type_and_a_bare_any(monkeypatch):
    monkeypatch.setattr(_Sloppy, "__module__", "pykcl.sloppy")
    for method in (_Sloppy.bare, _Sloppy.loose):
        monkeypatch.setattr(method, "__module__", "pykcl.sloppy")
    assert set(untyped(_Sloppy)) == {
        "_Sloppy.bare(left) has no type",
        "_Sloppy.bare() -> has no type",
        "_Sloppy.loose(value) is Any",
    }


def test_every_public_signature_is_typed_and_any_has_a_reason():
    complaints = [complaint for name in CLASSES for complaint in untyped(getattr(pykcl, name))]
    assert not complaints, "\n".join(complaints)
    places = {f"{c.__name__}.{m}" for c in map(pykcl.__getattr__, CLASSES) for m, _ in own_functions(c)}
    places |= {
        f"{c.__name__}.{name}"
        for c in map(pykcl.__getattr__, CLASSES)
        for name in getattr(c, "__annotations__", {})
    }
    for place in MAY_BE_ANY:
        assert place.split("(")[0] in places, f"{place} is excused and does not exist"


def annotations_of(found: type) -> Iterator[tuple[str, str]]:
    """(module, annotation as written) of the fields and the public methods of a class."""
    for home in getattr(found, "__mro__", ()):
        if dataclasses.is_dataclass(home) or typing.is_typeddict(home):
            for name, text in vars(home).get("__annotations__", {}).items():
                if not name.startswith("_"):
                    yield home.__module__, text
    for name, function in own_functions(found):
        if name == "__init__" and dataclasses.is_dataclass(found):
            continue
        if not name.startswith("_") or name.startswith("__"):
            yield from ((function.__module__, text) for text in function.__annotations__.values())


def hidden_names(found: type) -> set[str]:
    """Names of pykcl's own classes and aliases in the signatures of a class that `pykcl` does not export.

    An alias of literals need not be exported, nor the names of keyword arguments: a program writes the literal, and the
    arguments.
    """
    hidden = set()
    for module, text in annotations_of(found):
        for node in ast.walk(ast.parse(text, mode="eval") if isinstance(text, str) else ast.Pass()):
            if not isinstance(node, ast.Name) or node.id in pykcl.__all__ or hasattr(builtins, node.id):
                continue
            value = getattr(sys.modules[module], node.id, Unpack if node.id == "Unpack" else None)
            if typing.is_typeddict(value) and f"Unpack[{node.id}]" in text:
                continue
            is_own = isinstance(value, type) and value.__module__.startswith("pykcl")
            is_alias = typing.get_origin(value) not in (None, typing.Literal)
            if value is None or is_own or is_alias:
                hidden.add(node.id)
    return hidden


class _Leaky:
    def owner(self, batch: "pykcl.Batch", lease: "Surroundings") -> "Hidden":
        del batch, lease


Hidden = dict[str, int]


def test_the_walk_sees_a_class_and_an_alias_that_are_not_exported(monkeypatch):
    monkeypatch.setattr(_Leaky, "__module__", "pykcl.leaky")
    monkeypatch.setattr(_Leaky.owner, "__module__", "pykcl.leaky")
    monkeypatch.setitem(sys.modules, "pykcl.leaky", sys.modules[__name__])
    assert hidden_names(_Leaky) == {"Surroundings", "Hidden"}


def test_every_class_in_a_public_signature_is_exported():
    hidden = {name: hidden_names(getattr(pykcl, name)) for name in CLASSES}
    hidden["options of Worker"] = hidden_names(WorkerOptions)
    hidden["options of App"] = hidden_names(AppOptions)
    assert {name: found for name, found in hidden.items() if found} == {}


@pytest.mark.slow
def test_user_programs_pass_mypy_strict_and_their_mistakes_are_found():
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    programs = [str(path) for path in sorted((ROOT / "tests" / "typing").glob("*.py"))]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *programs],
        capture_output=True, text=True, cwd=ROOT, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_options_that_type_checkers_know_are_the_fields_of_config():
    """`stream` is a parameter of its own, because it must be given; `dead_letters` takes more than a file can say."""
    fields = typing.get_type_hints(pykcl.Config)
    others = typing.get_type_hints(Surroundings)
    assert typing.get_type_hints(WorkerOptions) == others | {
        name: kind for name, kind in fields.items() if name not in ("application", "stream", "dead_letters")
    }
    assert WorkerOptions.__required_keys__ == {"processor"}
    parameters = inspect.signature(pykcl.Worker).parameters
    assert set(parameters) == {"application", "config", *others, "options"}
    hints = typing.get_type_hints(pykcl.Worker.__init__)
    assert {name: hints[name] for name in others} == others


def test_the_user_program_uses_every_public_name():
    source = (ROOT / "tests" / "typing" / "public_api.py").read_text("utf-8")
    body = source.split("from pykcl.events")[1]
    assert [name for name in NAMES if name not in body] == []


def test_the_package_tells_type_checkers_that_it_is_typed():
    assert (ROOT / "pykcl" / "py.typed").exists()


def test_a_batch_equals_itself_alone_and_can_be_a_key():
    columns = ([b"a"], ["k"], ["1"], [0.0], "shardId-0", "orders")
    one, other = (pykcl.Batch(PlainRecords(*columns), None, 0, "shardId-0", "orders") for _ in range(2))
    assert {one: 1, other: 2} == {other: 2, one: 1}
    assert (one == one, one == other) == (True, False)
