"""`handler`: what a function is called with, what it knows of its call, and what becomes of its records."""

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, List, TypedDict  # noqa: UP035

import forms_written_as_text as texts
import msgspec
import pydantic
import pytest

from pykcl import (
    Batch,
    Context,
    FailedAt,
    Record,
    RecordProcessor,
    Reject,
    RestartShard,
    TemporaryError,
    handler,
)
from pykcl.events import ProcessorRaised
from pykcl.model.dead_letter import Condition
from pykcl.testing import assert_in_order, records, run_processor

COUNT = 4


class Typed(TypedDict):
    id: int


@dataclass
class Data:
    id: int


class Model(pydantic.BaseModel):
    id: int


class Struct(msgspec.Struct):
    id: int


@pydantic.dataclasses.dataclass
class Validated:
    id: int


FORMS = [
    (bytes, lambda value: int(value.split(b":")[1][:-1])),
    (str, lambda value: int(value.split(":")[1][:-1])),
    *((kind, lambda value: value["id"]) for kind in (dict, Any, Typed, dict[str, int], Mapping[str, Any])),
    *((kind, lambda value: value.id) for kind in (Data, Model, Struct, Validated)),
    (Record, lambda value: value.json()["id"]),
    (Annotated[Model, "of the shop"], lambda value: value.id),
]


def orders(count=COUNT):
    return records(*({"id": number} for number in range(count)), partition_key="k")


def of(kind, body):
    """A function of one parameter with that annotation."""

    def function(value):
        body(value)

    function.__annotations__["value"] = kind
    return function


def ids(found):
    return [record.json()["id"] for record in found]


def letters_of(result):
    return [(letter.condition, ids(letter.records), letter.attempts) for letter in result.dead_letters]


# -- b1: forms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "id_of"), FORMS, ids=[str(kind) for kind, _ in FORMS])
def test_b1_1_the_annotation_says_what_each_call_gets(kind, id_of):
    seen = []
    result = run_processor(handler(of(kind, seen.append)), orders())
    assert list(map(id_of, seen)) == list(range(COUNT))
    assert result.lost == 0
    assert result.checkpoints[-1] == "SHARD_END"


@pytest.mark.parametrize("many", [list, List, Sequence])  # noqa: UP006
@pytest.mark.parametrize(("kind", "id_of"), FORMS, ids=[str(kind) for kind, _ in FORMS])
def test_b1_1_a_list_gets_the_decoded_records_of_a_batch(many, kind, id_of):
    seen = []
    result = run_processor(handler(of(many[kind], seen.append)), orders())
    assert [list(map(id_of, batch)) for batch in seen] == [list(range(COUNT))]
    assert result.lost == 0


def test_b1_1_no_annotation_is_the_record_and_a_batch_is_the_batch_itself():
    seen = []
    run_processor(lambda record: seen.append(record), orders())  # noqa: PLW0108
    assert ids(seen) == list(range(COUNT))
    run_processor(handler(of(Batch, seen.append)), orders())
    assert isinstance(seen[-1], Batch)
    assert ids(seen[-1]) == list(range(COUNT))


def coroutine_of(kind, body):
    """An async function of one parameter with that annotation."""

    async def function(value):
        body(value)

    function.__annotations__["value"] = kind
    return function


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("make", [of, coroutine_of], ids=["def", "async def"])
@pytest.mark.parametrize(("kind", "id_of"), FORMS, ids=[str(kind) for kind, _ in FORMS])
def test_b1_1_every_annotation_means_the_same_in_lanes_and_in_tasks(kind, id_of, make, concurrency):
    seen, lists = [], []
    keys = [records({"id": number}, partition_key=str(number))[0] for number in range(12)]
    for annotation, kept in ((kind, seen), (list[kind], lists)):
        result = run_processor(handler(make(annotation, kept.append), concurrency=concurrency), keys)
        assert result.lost == 0
        assert result.checkpoints[-1] == "SHARD_END"
    assert sorted(map(id_of, seen)) == list(range(12))
    assert sorted(id_of(value) for batch in lists for value in batch) == list(range(12))


def test_call_with_empty_batches_calls_a_function_of_batches_alone():
    seen, each = [], []
    for function in (of(Batch, seen.append), of(list[dict], seen.append), of(dict, each.append)):
        run_processor(handler(function), orders(2), end="idle", call_with_empty_batches=True)
    assert [] in [list(batch) for batch in seen]
    assert len(each) == 2


# -- b6: what a function may be ----------------------------------------------------------------------------------


class Shop:
    def __init__(self):
        self.seen = []

    def on_order(self, order: Model, context: Context) -> None:
        self.seen.append((order.id, context.attempt))

    @classmethod
    def of_the_class(cls, order: Model) -> None:
        Shop.last = order.id

    @staticmethod
    def of_nobody(order: Model) -> None:
        Shop.last = order.id

    def __call__(self, order: Model) -> None:
        self.seen.append(order.id)


def test_b6_methods_and_callable_objects_are_functions_too():
    shop = Shop()
    for function, expected in (
        (shop.on_order, [(0, 1), (1, 1)]),
        (shop, [0, 1]),
    ):
        shop.seen.clear()
        run_processor(handler(function), orders(2))
        assert shop.seen == expected
    for function in (Shop.of_the_class, shop.of_the_class, Shop.of_nobody):
        run_processor(handler(function), orders(3))
        assert Shop.last == 2


def test_b6_a_partial_binds_what_is_not_of_the_record():
    seen = []

    def store(table, order: Model, context: Context, limit=0):
        seen.append((table, order.id, context.attempt, limit))

    run_processor(handler(functools.partial(store, "orders", limit=5)), orders(1))
    run_processor(handler(functools.partial(functools.partial(store, "orders"), limit=7)), orders(1))
    assert seen == [("orders", 0, 1, 5), ("orders", 0, 1, 7)]


def test_b6_a_wrapper_has_the_annotation_of_what_it_wraps():
    seen = []

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @logged
    def on_order(order: Model, context: Context) -> None:
        seen.append((order.id, context.attempt))

    run_processor(handler(on_order), orders(2))
    assert seen == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (texts.of_a_dict, [({"id": 0}, 1), ({"id": 1}, 1)]),
        (texts.of_a_record, [{"id": 0}, {"id": 1}]),
        (texts.of_a_class_below, [0, 1]),
        (texts.made_above, [0, 1]),
        (texts.of_many, [[0, 1]]),
        (texts.with_a_default_for_type_checkers, [({"id": 0}, None), ({"id": 1}, None)]),
    ],
)
def test_b6_annotations_may_be_texts_and_name_what_is_defined_later(function, expected):
    texts.seen.clear()
    run_processor(function, orders(2))
    assert texts.seen == expected


def test_b6_a_text_may_name_a_class_of_the_function_around_it():
    @dataclass
    class Local:
        id: int

    seen = []

    def on_order(order: "Local", context: "Context") -> None:
        seen.append((order.id, context.attempt))

    def on_orders(orders: "list[Local]") -> None:
        seen.append([order.id for order in orders])

    run_processor(handler(on_order), orders(1))
    run_processor(handler(on_orders), orders(2))
    assert seen == [(0, 1), [0, 1]]


def test_a_callable_in_c_gets_the_record():
    seen = []
    run_processor(handler(seen.append), orders(2))
    assert ids(seen) == [0, 1]


def test_a_decoder_takes_the_place_of_the_annotation():
    seen = []

    class Unknown:
        def __init__(self, number):
            self.number = number

    def number_of(record):
        return Unknown(record.json()["id"])

    run_processor(handler(of(Unknown, seen.append), decoder=number_of), orders(2))
    assert [each.number for each in seen] == [0, 1]
    run_processor(handler(of(list[Unknown], seen.append), decoder=number_of), orders(2))
    assert [each.number for each in seen[-1]] == [0, 1]


# -- the context -------------------------------------------------------------------------------------------------


def test_the_context_knows_the_record_the_shard_and_the_attempt():
    seen = []

    def on_order(order: dict, context) -> None:
        seen.append((order["id"], context.attempt))
        assert context.record.json() == order
        assert (context.shard_id, context.stream) == (context.record.shard_id, "orders")
        assert context.record in list(context.batch)
        assert context.fencing_token > 0
        assert context.lost is False
        assert "id" not in repr(context).replace("shard_id", "")
        if order["id"] == 1 and context.attempt < 3:
            raise ValueError

    result = run_processor(handler(on_order), orders(3))
    assert seen == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]
    assert result.lost == 0


def test_the_context_may_be_passed_by_name_alone_or_be_no_second_parameter():
    seen = []

    def by_name(order: dict, *, context: Context) -> None:
        seen.append(context.attempt)

    def further_back(order: dict, limit: int = 5, it: Context = None) -> None:
        seen.append((limit, it.attempt))

    run_processor(handler(by_name), orders(1))
    run_processor(handler(further_back), orders(1))
    assert seen == [1, (5, 1)]


@pytest.mark.parametrize("kind", [Batch, list[dict]])
def test_the_attempt_of_a_batch_counts_its_own_failures(kind):
    seen = []

    def on_orders(orders, context: Context) -> None:
        seen.append((len(orders), context.attempt))
        assert context.record is None
        if len(orders) > 1 or context.attempt < 2:
            raise ValueError

    on_orders.__annotations__["orders"] = kind
    result = run_processor(handler(on_orders), orders(2), max_attempts=2, bisect=True)
    assert seen == [(2, 1), (1, 1), (1, 2), (1, 1), (1, 2)]
    assert result.dead_letters == []


def test_the_context_says_that_the_lease_is_lost_while_the_function_runs(kcl_clock):
    seen = []

    def on_order(record, context: Context) -> None:
        seconds = 0
        while not context.lost and seconds < 30:
            kcl_clock.advance(1)
            seconds += 1
        seen.append(context.lost)

    run_processor(handler(on_order), orders(1), end="lease_lost", failover_time=10)
    assert seen == [True]


# -- what becomes of the records -----------------------------------------------------------------------------------


def test_a_record_that_fails_costs_no_other_a_second_call():
    calls = []

    def on_order(order: dict) -> None:
        calls.append(order["id"])
        if order["id"] in (1, 2):
            raise KeyError(order["id"])

    result = run_processor(handler(on_order), orders(), max_attempts=2)
    assert letters_of(result) == [
        (Condition.RETRY_ATTEMPTS_EXHAUSTED, [1], 2),
        (Condition.RETRY_ATTEMPTS_EXHAUSTED, [2], 2),
    ]
    assert calls == [0, 1, 1, 2, 2, 3]
    assert_in_order(result)
    (letter, _) = result.dead_letters
    assert (letter.error, letter.where.split(":")[0]) == ("KeyError", "test_functions.py")
    assert letter.processor.endswith("on_order")
    assert {event.error for event in result.events if isinstance(event, ProcessorRaised)} == {"KeyError"}


def test_reject_means_the_record_at_hand():
    calls = []

    def on_order(order: dict, context: Context) -> None:
        calls.append(order["id"])
        if order["id"] == 1:
            raise Reject("negative total")
        if order["id"] == 2:
            raise Reject(context.record, "no such product")

    result = run_processor(handler(on_order), orders(), dead_letters=lambda letters: None)
    assert letters_of(result) == [(Condition.REJECTED, [1], 1), (Condition.REJECTED, [2], 1)]
    assert [letter.reason for letter in result.dead_letters] == ["negative total", "no such product"]
    assert calls == [0, 1, 2, 3]


def test_a_function_of_batches_names_its_records_by_the_batch():
    def on_batch(batch: Batch) -> None:
        for record in batch:
            if record.json()["id"] == 2:
                raise FailedAt(record)

    result = run_processor(handler(on_batch), orders(), max_attempts=1)
    assert letters_of(result) == [(Condition.RETRY_ATTEMPTS_EXHAUSTED, [2], 1)]


@pytest.mark.parametrize("error", [TemporaryError("away"), SystemExit(1), KeyboardInterrupt()])
def test_what_is_not_the_records_fault_counts_no_attempt_and_repeats_no_other(error):
    calls = []

    def on_order(order: dict) -> None:
        calls.append(order["id"])
        if order["id"] == 1 and len(calls) < 5:
            raise error

    result = run_processor(handler(on_order), orders(3), max_attempts=1)
    assert result.dead_letters == []
    assert calls == [0, 1, 1, 1, 1, 2]


def test_restart_shard_is_as_ever():
    calls = []

    def on_order(order: dict) -> None:
        calls.append(order["id"])
        if len(calls) == 2:
            raise RestartShard("its process has died")

    result = run_processor(handler(on_order), orders(3))
    assert [call.method for call in result.calls].count("initialize") == 2
    assert calls == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("kind", [Record, Batch, list[dict]])
def test_a_coroutine_that_nobody_runs_settles_nothing(kind):
    calls = []

    async def coroutine():
        pass

    def on_order(value):
        calls.append(value)
        return coroutine() if len(calls) < 4 else None

    on_order.__annotations__["value"] = kind
    result = run_processor(handler(on_order), orders(1), max_attempts=1)
    assert result.dead_letters == []
    assert {event.error for event in result.events if isinstance(event, ProcessorRaised)} == {"NeverRan"}
    assert len(calls) == 4


def test_what_a_filter_refuses_is_settled_and_counted():
    for kind in (dict, Batch, list[dict]):
        seen = []
        made = handler(of(kind, seen.append), filter=lambda record: record.json()["id"] % 2)
        processors = []

        def factory(made=made, processors=processors):
            processors.append(made())
            return processors[-1]

        result = run_processor(factory, orders())
        assert result.lost == 0
        assert sum(processor.records_filtered for processor in processors) == 2
        found = seen if kind is dict else list(seen[0])
        assert [each.json()["id"] if kind is Batch else each["id"] for each in found] == [1, 3]


def test_a_batch_of_which_nothing_is_wanted_is_no_call():
    seen = []
    for kind in (Batch, list[dict]):
        result = run_processor(handler(of(kind, seen.append), filter=lambda record: False), orders())
        assert result.lost == 0
    assert seen == []


def test_a_filter_counts_what_is_before_a_record_that_failed_once():
    processors, failures = [], [True]

    def on_batch(batch: Batch) -> None:
        if failures and failures.pop():
            raise FailedAt(batch[1])

    made = handler(on_batch, filter=lambda record: record.json()["id"] % 2)
    result = run_processor(lambda: processors.append(made()) or processors[-1], orders(6))
    assert result.lost == 0
    assert sum(processor.records_filtered for processor in processors) == 3


def test_a_class_stays_a_class_and_so_does_its_factory():
    class Orders(RecordProcessor):
        def process_records(self, batch):
            pass

    assert run_processor(Orders, orders(1)).lost == 0
    assert run_processor(lambda: Orders(), orders(1)).lost == 0  # noqa: PLW0108


LETTERS = {
    "poison": Condition.DECODE_FAILED,
    "rejects": Condition.REJECTED,
    "raises": Condition.RETRY_ATTEMPTS_EXHAUSTED,
}


@pytest.mark.parametrize("seed", range(30))
def test_random_records_are_called_as_often_as_they_fail_and_given_up_alone(seed):
    rng = random.Random(seed)
    kinds = rng.choices(["good", *LETTERS, "flaky", "away"], weights=[6, 1, 1, 1, 1, 1], k=rng.randint(1, 25))
    left = {number: rng.randint(1, 2) for number, kind in enumerate(kinds) if kind in ("flaky", "away")}
    expected = {number: 1 + failures for number, failures in left.items()}
    calls = dict.fromkeys(range(len(kinds)), 0)

    def on_order(order: dict) -> None:
        number = order["id"]
        calls[number] += 1
        if kinds[number] == "rejects":
            raise Reject("at random")
        if kinds[number] == "raises":
            raise ValueError
        if left.get(number):
            left[number] -= 1
            raise TemporaryError("away") if kinds[number] == "away" else KeyError(number)

    bisect = rng.random() < 0.5
    result = run_processor(
        handler(on_order),
        records(
            *(f"{{{number}" if kind == "poison" else {"id": number} for number, kind in enumerate(kinds)),
            aggregated=rng.random() < 0.4,
            partition_key="k",
        ),
        seed=seed,
        bisect=bisect,
        max_attempts=3,
        batch_size=rng.choice([None, 1, 3]),
        dead_letters_in_a_row=0,
    )
    given_up = {
        result.records.index(record): letter.condition
        for letter in result.dead_letters
        for record in letter.records
    }
    assert given_up == {number: LETTERS[kind] for number, kind in enumerate(kinds) if kind in LETTERS}
    assert result.lost == 0
    for number, kind in enumerate(kinds):
        # With bisect the call in which a record failed together with those after it counts as no attempt.
        wanted = {"poison": {0}, "raises": {3, 4} if bisect else {3}}.get(kind, {expected.get(number, 1)})
        assert calls[number] in wanted, (number, kind)
