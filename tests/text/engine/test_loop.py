"""Callers in any number of threads: each gets the answer that it gets alone, and none can stop the others."""

import gc
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from text.cache.invariants import available
from text.engine.setup import check_pages
from text.tiny_chat import make_chat_model

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.engine.request import Piece, Result

ENDLESS = SamplingParams(max_new_tokens=3000)
FEW = SamplingParams(max_new_tokens=8)
Question = tuple[list[int], SamplingParams]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("tiny"))


def load(folder: Path) -> LLM:
    return LLM(folder, device="cpu", dtype="float32", deterministic=True, cpu_mem=0.02)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder)


def questions(count: int) -> list[Question]:
    rng = random.Random(0)
    return [
        (
            [rng.randrange(2, 200) for _ in range(rng.randint(1, 60))],
            SamplingParams(max_new_tokens=rng.randint(1, 12), temperature=rng.choice([0.0, 1.0]), seed=seed),
        )
        for seed in range(count)
    ]


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "genwright-engine"]


def is_clean(llm: LLM) -> bool:
    """Whether no request is left, in the engine or in the loop."""

    def check() -> bool:
        check_pages(llm.engine)
        pool = llm.engine.pool
        return not llm.engine.busy() and not llm.loop._owners and available(pool) == pool.cache.pages

    return llm.loop.call(check)


def at_step(llm: LLM, number: int, do: Callable[[], Any], patch: pytest.MonkeyPatch) -> None:
    """Do something on the engine's thread at the step of this number, from now on."""
    run, steps = llm.engine.executor.run, iter(range(1 << 30))

    def hooked(chunks: Any, known: torch.Tensor | None = None) -> torch.Tensor:
        if next(steps) == number:
            do()
        return run(chunks, known)

    patch.setattr(llm.engine.executor, "run", hooked)


@pytest.mark.parametrize("threads", [2, 8, 64])
def test_every_thread_gets_the_answers_it_gets_alone(llm: LLM, threads: int, full_size: bool) -> None:
    asked = questions(40)
    alone = [llm.generate([prompt], params)[0] for prompt, params in asked]
    each = 20 if full_size else 128 // threads

    def ask(thread: int) -> None:
        rng = random.Random(thread)
        for _ in range(each):
            index = rng.randrange(len(asked))
            prompt, params = asked[index]
            if rng.random() < 0.5:
                got = llm.generate([prompt], params)[0]
                assert (got.ids, got.text) == (alone[index].ids, alone[index].text)
            else:
                pieces = list(llm.stream(prompt, params))
                assert [token for piece in pieces for token in piece.ids] == alone[index].ids
                assert "".join(piece.text for piece in pieces) == alone[index].text
                assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [alone[index].finish_reason]

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(ask, range(threads)))
    assert is_clean(llm)


def test_memory_is_flat_and_ended_requests_are_forgotten(
    llm: LLM, full_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, made = llm.requests, weakref.WeakSet[Any]()

    def recorded(*arguments: Any) -> Any:
        made.update(found := requests(*arguments))
        return found

    monkeypatch.setattr(llm, "requests", recorded)
    asked = questions(50)

    def ask(count: int) -> tuple[int, int]:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: llm.generate([asked[n % 50][0]], asked[n % 50][1]), range(count)))
        gc.collect()
        return len(gc.get_objects()), psutil.Process().memory_info().rss

    ask(200)  # fills the prefix tree
    (objects, memory), (objects_after, memory_after) = ask(100), ask(10_000 if full_size else 400)
    assert objects_after - objects < 100
    assert memory_after - memory < 16 << 20  # the allocator of each thread keeps some
    assert not made and is_clean(llm)


def test_close_ends_the_thread_and_what_runs(folder: Path) -> None:
    before, started = engine_threads(), threading.Event()
    with load(folder) as llm:
        assert engine_threads() == before, "the thread starts with the first request"
        llm.generate([[5]], FEW)
        assert len(engine_threads()) == len(before) + 1
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(llm.generate, [[5]], ENDLESS, lambda piece: started.set())
            started.wait()
            llm.close()
            assert running.result()[0].finish_reason == "cancelled"
    assert engine_threads() == before
    llm.close()
    for call in (lambda: llm.generate([[5]]), lambda: list(llm.stream([5])), lambda: llm.logits([5])):
        with pytest.raises(UserError, match=r"has been closed; load it again\.$"):
            call()


def test_a_model_that_is_garbage_ends_its_thread(folder: Path) -> None:
    before = engine_threads()
    llm = load(folder)
    llm.generate([[5]], FEW)
    stream = llm.stream([5], ENDLESS)
    next(stream)
    engine = weakref.ref(llm.engine)
    del llm
    assert len(engine_threads()) == len(before) + 1, "the stream still needs it"
    del stream
    gc.collect()
    assert engine_threads() == before and engine() is None


def test_a_slow_callback_does_not_stop_others(llm: LLM) -> None:
    blocked, free, asked = threading.Event(), threading.Event(), questions(1)
    expected = llm.generate([asked[0][0]], asked[0][1])[0].ids

    def slow(piece: Piece) -> None:
        blocked.set()
        assert free.wait(60)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(llm.generate, [[5, 6]], FEW, slow)
        blocked.wait()
        stream = llm.stream([7], ENDLESS)  # and one that is not read
        next(stream)
        assert llm.generate([asked[0][0]], asked[0][1])[0].ids == expected
        free.set()
        assert running.result()[0].ids == llm.generate([[5, 6]], FEW)[0].ids
    stream.close()
    assert is_clean(llm)


def test_a_cancelled_result_is_what_the_callback_was_given(llm: LLM) -> None:
    params = SamplingParams(max_new_tokens=300, logprobs=1)
    seen: dict[int, list[Piece]] = {0: [], 1: []}

    def callback(piece: Piece) -> bool:
        seen[piece.index].append(piece)
        if piece.index == 0 or len(seen[1]) < 3:
            return True
        steps = llm.engine.steps
        while llm.engine.steps < steps + 5:  # the engine goes on meanwhile
            time.sleep(0.001)
        return False

    whole, cut = llm.generate([[5, 6], [7]], params, callback)
    for result, pieces in ((whole, seen[0]), (cut, seen[1])):
        assert result.ids == [token for piece in pieces for token in piece.ids]
        assert result.text == "".join(piece.text for piece in pieces)
        assert [entry.id for entry in result.logprobs or []] == result.ids
    assert (whole.finish_reason, len(whole.ids)) == ("length", 300)
    assert (cut.finish_reason, len(cut.ids)) == ("cancelled", 3)
    last = llm.generate([[7]], FEW, lambda piece: piece.finish_reason is None)[0]
    assert last.finish_reason == "length", "too late to cancel"


def test_an_exception_in_the_engine_reaches_every_caller(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise LookupError("a broken kernel")

    def ask(_: int) -> list[Result]:
        together.wait()
        return llm.generate([[5], [6]], ENDLESS)

    expected, together = llm.generate([[5]], FEW)[0].ids, threading.Barrier(4)
    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as pool:
        at_step(llm, 200, fail, patch)
        running = [pool.submit(ask, number) for number in range(4)]
        for future in running:
            with pytest.raises(LookupError, match="a broken kernel"):
                future.result()
    assert is_clean(llm)
    assert llm.generate([[5]], FEW)[0].ids == expected
    with pytest.raises(ZeroDivisionError):
        llm.loop.call(lambda: 1 / 0)


def test_a_caller_that_is_gone_is_cancelled(llm: LLM) -> None:
    gone = threading.Event()

    def deliver(delivery: object) -> None:
        gone.set()
        raise RuntimeError("Event loop is closed")

    llm.loop.submit(llm.requests([5], ENDLESS), deliver)
    expected = llm.generate([[6]], FEW)[0].ids
    gone.wait()
    assert is_clean(llm)
    assert llm.generate([[6]], FEW)[0].ids == expected


def test_ctrl_c_cancels_the_callers_requests(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        at_step(llm, 3, lambda: os.kill(os.getpid(), signal.SIGINT), patch)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5], [6]], ENDLESS)
    assert is_clean(llm)


def test_one_invalid_request_stops_all_of_the_call(llm: LLM) -> None:
    steps = llm.engine.steps
    with pytest.raises(UserError, match="Token ids must be between"):
        llm.generate([[5], [1 << 20]], FEW)
    assert is_clean(llm) and llm.engine.steps == steps


def test_logits_run_between_steps(llm: LLM) -> None:
    expected = llm.logits([5, 6, 7])
    stream = llm.stream([7], ENDLESS)
    next(stream)
    assert torch.equal(llm.logits([5, 6, 7]), expected)
    stream.close()


def test_the_engine_computes_with_the_callers_number_of_threads(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    used, before = list[int](), torch.get_num_threads()
    at_step(llm, 0, lambda: used.append(torch.get_num_threads()), monkeypatch)
    torch.set_num_threads(before + 1)
    try:
        llm.generate([[5]], FEW)
    finally:
        torch.set_num_threads(before)
    assert used == [before + 1]
