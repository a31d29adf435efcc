"""One processor for each shard out of the one that a program hands over: copied, made again, or refused with the reason."""

import functools
import re
import threading
import time
from copy import deepcopy
from itertools import count

import pytest

from pykcl.compat.kclpy.prototype import factory_of
from pykcl.errors import ConfigError


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
    assert factory_of(Locked) is Locked
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
