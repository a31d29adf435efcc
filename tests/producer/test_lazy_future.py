"""The future of a record is one of the standard library's, whoever asks it, and when."""

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from concurrent import futures
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    Future,
    InvalidStateError,
    as_completed,
    wait,
)
from contextlib import suppress

import pytest

from pykcl.runtime import LazyFuture, resolve_unwatched


def resolved(future, result):
    """Resolve a future as a producer does."""
    for watched, outcome in resolve_unwatched([(future, result)]):
        watched.set_result(outcome)


def in_a_thread(body):
    thread = threading.Thread(target=body)
    thread.start()
    return thread


def test_it_runs_from_the_start_and_cannot_be_cancelled():
    future = LazyFuture()
    assert isinstance(future, Future)
    assert (future.running(), future.done(), future.cancel(), future.cancelled()) == (
        True,
        False,
        False,
        False,
    )
    assert "running" in repr(future)
    with pytest.raises(TimeoutError):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.exception(0)


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_it_has_its_result_and_keeps_it(is_asked_before):
    future = LazyFuture()
    if is_asked_before:
        assert future.running()
    resolved(future, 7)
    assert (future.done(), future.running(), future.result(), future.exception(), future.cancel()) == (
        True, False, 7, None, False
    )  # fmt: skip
    assert "finished" in repr(future)
    with pytest.raises(InvalidStateError):
        resolved(future, 8)
    assert future.result() == 7


@pytest.mark.parametrize("is_asked_before", [True, False])
def test_it_raises_its_exception(is_asked_before):
    future = LazyFuture()
    if is_asked_before:
        assert not future.cancelled()
    future.set_exception(error := ValueError("no"))
    assert future.done()
    assert future.exception() is error
    with pytest.raises(ValueError, match="no"):
        future.result()


def test_nothing_is_made_for_one_that_nobody_waits_for():
    future = LazyFuture()
    assert not future.done()
    assert resolve_unwatched([(future, 7)]) == []
    assert (future.done(), future.result()) == (True, 7)
    assert vars(future).keys() == {"_state", "_result"}


def test_an_attribute_that_no_future_has_is_missing():
    future = LazyFuture()
    assert not hasattr(future, "colour")
    resolved(future, 7)
    assert not hasattr(future, "colour")
    assert future.result() == 7


def test_callbacks_are_called_once_before_and_after_its_result():
    future, called = LazyFuture(), []
    future.add_done_callback(lambda one: called.append(("before", one.result())))
    resolved(future, 7)
    future.add_done_callback(lambda one: called.append(("after", one.result())))
    assert called == [("before", 7), ("after", 7)]


def test_a_callback_of_one_that_was_resolved_unwatched_is_called_at_once():
    future, called = LazyFuture(), []
    resolved(future, 7)
    future.add_done_callback(called.append)
    assert called == [future]


def test_wait_and_as_completed_take_resolved_and_open_ones_together():
    first, second, third = LazyFuture(), LazyFuture(), Future()
    resolved(first, 1)
    assert wait([first, second, third], 0) == ({first}, {second, third})
    assert wait([first, second], return_when=FIRST_COMPLETED).done == {first}
    thread = in_a_thread(lambda: (third.set_result(3), resolved(second, 2)))
    assert {future.result() for future in as_completed([first, second, third])} == {1, 2, 3}
    assert wait([first, second, third], return_when=ALL_COMPLETED).not_done == set()
    thread.join()


def test_wait_ends_with_the_first_exception():
    first, second = LazyFuture(), LazyFuture()
    thread = in_a_thread(lambda: first.set_exception(ValueError()))
    assert wait([first, second], return_when=FIRST_EXCEPTION) == ({first}, {second})
    thread.join()


def test_a_task_awaits_it():
    async def main():
        future = LazyFuture()
        resolved(done := LazyFuture(), 1)
        thread = in_a_thread(lambda: resolved(future, 2))
        found = await asyncio.gather(*map(asyncio.wrap_future, (done, future)))
        thread.join()
        return found

    assert asyncio.run(main()) == [1, 2]


@pytest.mark.parametrize(
    "ask", [Future.result, lambda one: wait([one]), lambda one: next(as_completed([one]))]
)
def test_no_wait_is_lost_however_threads_meet(ask):
    """Each future is asked by two threads while a third one resolves it."""
    futures = [LazyFuture() for _ in range(500)]
    called = []

    def asks():
        for future in futures:
            ask(future)
            future.add_done_callback(called.append)

    threads = [in_a_thread(asks), in_a_thread(asks)]
    for number, future in enumerate(futures):
        resolved(future, number)
    for thread in threads:
        thread.join()
    assert [future.result() for future in futures] == list(range(500))
    assert len(called) == 1000


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_future_is_not_copied_as_its_copy_would_never_be_done(how):
    with pytest.raises(TypeError, match="cannot pickle"):
        how(LazyFuture())


def test_who_is_interrupted_while_the_parts_are_made_can_ask_again(monkeypatch):
    """1) Ctrl-C comes while a first wait makes the lock; 2) the program asks once more; 3) that wait must be notified."""
    future, made = LazyFuture(), []

    class Interrupting(Future):
        def __init__(self):
            super().__init__()
            made.append(self)
            if len(made) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(futures, "Future", Interrupting)
    with pytest.raises(KeyboardInterrupt):
        future.result(0)
    thread = in_a_thread(lambda: resolved(future, 7))
    assert future.result(10) == 7
    thread.join()


def test_a_future_that_raises_leaves_no_cycle():
    future = LazyFuture()
    future.set_exception(ValueError())
    seen = weakref.ref(future)
    gc.disable()
    try:
        with suppress(ValueError):
            future.result()
        del future
        assert seen() is None
    finally:
        gc.enable()
