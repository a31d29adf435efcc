"""One processor for each shard out of the one that a program hands over: copied, made again, or refused with the reason."""

import functools
import threading
from copy import deepcopy
from itertools import count

import pytest

from pykcl.compat.kclpy.adapter import factory_of, processor_factory
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
        (
            lambda: LockedWithArguments("b"),
            ["lock: lock", "its constructor without arguments raises TypeError"],
        ),
        (lambda: LockedWithDefaults(9), ["lock: lock", "another value of n"]),
        (lambda: LockedWithDefaults(name="99"), ["another value of _name"]),
        (lambda: _with(Locked(), extra=1), ["other attributes: extra"]),
        (lambda: _with(Locked(), limit=9), ["another value of limit"]),
        (lambda: _slotted("9"), ["lock: lock", "another value of bucket"]),
    ],
)
def test_what_can_be_neither_is_refused_with_the_reason_and_without_values(given, told):
    with pytest.raises(ConfigError) as refused:
        factory_of(given())
    assert all(text in str(refused.value) for text in told), refused.value
    assert "Do: " in str(refused.value)
    assert "pykcl multilangd" in str(refused.value)
    assert "9" not in str(refused.value)


def _with(instance, **attributes):
    vars(instance).update(attributes)
    return instance


class Slotted(Processor):
    __slots__ = ("bucket", "lock")

    def __init__(self):
        self.lock, self.bucket = threading.Lock(), None


def _slotted(bucket):
    made = Slotted()
    made.bucket = bucket
    return made


def test_what_was_set_as_the_constructor_sets_it_is_no_reason_to_refuse():
    assert factory_of(_with(Locked(), limit=7))().limit == 7
    assert isinstance(factory_of(_slotted(None))(), Slotted)


def test_methods_of_the_processor_are_copied_with_it():
    class Handling(Plain):
        def __init__(self):
            super().__init__("mine")
            self.handlers, self.mine = {"a": self.process_records}, self
            self.later = functools.partial(self.process_records, checkpointer=None)

    given = Handling()
    made = factory_of(given)()
    made.later(["r"])
    made.handlers["a"](["r"], None)
    assert (made.seen, given.seen, made.mine) == (["r", "r"], [], made)


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

    with pytest.raises(ConfigError, match="its constructor without arguments raises OSError"):
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
        (_one_of(Processor), "Single always returns the same object"),
        (_one_of(Locked), "Single always returns the same object"),
        (lambda: _one_of(Locked), "Single always returns the same object"),
        (lambda: lambda: _ONE, "<lambda> always returns the same object"),
        (lambda: lambda: _BARE, "<lambda> always returns the same object"),
        (lambda: functools.partial(_one_of(Locked)), "partial always returns the same object"),
        (Borg, "Borg creates objects that share one __dict__"),
        (lambda: Borg, "Borg creates objects that share one __dict__"),
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
    with pytest.raises(ConfigError, match="the same object"):
        make()
