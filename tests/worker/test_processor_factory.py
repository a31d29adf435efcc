"""What `processor=` may be: whatever cannot make one is refused before a lease is taken, and nothing else is."""

import abc
import functools
import inspect
import itertools

import pytest

from pykcl import RecordProcessor, Worker
from pykcl.errors import NotAProcessor
from pykcl.testing.fleet import RecordingProcessor


def worker_of(processor):
    return Worker("orders-app", stream="orders", processor=processor)


def written(*bases, **methods):
    return type("Orders", (*bases, RecordProcessor), methods)


def process_records(self, batch):
    pass


def refusal(processor):
    with pytest.raises(NotAProcessor) as raised:
        worker_of(processor)
    assert raised.value.code == "E15"
    return raised.value


# -- refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typo", ["proces_records", "process_record", "processRecords", "proccess_records"])
def test_a_misspelt_method_is_named(typo):
    error = refusal(written(**{typo: process_records}))
    assert f"Orders has no process_records. It has {typo}: did you mean that?" in str(error)
    assert f"rename {typo} to process_records" in error.hint
    assert typo in str(refusal(functools.partial(written(**{typo: process_records}))))


def test_without_a_likely_one_it_says_what_to_write():
    error = refusal(written(handle=process_records))
    assert "has no process_records." in str(error)
    assert "mean" not in str(error)
    assert "process_records(self, batch)" in error.hint


def test_any_other_method_that_a_base_leaves_to_be_written_is_named():
    class Base(RecordProcessor):
        @abc.abstractmethod
        def table(self): ...

        def process_records(self, batch):
            pass

    assert "Orders has no table." in str(refusal(written(Base)))


def needs_one(self, db):
    pass


def needs_several(self, db, *names, table, limit=3, **others):
    pass


@pytest.mark.parametrize(
    ("init", "arguments"), [(needs_one, "db"), (needs_several, "db, table=table")], ids=["one", "several"]
)
def test_a_constructor_that_needs_arguments_is_refused_with_what_to_pass(init, arguments):
    error = refusal(written(__init__=init, process_records=process_records))
    assert f"Orders needs {arguments.replace('table=', '')}" in str(error)
    assert f"lambda: Orders({arguments})" in error.hint
    assert f"functools.partial(Orders, {arguments})" in error.hint


def test_so_are_a_function_and_a_partial_that_need_some():
    def make(db):
        return RecordingProcessor("w1", None)

    assert "make needs db" in str(refusal(make))
    assert "make needs db" in str(refusal(functools.partial(make)))
    assert "RecordingProcessor needs ledger" in str(refusal(functools.partial(RecordingProcessor, "w1")))


def test_what_a_factory_makes_is_told_by_its_methods(new_fleet):
    class Duck:
        def initialize(self, init):
            pass

        def proces_records(self, batch):
            pass

    fleet = new_fleet(shards=1)
    worker = fleet.start("w1", processor=lambda: Duck())  # noqa: PLW0108 - a factory
    fleet.wait(lambda: worker.failure is not None, what="the refusal")
    assert isinstance(worker.failure, NotAProcessor)
    assert worker.failure.code == "E15"
    assert "Duck" in str(worker.failure)
    assert "proces_records" in str(worker.failure)


# -- accepted --------------------------------------------------------------------------------------------------


class Mixin:
    def process_records(self, batch):
        pass


class Made(RecordProcessor):
    """Makes another class than itself."""

    def __new__(cls, *arguments):
        return RecordingProcessor("w1", None)


class Registered(abc.ABCMeta):
    def __call__(cls):
        return super().__call__("db")


class FromRegistry(RecordProcessor, metaclass=Registered):
    process_records = process_records

    def __init__(self, db):
        self.db = db


class WithSettings(RecordProcessor):
    """As a model of pydantic that takes what is missing from its environment."""

    __signature__ = inspect.Signature([inspect.Parameter("db", inspect.Parameter.KEYWORD_ONLY)])
    process_records = process_records


def handing_in(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments, "db")

    return call


@handing_in
def injected(db):
    return RecordingProcessor(db, None)


class Factory:
    def __call__(self):
        return RecordingProcessor("w1", None)

    def make(self):
        return self()


def with_init(init):
    return written(__init__=init, process_records=process_records)


ACCEPTED = {
    "a mixin": written(Mixin),
    "inherited": written(written(Mixin)),
    "assigned": written(process_records=functools.partial(print)),
    "a subclass without more": written(RecordingProcessor, __init__=lambda self: None),
    "defaults": with_init(lambda self, db=None, *, table="x": None),
    "anything": with_init(lambda self, *names, **others: None),
    "handed in": with_init(handing_in(needs_one)),
    "makes another": Made,
    "a metaclass": FromRegistry,
    "with a signature": WithSettings,
    "a partial": functools.partial(RecordingProcessor, "w1", None),
    "a partial by name": functools.partial(RecordingProcessor, worker="w1", ledger=None),
    "a partial of a partial": functools.partial(functools.partial(RecordingProcessor, "w1"), None),
    "a lambda": lambda: RecordingProcessor("w1", None),
    "a wrapper": injected,
    "an object": Factory(),
    "a method": Factory().make,
    "written in C": itertools.repeat(RecordingProcessor("w1", None)).__next__,
    "a builtin": [RecordingProcessor("w1", None)].pop,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_whatever_may_work_is_accepted(name):
    worker_of(ACCEPTED[name])


@pytest.mark.parametrize("name", ACCEPTED)
def test_and_does_work(name):
    """Or the list above would prove nothing."""
    assert callable(ACCEPTED[name]().process_records)
