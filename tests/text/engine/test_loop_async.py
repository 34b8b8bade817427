"""Callers of asyncio: answers as alone, and a task that is cancelled cancels its request."""

import asyncio
import random
from pathlib import Path

import pytest
from text.engine.test_loop import ENDLESS, FEW, is_clean, load, questions
from text.tiny_chat import make_chat_model

from genwright import LLM
from genwright.errors import UserError


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return load(make_chat_model(tmp_path_factory.mktemp("tiny")))


def test_every_task_gets_the_answers_it_gets_alone(llm: LLM, full_size: bool) -> None:
    asked = questions(40)
    alone = [llm.generate([prompt], params)[0] for prompt, params in asked]
    each = 20 if full_size else 2

    async def ask(task: int) -> None:
        rng = random.Random(task)
        for _ in range(each):
            index = rng.randrange(len(asked))
            prompt, params = asked[index]
            if rng.random() < 0.5:
                got = (await llm.agenerate([prompt], params))[0]
                assert (got.ids, got.text) == (alone[index].ids, alone[index].text)
            else:
                pieces = [piece async for piece in llm.astream(prompt, params)]
                assert [token for piece in pieces for token in piece.ids] == alone[index].ids
                assert "".join(piece.text for piece in pieces) == alone[index].text

    async def main() -> None:
        await asyncio.gather(*map(ask, range(64)))

    asyncio.run(main())
    assert is_clean(llm)


def test_leaving_a_stream_and_cancelling_a_task_cancel_the_request(llm: LLM) -> None:
    async def leave() -> None:
        async for _ in llm.astream([5], ENDLESS):
            break
        for _ in range(5):  # asyncio closes the generator in a task of its own
            await asyncio.sleep(0)
        assert is_clean(llm)

    async def read(started: asyncio.Event) -> None:
        async for _ in llm.astream([5], ENDLESS):
            started.set()

    async def cancel() -> None:
        started = asyncio.Event()
        tasks = [asyncio.create_task(read(started)), asyncio.create_task(llm.agenerate([[5], [6]], ENDLESS))]
        await started.wait()
        for task in tasks:
            task.cancel()
        assert [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)] == [
            asyncio.CancelledError,
            asyncio.CancelledError,
        ]
        assert is_clean(llm)

    asyncio.run(leave())
    asyncio.run(cancel())


def test_an_event_loop_that_ends_cancels_its_requests(llm: LLM) -> None:
    kept = []

    async def abandon() -> None:
        kept.append(llm.astream([5], ENDLESS))
        await anext(kept[0])

    asyncio.run(abandon())
    assert is_clean(llm)


def test_errors_are_raised_in_the_task(llm: LLM, tmp_path: Path) -> None:
    async def wrong() -> None:
        with pytest.raises(UserError, match="at least one token"):
            await llm.agenerate([[5], []])
        with pytest.raises(UserError, match="at least one token"):
            await anext(llm.astream([]))

    async def closed() -> None:
        own = load(make_chat_model(tmp_path))
        task = asyncio.create_task(own.agenerate([[5]], ENDLESS))
        await anext(own.astream([6], FEW))
        await asyncio.to_thread(own.close)
        assert (await task)[0].finish_reason == "cancelled"
        with pytest.raises(UserError, match="has been closed"):
            await own.agenerate([[5]])

    asyncio.run(wrong())
    asyncio.run(closed())
