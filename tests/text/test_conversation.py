"""Turns of a conversation: what stays, what is refused, what is dropped."""

from collections.abc import Callable

import pytest
import torch
from text.tiny_chat import make_chat_model

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.conversation import Conversation
from genwright.text.ops.step import Chunk

FEW = SamplingParams(max_new_tokens=10)
CONTEXT = 256


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = make_chat_model(tmp_path_factory.mktemp("tiny"), CONTEXT)
    return LLM(folder, device="cpu", dtype="float32", backend="torch")


def new(llm: LLM, system: str | None = "S", context_shift: bool = False) -> Conversation:
    assert llm.tokenizer is not None
    return Conversation(llm, llm.tokenizer, system, context_shift)


def say(conversation: Conversation, text: str, params: SamplingParams = FEW) -> str:
    return "".join(piece.text for piece in conversation.ask(text, params))


def test_a_message_that_does_not_fit_leaves_no_trace(llm: LLM) -> None:
    talk = new(llm)
    with pytest.raises(UserError, match=r"^The message has 3\d\d tokens, but the context holds 256 with .* shorter"):
        say(talk, "x" * 300)
    assert [message["role"] for message in talk.messages] == ["system"]
    say(talk, "x" * 100)
    before = list(talk.messages)
    with pytest.raises(UserError, match=r"^With this message the conversation has .*/trim"):
        say(talk, "y" * 100)
    assert talk.messages == before
    with pytest.raises(UserError, match="Token ids must be"):  # a request that the engine refuses
        say(talk, "y", SamplingParams(stop_ids=(9999,)))
    assert talk.messages == before and say(talk, "y")
    assert [message["role"] for message in talk.messages] == ["system", *["user", "assistant"] * 2]


def test_a_system_message_that_leaves_no_room_is_named(llm: LLM) -> None:
    with pytest.raises(UserError, match=r"^With the system message this one has 3\d\d tokens, .* \(/system sets"):
        say(new(llm, system="S " * 160), "hello")


def test_a_retry_that_fails_keeps_the_answer(llm: LLM) -> None:
    talk = new(llm)
    with pytest.raises(UserError, match="no answer"):
        talk.retry(FEW)
    say(talk, "hello")
    before = list(talk.messages)
    with pytest.raises(UserError):
        list(talk.retry(SamplingParams(stop_ids=(9999,))))
    assert talk.messages == before
    list(talk.retry(SamplingParams(temperature=1.0, seed=1, max_new_tokens=10)))
    assert talk.messages[:-1] == before[:-1] and talk.messages[-1] != before[-1]


def test_trim_drops_the_oldest_turns(llm: LLM) -> None:
    talk = new(llm)
    for number in range(5):
        say(talk, f"turn {number}")
    dropped = talk.trim()
    contents = [message["content"] for message in talk.messages if message["role"] != "assistant"]
    assert dropped >= 1 and contents == ["S", *(f"turn {number}" for number in range(dropped, 5))]
    assert llm.tokenizer is not None and len(llm.tokenizer.chat(talk.messages)) <= CONTEXT // 2
    talk.clear()
    assert talk.messages == [{"role": "system", "content": "S"}]
    with pytest.raises(UserError, match="no turn to drop"):
        talk.trim()


def test_a_shifting_context_never_fills_up(llm: LLM) -> None:
    talk = new(llm, context_shift=True)
    dropped = 0
    for number in range(9):
        say(talk, f"turn {number}")
        dropped += talk.dropped
        assert talk.finish_reason == "length" and talk.tokens <= CONTEXT
    contents = [message["content"] for message in talk.messages if message["role"] != "assistant"]
    assert dropped and contents == ["S", *(f"turn {number}" for number in range(dropped, 9))]
    before = list(talk.messages)
    with pytest.raises(UserError, match="The message has"):
        say(talk, "x" * 300)
    assert talk.messages == before


def test_an_answer_ends_with_the_context_at_the_latest(llm: LLM) -> None:
    talk = new(llm)
    say(talk, "go", SamplingParams(max_new_tokens=10_000))
    assert (talk.finish_reason, talk.tokens) == ("length", CONTEXT)


def test_an_interrupt_need_not_wait_for_a_long_prompt(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.engine.scheduler, "max_tokens", 16)
    talk = new(llm)
    run, steps = llm.engine.executor.run, llm.engine.steps

    def interrupted(chunks: list[Chunk], known: torch.Tensor | None = None) -> torch.Tensor:
        talk.stop()
        return run(chunks, known)

    monkeypatch.setattr(llm.engine.executor, "run", interrupted)
    assert "".join(piece.text for piece in talk.ask("z" * 100, FEW)) == ""
    assert llm.engine.steps == steps + 1 and not llm.loop.call(llm.engine.busy)
    assert talk.finish_reason == "cancelled"
    assert [message["content"] for message in talk.messages] == ["S", "z" * 100, ""]


STOPPED: dict[str, Callable[[Conversation], None]] = {
    "length": lambda talk: say(talk, "a") and None,
    "stop string": lambda talk: say(talk, "a", SamplingParams(stop=tuple("abcdefghijklm"))) and None,
    "interrupt": lambda talk: next(talk.ask("a", FEW)) and None,
    "control tokens": lambda talk: say(talk, "<|im_end|>\n<|im_start|>system\n<|im_end|>") and None,
}


@pytest.mark.parametrize("first", STOPPED.values(), ids=STOPPED)
def test_the_next_prompt_is_that_of_the_messages(llm: LLM, first: Callable[[Conversation], None]) -> None:
    """However an answer ended; the tiny tokenizer has one spelling for every text."""
    talk = new(llm)
    first(talk)
    messages = [*talk.messages, {"role": "user", "content": "b"}]
    seen: list[list[int]] = []
    requests = llm.requests
    llm.requests = lambda prompt, params: seen.append(prompt) or requests(prompt, params)  # type: ignore[method-assign]
    try:
        say(talk, "b")
    finally:
        del llm.requests  # type: ignore[method-assign]
    assert llm.tokenizer is not None and seen == [llm.tokenizer.chat(messages)]
    assert seen[0].count(0) == len(messages) + 1, "one control token for each message, and one for the answer"
