"""Which version a processor is written for: by its `version`, and by its methods where they disagree."""

import logging

import pytest

from pykcl.compat.kclpy import kcl
from pykcl.compat.kclpy.adapter import missing_methods, refuse_unusable, version_of
from pykcl.compat.kclpy.v2 import processor as v2
from pykcl.compat.kclpy.v3 import processor as v3
from pykcl.errors import ConfigError

BASES = {1: kcl.RecordProcessorBase, 2: v2.RecordProcessorBase, 3: v3.RecordProcessorBase}


def one(self, process_records_input):
    """Of versions 2 and 3."""


def two(self, records, checkpointer):
    """Of version 1."""


def anything(self, *arguments):
    """Of any version."""


def end(self, *arguments):
    """Whatever it ends by."""


def made(base, process_records, *ends):
    members = {"process_records": process_records, **dict.fromkeys(ends, end)}
    return type("Made", (BASES[base],) if base else (), members)()


OLD, NEW = ("shutdown",), ("lease_lost", "shard_ended", "shutdown_requested")


@pytest.mark.parametrize(
    ("base", "process_records", "ends", "version", "warns"),
    [
        (1, two, OLD, 1, False),
        (1, anything, OLD, 1, False),
        (2, one, OLD, 2, False),
        (3, one, NEW, 3, False),
        # Incomplete, but nothing speaks against what they say.
        (1, two, (), 1, False),
        (2, one, (), 2, False),
        (3, one, (), 3, False),
        (2, one, (*OLD, *NEW), 2, False),
        (3, one, (*OLD, *NEW), 3, False),
        # The README's class, and its like.
        (1, one, NEW, 3, True),
        (1, one, OLD, 2, True),
        (1, one, (), 3, True),
        (2, one, NEW, 3, True),
        (2, two, OLD, 1, True),
        (3, one, OLD, 2, True),
        (3, two, OLD, 1, True),
        # Without a base and without a version.
        (None, two, OLD, 1, True),
        (None, one, OLD, 2, True),
        (None, one, NEW, 3, True),
    ],
)
def test_the_methods_count_where_they_contradict_the_version(
    base, process_records, ends, version, warns, caplog
):
    with caplog.at_level(logging.WARNING, "pykcl.kclpy"):
        assert version_of(made(base, process_records, *ends)) == version
    assert bool(caplog.records) == warns


@pytest.mark.parametrize("wrong", [object(), made(1, lambda self: None), made(1, "no method"), 7])
def test_what_cannot_be_called_is_refused(wrong):
    with pytest.raises(ConfigError, match="is not a record processor"):
        version_of(wrong)


def test_methods_that_were_left_to_be_written_are_named():
    assert missing_methods(made(3, one), 3) == [
        "initialize",
        "lease_lost",
        "shard_ended",
        "shutdown_requested",
    ]
    assert missing_methods(made(1, two, "initialize"), 1) == ["shutdown"]
    assert missing_methods(made(2, one, "initialize", "shutdown"), 2) == []


async def coroutine(self, *arguments):
    pass


def generator(self, *arguments):
    yield arguments


@pytest.mark.parametrize("method", ["initialize", "process_records", "shutdown", "shutdown_requested"])
@pytest.mark.parametrize("runs_nothing", [coroutine, generator])
def test_a_method_whose_call_runs_nothing_is_refused_before_a_lease_is_taken(method, runs_nothing):
    whole = made(1, two, "initialize", "shutdown", "shutdown_requested")
    refuse_unusable(whole, 1)
    setattr(type(whole), method, runs_nothing)
    with pytest.raises(ConfigError, match=rf"Made\.{method} .*(async|yield)"):
        refuse_unusable(whole, 1)
