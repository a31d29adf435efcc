"""`App` on a local AWS: its hooks, its workers, signals, and `pykcl run` of it and of its functions."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from pykcl import App, ConfigError, ProcessorFailed, SetupError, handler
from pykcl.events import WorkerStopped
from pykcl.handlers.functions import processor_of, takes_records
from pykcl.testing import run_processor
from pykcl.worker.worker import Worker

SHOP = """
import json, os, sys
from pykcl import App, Context, RecordProcessor, handler
from pykcl.testing import records

app = App("orders-app", initial_position="TRIM_HORIZON", failover_time=5, max_leases=7)

def say(*words):
    # In one piece: two streams are read in threads of their own.
    sys.stdout.write(" ".join(map(str, words)) + chr(10))
    sys.stdout.flush()

@app.on_start
def connect():
    say("connected")

@app.on_stop
def disconnect():
    say("disconnected")

@app.stream("orders", max_attempts=3, dead_letters="file:dead")
def on_order(order: dict, context: Context) -> None:
    say("order", order["id"], context.shard_id)

def bare(order: dict):
    say("bare", order["id"])

made = handler(bare, filter=lambda record: b"2" not in record.data)

def factory() -> RecordProcessor:
    raise SystemExit(9)

two = App("two-app", initial_position="TRIM_HORIZON")

@two.stream("orders")
def first(order: dict):
    say("first", order["id"])

@two.stream("payments", application="payments-app")
def second(payment: dict):
    say("second", payment["id"])

if __name__ == "__main__":
    globals()[sys.argv[1]].run()
"""


class Program:
    """A program on the local AWS. words: what it has printed."""

    def __init__(self, arguments, folder, environment):
        with (folder / "log.txt").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], cwd=folder, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self.words = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.words.append(line.split())

    def wait(self, *wanted):
        until = time.monotonic() + 300
        while not all(any(line[: len(each)] == each for line in self.words) for each in wanted):
            assert time.monotonic() < until, self.words
            assert self.process.poll() is None, "it has ended"
            time.sleep(0.05)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.wait_for_the_end()

    def wait_for_the_end(self):
        code = self.process.wait(300)
        self._reader.join()
        self.process.stdout.close()
        return code


@pytest.fixture
def shop(kinesis, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    for stream in ("orders", "payments"):
        kinesis.create_stream(stream)
        kinesis.put(stream, {"id": 1}, {"id": 2})
    started = []

    def start(*arguments):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path))),
        }
        started.append(Program(arguments, tmp_path, environment))
        return started[-1]

    yield start
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
            program.end()


ORDERS, PAYMENTS = [["order", "1"], ["order", "2"]], [["second", "1"], ["second", "2"]]


def test_an_app_reads_its_stream_between_its_hooks_and_stops_at_a_signal(shop):
    program = shop("shop.py", "app")
    program.wait(*ORDERS)
    assert program.end() == 0
    assert (program.words[0], program.words[-1]) == (["connected"], ["disconnected"])
    assert [line[:2] for line in program.words[1:-1]] == ORDERS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_app_of_two_streams_reads_both_and_stops_at_a_signal(shop, number):
    program = shop("shop.py", "two")
    program.wait(*PAYMENTS, ["first", "2"])
    assert program.end(number) == 0


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["shop:app"], ORDERS),
        (["shop:app", "--app", "other-app", "--stream", "orders"], ORDERS),
        (["shop:on_order", "--app", "other-app", "--stream", "orders", "--start", "TRIM_HORIZON"], ORDERS),
        (
            ["shop:bare", "--app", "bare-app", "--stream", "orders", "--start", "TRIM_HORIZON"],
            [["bare", "2"]],
        ),
        (
            ["shop:made", "--app", "made-app", "--stream", "orders", "--start", "TRIM_HORIZON"],
            [["bare", "1"]],
        ),
        (["shop:two"], [["first", "2"], *PAYMENTS]),
        (["shop:two", "--stream", "payments"], PAYMENTS),
        (["shop:app", "--processes", "2"], ORDERS),
    ],
    ids=["app", "named", "its function", "function", "handler", "two streams", "one of two", "processes"],
)
def test_pykcl_run_takes_apps_and_functions(shop, arguments, wanted):
    program = shop("-m", "pykcl", "run", *arguments)
    program.wait(*wanted)
    assert program.end() == 0
    if arguments[0] == "shop:app":
        assert program.words.count(["connected"]) == program.words.count(["disconnected"])
        assert program.words[0] == ["connected"]
    else:
        assert ["connected"] not in program.words
    if "payments" in arguments:
        assert not any(line[0] == "first" for line in program.words)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["shop:two", "--app", "x-app"], 2, "--app names one lease table, and the App reads several streams"),
        (
            ["shop:two", "--stream", "ordrs"],
            2,
            "The App reads no stream 'ordrs'. Do: --stream with one of orders, ",
        ),
        (["shop:two", "--processes", "2"], 2, "--processes is for one stream, and the App reads several"),
        (
            ["shop:two", "--http", "0"],
            2,
            "--http is for one stream, and the App reads several. Do: --stream NAME",
        ),
        (["shop:bare"], 2, "No application. Do: --app NAME"),
        (["shop:ap", "--app", "a-b", "--stream", "s"], 2, "shop has no 'ap'. Did you mean app?"),
        (
            ["shop:app", "--option", "max_attempts=2", "--option", "on_error=skip"],
            78,
            "contradicts on_error='skip'",
        ),
    ],
)
def test_pykcl_run_refuses_what_does_not_go_with_an_app(shop, tmp_path, arguments, code, text):
    program = shop("-m", "pykcl", "run", *arguments)
    assert program.wait_for_the_end() == code
    assert text in (tmp_path / "log.txt").read_text()


# -- in this process ----------------------------------------------------------------------------------------------


def an_app(kinesis, **options):
    for stream in ("orders", "payments"):
        kinesis.create_stream(stream)
    return App("orders-app", initial_position="TRIM_HORIZON", failover_time=5, **options)


def ignore(record):
    pass


def test_all_stop_when_one_fails_and_the_hooks_are_called_once(kinesis):
    app, called = an_app(kinesis), []
    app.on_start(lambda: called.append("start"))
    app.on_stop(lambda: called.append("first stop"))
    app.on_stop(lambda: called.append("last stop"))
    app.stream("orders")(ignore)
    app.stream("nowhere", application="nowhere-app")(ignore)
    with pytest.raises(SetupError, match="nowhere"):
        app.run()
    assert called == ["start", "last stop", "first stop"]
    names = [one.name for one in threading.enumerate()]
    assert not [name for name in names if name.startswith(("pykcl-run", "pykcl-shard"))]


def test_all_stop_when_one_is_stopped(kinesis):
    app, stopped = an_app(kinesis), []

    @app.stream("orders")
    def on_order(order: dict) -> None:
        raise ValueError

    app.stream("payments", application="payments-app", on_error="raise")(ignore)
    app.stream("orders", application="raising-app", on_error="raise")(on_order)
    kinesis.put("orders", {"id": 1})
    app.on_stop(lambda: stopped.append(True))
    with pytest.raises(Exception, match=r"process_records raised ValueError at test_app\.py:"):
        app.run()
    assert stopped == [True]


def test_a_stream_that_was_read_to_its_end_does_not_stop_another_one(kinesis):
    app, now = an_app(kinesis), datetime.now(UTC)

    def put_after_the_end(event):
        if isinstance(event, WorkerStopped):
            kinesis.put("payments", {"id": 1})

    app.stream("orders", until=now - timedelta(minutes=1), on_event=put_after_the_end)(ignore)

    @app.stream("payments", application="payments-app", until=now + timedelta(hours=1), on_error="raise")
    def on_payment(payment: dict) -> None:
        raise ValueError

    with pytest.raises(ProcessorFailed, match=r"process_records raised ValueError at test_app\.py:"):
        app.run()


def test_a_start_that_fails_starts_no_worker_and_calls_no_stop(kinesis):
    app, called = an_app(kinesis), []
    app.stream("orders")(ignore)

    @app.on_start
    def fail():
        raise RuntimeError("no database")

    app.on_stop(lambda: called.append("stop"))
    with pytest.raises(RuntimeError, match="no database"):
        app.run()
    assert called == []


def test_the_decorated_function_stays_the_function_and_its_app_is_known_to_the_kit():
    app = App("orders-app")

    def number_of(record):
        return record.json()["id"]

    seen = []

    def on_order(order: int) -> None:
        seen.append(order)

    assert app.stream("orders", decoder=number_of)(on_order) is on_order
    on_order(5)
    run_processor(on_order, [{"id": 7}])
    assert seen == [5, 7]


def test_a_method_is_decorated_as_a_call():
    class Shop:
        def __init__(self):
            self.seen = []

        def on_order(self, order: dict) -> None:
            self.seen.append(order)

    shop, app = Shop(), App("orders-app")
    app.stream("orders")(shop.on_order)
    run_processor(app._streams[0].processor, [{"id": 7}])
    run_processor(shop.on_order, [{"id": 8}])
    assert shop.seen == [{"id": 7}, {"id": 8}]


def test_what_is_wrapped_again_is_not_taken_for_what_it_wraps():
    import functools

    app, seen = App("orders-app"), []

    @app.stream("orders")
    def on_order(order: dict) -> None:
        seen.append(order)

    @functools.wraps(on_order)
    def wrapper(order):
        seen.append("wrapped")
        on_order(order)

    run_processor(wrapper, [{"id": 7}])
    assert seen == ["wrapped", {"id": 7}]


def test_a_factory_is_no_function_of_records(worker, kinesis):
    def factory():
        pass

    def partly(settings) -> "Worker":
        pass

    assert not takes_records(factory)
    assert not takes_records(Worker)
    assert not takes_records(5)
    assert takes_records(partly)
    assert processor_of(factory) is factory
    kinesis.create_stream("orders")
    kinesis.put("orders", {"id": 1})
    seen = []
    worker(lambda record: seen.append(record.json()), "orders").wait_delivered()
    assert seen == [{"id": 1}]


def test_options_of_a_stream_come_before_those_of_the_app():
    app = App("orders-app", max_records=5, failover_time=20)
    app.stream("orders", max_records=7)(ignore)
    (stream,) = app._streams
    assert stream.fields() == {
        "application": "orders-app", "stream": "orders", "max_records": 7, "failover_time": 20,
    }  # fmt: skip
    with pytest.raises(ConfigError):
        app.stream("orders")(handler)
