"""One processor for each shard out of the one that a program hands over: copied, made again, or refused with the reason."""

import functools
import io
import logging
import operator
import queue
import re
import struct
import sys
import threading
import time
import uuid
import weakref
from array import array
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import boto3
import botocore.config
import pytest

from pykcl.compat.kclpy.adapter import processor_factory
from pykcl.compat.kclpy.prototype import factory_of
from pykcl.errors import ConfigError, NotAProcessor


class Processor:
    def process_records(self, records, checkpointer):
        self.seen.extend(records)


class Plain(Processor):
    def __init__(self, bucket):
        self.bucket, self.seen, self.nested = bucket, [], {"a": []}


class Locked(Processor):
    """What holds a lock, a connection or a boto3 client cannot be copied."""

    def __init__(self):
        self.lock, self.seen, self.limit = threading.Lock(), [], 7


class LockedWithArguments(Locked):
    def __init__(self, bucket, region="eu-west-1"):
        super().__init__()
        self.bucket, self.region = bucket, region


class LockedWithDefaults(Locked):
    def __init__(self, n=3, *, name="9"):
        super().__init__()
        self.n, self._name = n, name


class HidesItsDefault(Locked):
    """What its pattern was made of is seen nowhere."""

    def __init__(self, words="9"):
        super().__init__()
        self.pattern = re.compile(words)


def test_each_shard_gets_a_copy_that_shares_nothing():
    given = Plain("mine")
    make = factory_of(given)
    one, two = make(), make()
    one.process_records(["r"], None)
    one.nested["a"].append(1)
    assert (two.seen, two.nested, given.seen) == ([], {"a": []}, [])
    assert (type(two), two.bucket) == (Plain, "mine")


def test_copies_are_of_what_was_given_as_it_was_then():
    given = Plain("mine")
    make = factory_of(given)
    given.seen.append("changed by the program later")
    assert make().seen == []


def test_what_cannot_be_copied_is_made_again_where_the_constructor_takes_nothing():
    given = Locked()
    make = factory_of(given)
    one, two = make(), make()
    assert len({id(x.lock) for x in (given, one, two)}) == 3
    assert (one.limit, one.seen) == (7, [])


def test_parameters_that_have_their_defaults_are_no_reason_not_to_make_it_again():
    given = LockedWithDefaults()
    one, two = factory_of(given)(), factory_of(LockedWithDefaults(3, name="9"))()
    assert one.lock is not given.lock
    assert (one.n, one._name, two.n, two._name) == (3, "9", 3, "9")


def test_a_boto3_client_made_in_the_constructor_is_made_again(monkeypatch):
    boto3 = pytest.importorskip("boto3")

    class WithClient(Processor):
        def __init__(self):
            self.s3 = boto3.client("s3", region_name="us-east-1")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    given = WithClient()
    assert factory_of(given)().s3 is not given.s3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda: LockedWithArguments("b"), ["lock: lock", "its constructor takes bucket, region"]),
        (lambda: LockedWithDefaults(9), ["lock: lock", "not made with the default of n"]),
        (lambda: LockedWithDefaults(name="99"), ["not made with the default of name"]),
        (lambda: _with(LockedWithDefaults(), limit=9), ["set after it was made: limit"]),
        (lambda: HidesItsDefault("99"), ["nobody can tell whether words has its default"]),
        (HidesItsDefault, ["nobody can tell whether words has its default"]),
        (lambda: LockedWithAny("b"), ["nobody can tell whether more has its default"]),
        (lambda: _with(Locked(), extra=1), ["set after it was made: extra"]),
        (lambda: _with(Locked(), limit=9), ["set after it was made: limit"]),
        (lambda: _with(Locked(), seen=[9]), ["set after it was made: seen"]),
        (lambda: _with(Configured(), options={"buckets": ["9"]}), ["set after it was made: options"]),
        (lambda: _with(Configured(), sink=Sink("9")), ["set after it was made: sink"]),
        (lambda: _with(Configured(), sink=Locked()), ["set after it was made: sink"]),
        (lambda: _with(Configured(), kind=Locked), ["set after it was made: kind"]),
        (lambda: _with(Configured(), decode=lambda record: 9), ["set after it was made: decode"]),
        (lambda: _slotted("9"), ["lock: lock", "set after it was made: bucket"]),
        (
            lambda: Remembering("b"),
            ["Remembering._look: a function that holds on to Remembering", "takes bucket"],
        ),
    ],
)
def test_what_can_be_neither_is_refused_with_the_reason_and_without_values(given, told):
    with pytest.raises(ConfigError) as refused:
        factory_of(given())
    assert all(text in str(refused.value) for text in told), refused.value
    assert "Do: " in str(refused.value)
    assert "9" not in str(refused.value)


def _with(instance, **attributes):
    vars(instance).update(attributes)
    return instance


class Sink:
    def __init__(self, bucket):
        self.bucket = bucket


class LockedWithAny(Locked):
    def __init__(self, *more):
        super().__init__()


class Configured(Locked):
    def __init__(self):
        super().__init__()
        self.options, self.sink, self.kind, self.decode = (
            {"buckets": []},
            Sink("a"),
            Sink,
            lambda record: record,
        )
        self.mine = self


class Slotted(Processor):
    __slots__ = ("bucket", "lock")

    def __init__(self):
        self.lock, self.bucket = threading.Lock(), None


def _slotted(bucket):
    made = Slotted()
    made.bucket = bucket
    return made


class Remembering(Processor):
    """Its look-ups are remembered, by a function around a method of its own."""

    def __init__(self, bucket):
        self.bucket, self.seen, self.look = bucket, [], functools.lru_cache(self._look)

    def _look(self, key):
        self.seen.append(key)


def test_what_was_set_as_the_constructor_sets_it_is_no_reason_to_refuse():
    assert isinstance(factory_of(_with(Configured(), options={"buckets": []}, sink=Sink("a")))(), Configured)
    assert isinstance(factory_of(_slotted(None))(), Slotted)


@pytest.mark.parametrize(
    "function_of",
    [
        lambda made: lambda record: made.seen.append(record) or len(made.seen),
        lambda made: functools.lru_cache(made.seen.append),
        lambda made: made.seen.append,
        lambda made: functools.partial(lambda more, record: made.seen.append(record), 1),
    ],
    ids=["lambda", "lru_cache", "method of a list", "partial"],
)
def test_a_copy_whose_functions_would_work_on_the_original_is_none(function_of):
    class Held(Processor):
        def __init__(self):
            self.seen = []
            self.held = {"of": [function_of(self)]}

    given = Held()
    made = factory_of(given)()
    made.seen.append("mine")
    assert given.seen == []
    (function,) = made.held["of"]
    function("record")
    assert given.seen == []
    assert len(made.seen) == 2


class Kind(Enum):
    """Of a kind that has a value which deepcopy copies on its way, before Python 3.11."""

    LISTED = (1, ["x"])


class Client:
    def __init__(self, options):
        self.options, self.lock = options, threading.Lock()


class Pool(Client):
    def __deepcopy__(self, memo):
        return self


class SharesItsClient(Processor):
    def __init__(self, options):
        self.options, self.client, self.seen = options, Client(options), []

    def __deepcopy__(self, memo):
        new = object.__new__(type(self))
        memo[id(self.client)] = self.client
        return _with(new, **deepcopy(vars(self), memo))


def test_what_is_shared_on_purpose_may_hold_data_that_was_copied():
    @functools.lru_cache
    def options():
        return {"host": ["db"]}

    class Sharing(Plain):
        def __init__(self, options):
            super().__init__("mine")
            self.options, self.pool, self.kind = options, Pool(options), Kind.LISTED

    sharing_boto3 = SharesItsClient(botocore.config.Config(retries={"max_attempts": 3}))
    sharing_boto3.client = boto3.client(
        "s3", "us-east-1", config=sharing_boto3.options, aws_access_key_id="9", aws_secret_access_key="9"
    )
    for given in (Sharing(options()), sharing_boto3, SharesItsClient(options())):
        one, two = (make := factory_of(given))(), make()
        assert one.seen is not two.seen
        assert one.options is not given.options
    assert one.client is given.client


def test_what_is_reached_as_data_and_by_a_function_too_is_found():
    class Both(Processor):
        def __init__(self, bucket):
            self.seen = []
            self.pool = Pool(self.seen)
            self.pool.add = self.seen.append

    with pytest.raises(ConfigError, match="a function that holds on to"):
        factory_of(Both("b"))


def test_methods_and_functions_that_hold_nothing_of_it_are_no_reason_not_to_copy():
    class Handling(Processor):
        def __init__(self, limit):
            self.seen, self.key = [], lambda record: record[:limit]
            self.handlers, self.clock, self.mine = {"a": self.process_records}, time.time, self
            self.later = functools.partial(self.process_records, checkpointer=None)

    given = Handling(7)
    made = factory_of(given)()
    made.later(["r"])
    made.handlers["a"](["r"], None)
    assert (made.seen, given.seen, made.mine) == (["r", "r"], [], made)


def test_a_client_that_was_used_before_is_made_again(monkeypatch):
    boto3 = pytest.importorskip("boto3")

    class WithSession(Locked):
        def __init__(self):
            super().__init__()
            self.session = boto3.Session(region_name="us-east-1")

    given = WithSession()
    given.session.client("s3", aws_access_key_id="x", aws_secret_access_key="y")
    assert factory_of(given)().session is not given.session


def test_what_differs_each_time_it_is_made_is_no_reason_to_refuse():
    numbers = count()

    class Numbered(Locked):
        def __init__(self):
            super().__init__()
            self.number = next(numbers)

    given = Numbered()
    assert factory_of(given)().number > given.number


def test_a_constructor_that_raises_the_second_time_is_told_of():
    made = []

    class Once(Locked):
        def __init__(self):
            super().__init__()
            made.append(self)
            if len(made) > 1:
                raise OSError("the port is taken")

    with pytest.raises(ConfigError, match="its constructor raises OSError"):
        factory_of(Once())


def test_a_class_or_a_function_that_makes_processors_is_asked_each_time():
    make = factory_of(Locked)
    one, two = make(), make()
    assert (type(one), one.lock is two.lock) == (Locked, False)
    assert factory_of(lambda: LockedWithArguments("b"))().bucket == "b"


def test_a_callable_processor_is_no_function():
    class Callable(Plain):
        def __call__(self):
            raise AssertionError("called")

    assert isinstance(factory_of(Callable("b"))(), Callable)


def test_a_copy_that_the_program_defines_itself_is_used():
    class Own(Locked):
        def __deepcopy__(self, memo):
            return _with(Own(), limit=deepcopy(self.limit, memo))

    assert factory_of(_with(Own(), limit=9))().limit == 9


class Rows(list):
    """What a weak reference can lead to."""

    put = list.append


def _adding_to(made):
    def add(record):
        made.seen.append(record)

    return add


def _local_class_of(made, base=object):
    class Sink(base):
        def put(self, record):
            made.seen.append(record)

    return Sink


def _with_default(made):
    def put(record, *, seen=made.seen):
        seen.append(record)

    return put


class Itself:
    """deepcopy returns the same."""

    def __init__(self, function):
        self.function = function

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize(
    ("held_of", "use"),
    [
        (lambda made: (_adding_to(made),), lambda held: held[0]),
        (lambda made: (made.seen.append,), lambda held: held[0]),
        (lambda made: {"a": (str, (made.seen.append,))}, lambda held: held["a"][1][0]),
        (lambda made: frozenset([made.seen.append]), lambda held: next(iter(held))),
        (lambda made: {"of": weakref.ref(made)}, lambda held: held["of"]().seen.append),
        (lambda made: _closure(weakref.proxy(made)), lambda held: held(0).seen.append),
        (lambda made: weakref.WeakValueDictionary(a=made.seen), lambda held: held["a"].put),
        (_with_default, lambda held: held),
        (lambda made: _closure({"of": made}), lambda held: held(0)["of"].seen.append),
        (lambda made: _closure([(made.seen.append,)]), lambda held: held(0)[0][0]),
        (lambda made: _local_class_of(made)(), lambda held: held.put),
        (_local_class_of, lambda held: held().put),
        (lambda made: _local_class_of(None, _local_class_of(made))(), lambda held: super(type(held), held).put),
        (lambda made: type("Sink", (), {"put": staticmethod(_adding_to(made))}), lambda held: held.put),
        (lambda made: Itself(made.seen.append), lambda held: held.function),
    ],
    ids=[
        "in a tuple", "method of a list in a tuple", "nested tuple", "frozenset", "weak reference", "weak proxy", "weak values",
        "keyword-only default", "closure over a dict", "closure over a list", "instance of a local class",
        "local class", "base of a local class", "class made by type", "its own copy",
    ],
)  # fmt: skip
def test_what_deepcopy_leaves_as_it_is_works_on_no_original_either(held_of, use):
    class Holding(Processor):
        def __init__(self):
            self.seen = Rows()
            self.held = held_of(self)

    given = Holding()
    made = factory_of(given)()
    use(made.held)("record")
    assert (made.seen, given.seen) == (["record"], [])


def test_a_function_in_a_tuple_is_told_of_where_it_cannot_be_made_again():
    class Routing(Processor):
        def __init__(self, bucket):
            self.seen, self.routes = [], (("9", _adding_to(self)),)

    with pytest.raises(
        ConfigError, match=r"add: a function that holds on to (Routing|list)\) nor .* takes bucket"
    ):
        factory_of(Routing("9"))


def test_tuples_and_closures_that_hold_nothing_of_it_are_no_reason_not_to_copy():
    shared, options, since, kinds = {"a": [len]}, {"b": []}, date(2030, 1, 1), frozenset("ab")

    class Sink:
        def put(self, record, *, to=shared):
            return record, to, shared, type(self)

    class Routing(Processor):
        made_before = []  # noqa: RUF012

        def __init__(self, bucket):
            self.seen, self.log, self.sink, self.since, self.kinds = (
                [],
                logging.getLogger("mine"),
                Sink(),
                since,
                kinds,
            )
            self.routes = (
                ("a", (str.upper, len, lambda record: record[len(bucket) :])),
                {"b": (Sink, options)},
            )
            self.wanted = lambda record: record > since and bucket in kinds
            self.mine, self.next = (self, self.process_records), functools.partial(next, iter((1, 2)))
            self.made_before.append(self)

    given = Routing("b")
    made = factory_of(given)()
    made.mine[1](["r"], None)
    assert (made.seen, given.seen, made.mine[0], made.routes[0][1][2]("abc")) == (["r"], [], made, "bc")


def _made(of):
    """What all objects of a class are made with, and what one was given later."""

    class Made(Locked):
        def __init__(self):
            super().__init__()
            self.held = of("a")

    return Made


def _boto3(make):
    def of(name):
        boto3 = pytest.importorskip("boto3")
        return make(boto3, {"a": "us-east-1", "b": "eu-west-1"}[name])

    return of


def _client(boto3, **more):
    usual = {"region_name": "us-east-1", "aws_access_key_id": "9", "aws_secret_access_key": "9"}
    return boto3.client("s3", **usual | more)


def _table(boto3, name):
    resource = boto3.resource("dynamodb", "us-east-1", aws_access_key_id="9", aws_secret_access_key="9")
    return resource.Table(name)


def _closure(name):
    return lambda record: name


@pytest.mark.parametrize(
    "of",
    [
        lambda name: {"a": date(2029, 1, 1), "b": date(2039, 1, 1)}[name],
        lambda name: Decimal({"a": 9, "b": 99}[name]),
        lambda name: array("b", name.encode()),
        operator.itemgetter,
        lambda name: {"a": len, "b": sum}[name],
        lambda name: name.join,
        _closure,
        lambda name: lambda record, *, to=name: to,
        lambda name: lambda record, to=name: to,
        lambda name: functools.partial(print, name),
        lambda name: functools.lru_cache(_closure(name)),
        lambda name: {"of": (_closure(name),)},
        lambda name: Sink(Sink(_closure(name))),
        lambda name: SimpleNamespace(lock=threading.Lock(), name=name),
        lambda name: ThreadPoolExecutor({"a": 9, "b": 99}[name]),
        io.StringIO,
        Path,
        lambda name: weakref.ref({"a": Locked, "b": Plain}[name]),
        lambda name: {"a": sys.__stdout__, "b": sys.__stderr__}[name],
        lambda name: defaultdict({"a": list, "b": set}[name]),
        _boto3(lambda boto3, region: _client(boto3, endpoint_url=f"http://{region}")),
        _boto3(lambda boto3, region: _client(boto3, region_name=region)),
        _boto3(lambda boto3, region: _client(boto3, aws_access_key_id=region)),
        _boto3(lambda boto3, region: _client(boto3, region_name=region).get_paginator("list_objects")),
        _boto3(_table),
        _boto3(lambda boto3, region: boto3.Session(region_name=region)),
    ],
)  # fmt: skip
def test_what_was_put_into_it_later_is_seen_and_what_is_made_alike_is_not_taken_for_that(of, caplog):
    kind = _made(of)
    assert type(factory_of(kind())()) is kind
    assert not caplog.records
    with pytest.raises(ConfigError, match="set after it was made: held") as refused:
        factory_of(_with(kind(), held=of("b")))
    assert "9" not in str(refused.value)


@pytest.mark.parametrize(
    "make",
    [
        threading.RLock, threading.Condition, threading.Event, queue.Queue, queue.SimpleQueue, ThreadPoolExecutor,
        uuid.uuid4, object, lambda: sys.stdout, lambda: re.compile("9"), lambda: [time.time(), threading.Lock()],
        lambda: _closure(object()), _local_class_of(None),
    ],
)  # fmt: skip
def test_what_a_constructor_makes_is_made_again_without_a_word(make, caplog):
    kind = _made(lambda name: make())
    assert type(factory_of(kind())()) is kind
    assert not caplog.records


def test_what_nobody_can_compare_is_made_again_with_a_warning_that_names_it(caplog):
    kind = _made(lambda name: {"head": struct.Struct("i")})
    assert type(factory_of(kind())()) is kind
    (told,) = caplog.messages
    assert told.startswith("Made cannot be copied")
    assert "held (Struct)" in told


def _one_of(base):
    class Single(base):
        one = None

        def __new__(cls):
            cls.one = cls.one or super().__new__(cls)
            return cls.one

    return Single


class Borg(Locked):
    shared = {}  # noqa: RUF012

    def __init__(self):
        self.__dict__ = self.shared
        super().__init__()


class Bare(Processor):
    __slots__ = ()


_ONE, _BARE = Locked(), Bare()


@pytest.mark.parametrize(
    ("given_of", "told"),
    [
        (_one_of(Processor), "Single always returns one and the same object"),
        (_one_of(Locked), "Single always returns one and the same object"),
        (lambda: _one_of(Locked), "Single always returns one and the same object"),
        (lambda: lambda: _ONE, "<lambda> always returns one and the same object"),
        (lambda: lambda: _BARE, "<lambda> always returns one and the same object"),
        (lambda: functools.partial(_one_of(Locked)), "partial always returns one and the same object"),
        (Borg, "Borg makes objects that have one and the same __dict__"),
        (lambda: Borg, "Borg makes objects that have one and the same __dict__"),
    ],
)
def test_one_processor_for_all_shards_is_refused_when_it_comes_the_second_time(given_of, told):
    with pytest.raises(ConfigError, match=told) as refused:
        make = factory_of(given_of())
        _first, _second = make(), make()
    assert "Do: let " in str(refused.value)
    # So that the worker stops with it instead of trying again.
    assert isinstance(refused.value, NotAProcessor)


def test_a_program_whose_function_returns_its_only_processor_is_told_before_the_second_shard():
    only = Plain("b")
    make, sample, _version = processor_factory(lambda: only, print)
    assert sample is only
    with pytest.raises(ConfigError, match="one and the same object"):
        make()


@pytest.mark.parametrize("slots", [(), ("__dict__", "__weakref__")])
def test_processors_that_are_gone_are_kept_by_nobody_and_new_ones_may_come_in_their_place(slots):
    kind = type("Brief", (), {"__slots__": slots, "process_records": Processor.process_records})
    make = factory_of(kind)
    for _ in range(99):
        make()
    if slots:
        gone = weakref.ref(make())
        assert gone() is None
