"""Every refusal of `handler`, `App` and what is given one of their functions: what happened, where, and what to do."""

import collections
import functools
import re
import typing
from dataclasses import dataclass
from typing import Annotated

import forms_written_as_text as texts
import pydantic
import pytest

from pykcl import App, Batch, ConfigError, Context, Record, RecordProcessor, Worker, handler
from pykcl.errors import NotAProcessor
from pykcl.event_dispatch import line_of
from pykcl.events import OneRecordPerCall
from pykcl.handlers.app import streams_of
from pykcl.handlers.decode import FORMS
from pykcl.testing import records, run_processor

HERE = "test_handler_messages.py:"


class Orders(RecordProcessor):
    def process_records(self, batch):
        pass


class Shop:
    def on_order(self, order: complex):
        pass


class Unknown:
    pass


@dataclass
class Unmade:
    shop: Shop | Unknown


async def asynchronous(order):
    pass


def generator(order):
    yield order


async def asynchronous_generator(order):
    yield order


def nothing():
    pass


def plain(order):
    pass


def of_unknown(order: Unknown):
    pass


def of_a_choice(order: "dict | None"):
    pass


def of_many_unknown(orders: list[set]):
    pass


def of_numbers(order: dict[int, str]):
    pass


def of_no_annotation(order: "dict["):  # noqa: F722
    pass


def of_an_expression(order: "1 / 0"):
    pass


def of_a_context(context: Context):
    pass


def of_a_batch(batch: Batch):
    pass


def with_more(order, database, *, limit):
    pass


def of_an_unmade(order: Unmade):
    pass


def lambda_handler(event, context):
    pass


DO_FORMS = f"Do: use {re.escape(FORMS)}; or pass decoder="
REFUSED = [
    (5, {}, r"^handler takes a function; it got int. Do: write def on_record\(record\)\.$"),
    (Orders, {}, r"^handler takes a function; it got the class Orders. Do: pass processor=Orders\.$"),
    (Orders(), {}, r"it got Orders\. Do: write def on_record"),
    (Shop, {}, r"it got the class Shop\. Do: write def on_record"),
    (handler(plain), {}, r"it got what makes objects. Do: pass it to Worker as it is"),
    (functools.partial(Unmade, 1), {}, r"it got what makes objects"),
    (generator, {}, r"^generator \(.*\): it is a function with a yield"),
    (asynchronous_generator, {}, r"^asynchronous_generator \(.*\): it is async def with a yield"),
    (
        nothing,
        {},
        rf"^nothing \({HERE}\d+\): it takes no record. Do: add a parameter: def on_record\(record\)\.$",
    ),
    (functools.partial(plain, 1), {}, rf"^plain \({HERE}\d+\): it takes no record"),
    (of_unknown, {}, rf"^of_unknown \({HERE}\d+\): its first parameter: Unknown has no decoder. {DO_FORMS}"),
    (of_a_choice, {}, rf"its first parameter: dict \| None has no decoder. {DO_FORMS}"),
    (of_many_unknown, {}, r"its first parameter: set has no decoder"),
    (of_numbers, {}, r"its first parameter: dict\[int, str\] has no decoder"),
    (Shop().on_order, {}, r"^Shop.on_order \(.*\): its first parameter: complex has no decoder"),
    (
        of_no_annotation,
        {},
        rf"its annotation dict\[ cannot be evaluated \(SyntaxError\). Do: use {re.escape(FORMS)}",
    ),
    (of_an_expression, {}, r"its annotation 1 / 0 cannot be evaluated \(ZeroDivisionError\)"),
    (
        of_a_context,
        {},
        r"its first parameter is a Context. Do: take the record first, and the Context as the second",
    ),
    (
        with_more,
        {},
        r"nothing is passed for database, limit. Do: bind it, functools.partial\(with_more, database=...\), or give it "
        r"a default; only a Context is passed besides the record",
    ),
    (of_an_unmade, {}, r"its first parameter: Unmade cannot be decoded: TypeError: "),
    (
        lambda_handler,
        {},
        r"it has the parameters of a Lambda handler. Do: pass lambda_processor\(...\) of it",
    ),
    (of_a_batch, {"decoder": plain}, r"decoder= makes a value of one record, and the function takes a Batch"),
    (
        plain,
        {"decoder": 5},
        r"decoder=int is no plain function. Do: write a plain def of a Record without yield for d",
    ),
    (plain, {"decoder": asynchronous}, r"decoder=asynchronous is no plain function"),
    (plain, {"filter": generator}, r"filter=generator is no plain function"),
]


@pytest.mark.parametrize(("function", "options", "message"), REFUSED)
def test_what_is_no_handler_is_refused_where_it_is_made(function, options, message):
    with pytest.raises(ConfigError, match=message) as raised:
        handler(function, **options)
    assert isinstance(raised.value, NotAProcessor)
    assert raised.value.code == "E15"
    assert str(raised.value).endswith(f"Do: {raised.value.hint}.")


def test_a_model_of_pydantic_1_is_refused(monkeypatch):
    class Old(pydantic.BaseModel):
        pass

    Old.__name__ = Old.__qualname__ = "Old"
    monkeypatch.delattr(pydantic.BaseModel, "model_validate_json")

    def function(order: Old):
        pass

    with pytest.raises(
        NotAProcessor, match=r"Old is a model of pydantic 1. Do: pip install 'pykcl\[pydantic\]'"
    ):
        handler(function)


def test_a_name_that_is_never_defined_is_refused_before_the_first_call():
    made = handler(texts.of_a_name_for_type_checkers)
    with pytest.raises(
        NotAProcessor,
        match=r"^of_a_name_for_type_checkers \(forms_written_as_text.py:\d+\): its annotations name what is not "
        r"defined: name 'Decimal' is not defined. Do: import that at run time, not for type checkers only\.$",
    ):
        made()


def test_a_worker_that_is_given_a_function_says_what_to_pass():
    with pytest.raises(
        NotAProcessor, match=r"plain needs order.* Do: pass handler\(plain\) if it is to be called w"
    ):
        Worker("orders-app", stream="orders", processor=plain)
    with pytest.raises(NotAProcessor, match=r"with_more needs order, database, limit"):
        Worker("orders-app", stream="orders", processor=with_more)


# -- App ---------------------------------------------------------------------------------------------------------


def decorated(app=None, stream="orders", function=plain, **options):
    (app or App("orders-app")).stream(stream, **options)(function)


def two_streams(**options):
    app = App("orders-app", **options)
    app.stream("orders")(plain)
    app.stream("payments")(of_a_batch)


def hook(name, function):
    getattr(App("orders-app"), name)(function)


APPS = [
    (lambda: App("orders-app", max_attemps=3), r"^Unknown option 'max_attemps'. Did you mean 'max_attempts'"),
    (
        lambda: App("orders-app", stream="orders"),
        r"^stream= is no option of an App. Do: @app.stream\(\"orders\"\)\.$",
    ),
    (lambda: App("orders-app", processor=Orders), r"^Unknown option 'processor'"),
    (lambda: decorated(on_eror="skip"), r"^Unknown option 'on_eror'. Did you mean 'on_error'"),
    (
        lambda: decorated(stream=plain),
        r"^app.stream takes the name of a stream. Do: @app.stream\(\"orders\"\)\.$",
    ),
    (
        lambda: decorated(function=of_unknown),
        r"^of_unknown \(.*\): its first parameter: Unknown has no decoder",
    ),
    (
        lambda: decorated(max_attempts=3),
        r"max_attempts=3 gives up records, and dead_letters=None keeps them nowhere",
    ),
    (
        two_streams,
        r"^of_a_batch and plain share the lease table 'orders-app', and that is of one stream, 'orders'. "
        r"Do: @app.stream\('payments', application=\"orders-app-of_a_batch\"\)\.$",
    ),
    (lambda: two_streams(table_name="leases"), r"of_a_batch and plain share the lease table 'leases'"),
    (
        App("orders-app").run,
        r"^The App reads no stream. Do: decorate a function by @app.stream\(\"orders\"\)\.$",
    ),
    (
        lambda: hook("on_start", plain),
        r"^@app.on_start: plain is a function that needs arguments. Do: def plain\(\), ",
    ),
    (
        lambda: hook("on_stop", asynchronous),
        r"^@app.on_stop: asynchronous is a function that needs arguments. Do: def asynchronous\(\), w",
    ),
    (lambda: hook("on_stop", 5), r"^@app.on_stop: int is no function"),
]


@pytest.mark.parametrize(("make", "message"), APPS)
def test_what_an_app_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_own_application_is_a_lease_table_of_its_own():
    app = App("orders-app")
    app.stream("orders")(plain)
    app.stream("payments", application="payments-app")(of_a_batch)
    assert [each.application for each in streams_of(app)] == ["orders-app", "payments-app"]


def test_nothing_shown_quotes_a_record():
    context = Context(Record(b"secret", "alice", "1"), Batch((), None, 0, "shardId-0", "orders"), 1, 7)
    assert "secret" not in repr(context)
    assert "alice" not in repr(context)


# -- one record, or several --------------------------------------------------------------------------------------


def of_a_collection(kind, name="records"):
    """A function of one parameter with this name and annotation, which collects in `seen` what it is called with."""
    names: dict = {"kind": kind, "seen": []}
    exec(f"def function({name}: kind): seen.append({name})", names)
    names["function"].seen = names["seen"]
    return names["function"]


WAYS = (
    r"Do: write list\[Record\] or list\[dict\] for the records of a batch; for one record that is a JSON array write "
    r"Annotated\[list, 'of one record'\], or pass decoder=Record.json\.$"
)
OPEN = [
    *(list, tuple, set, frozenset, collections.deque),
    *(typing.List, typing.Tuple, typing.Sequence, typing.Iterable, typing.Set),  # noqa: UP006
    *(getattr(collections.abc, name) for name in ("Sequence", "Iterable", "Iterator", "Collection")),
]


@pytest.mark.parametrize("kind", OPEN, ids=str)
def test_a_collection_of_anything_may_be_a_batch_or_one_record_and_is_refused_with_the_ways_to_say_it(kind):
    with pytest.raises(
        NotAProcessor,
        match=r"its first parameter, records: .*, does not say if a call gets all records of a batch or one. "
        + WAYS,
    ) as raised:
        handler(of_a_collection(kind))
    assert raised.value.code == "E15"


@pytest.mark.parametrize(
    "kind", [tuple[Record, ...], collections.abc.Iterable[Record], collections.deque[Record]]
)
def test_a_collection_of_records_that_is_no_list_is_refused_with_the_same_words(kind):
    with pytest.raises(NotAProcessor, match="its first parameter: .* has no decoder. " + WAYS):
        handler(of_a_collection(kind))


def called_with(kind, *data, **options):
    function = of_a_collection(kind)
    assert run_processor(handler(function, **options), records(*data, partition_key="k")).lost == 0
    return function.seen


def test_each_way_that_the_refusal_names_is_taken():
    (batch,) = called_with(list[Record], {"id": 1}, {"id": 2})
    assert [record.json() for record in batch] == [{"id": 1}, {"id": 2}]
    assert called_with(list[dict], {"id": 1}, {"id": 2}) == [[{"id": 1}, {"id": 2}]]
    assert called_with(Annotated[list, "of one record"], [1], [2, 3]) == [[1], [2, 3]]
    assert called_with(list, [1], [2, 3], decoder=Record.json) == [[1], [2, 3]]


def test_dict_of_typing_is_a_dict():
    assert called_with(typing.Dict, {"id": 1}) == [{"id": 1}]  # noqa: UP006


def without_annotation(name):
    namespace = {}
    exec(f"def on_sale({name}): pass", namespace)
    return namespace["on_sale"]


def remarks(function, *data, **options):
    result = run_processor(handler(function, **options), records(*data), shards=3)
    return [event for event in result.events if isinstance(event, OneRecordPerCall)]


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize(
    "name", ["records", "batch", "events", "messages", "orders", "kinesis_records", "_batch"]
)
def test_a_first_parameter_that_is_named_like_several_records_is_said_once_to_get_one(name, concurrency):
    (event,) = remarks(without_annotation(name), 1, 2, 3, concurrency=concurrency)
    assert (event.function, event.place, event.parameter) == ("on_sale", "<string>:1", name)
    assert line_of(event).startswith(
        "the function is called with one record: annotate the parameter as Batch or list[Record] to get several, or as "
        "Record if one is meant function='on_sale'"
    )


def test_a_decoder_for_a_bare_list_of_several_is_said_to_make_one():
    (event,) = remarks(of_a_collection(list, "orders"), [1], decoder=Record.json)
    assert event.parameter == "orders"


@pytest.mark.parametrize(
    "name", ["record", "order", "event", "address", "status", "analysis", "batch_record"]
)
def test_a_name_of_one_record_is_not_remarked_upon(name):
    assert remarks(without_annotation(name), {"id": 1}) == []


@pytest.mark.parametrize("kind", [Record, Batch, list[Record], dict, Annotated[list, "of one record"]])
def test_an_annotation_is_believed_whatever_the_name(kind):
    assert remarks(of_a_collection(kind, "records"), *([[1]] if "Annotated" in str(kind) else [{}])) == []
