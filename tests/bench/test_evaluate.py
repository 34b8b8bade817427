"""Perplexity over sliding windows, against transformers on the same tokens."""

import math

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from public_text import public_text
from text.families import make

from genwright import LLM
from genwright.bench.evaluate import evaluate, logprobs, spans
from genwright.errors import UserError
from genwright.text.config_file import read_text


@torch.no_grad()
def their_loss(model: transformers.PreTrainedModel, ids: list[int], window: int, stride: int) -> float:
    """transformers' loss, windows written out: the first whole, then `stride` new tokens each."""
    total, end = 0.0, min(window, len(ids))
    ends = [end]
    while end < len(ids):
        end = min(end + stride, len(ids))
        ends.append(end)
    for before, end in zip([1, *ends], ends, strict=False):
        start = max(0, end - window)
        labels = torch.tensor([[token if start + i >= before else -100 for i, token in enumerate(ids[start:end])]])
        loss = model(torch.tensor([ids[start:end]]), labels=labels).loss.item()
        total += loss * (end - before)
    return total / (len(ids) - 1)


@given(st.integers(2, 400), st.integers(2, 60), st.data())
def test_windows_predict_every_token_but_the_first_once(tokens, window, data):
    stride = data.draw(st.integers(1, window - 1))
    places = list(spans(tokens, window, stride))
    assert [i for place in places for i in range(place.scored, place.end)] == list(range(1, tokens))
    for place in places:
        assert 0 <= place.start < place.scored < place.end <= place.start + window
        assert place.start == 0 or place.scored - place.start >= window - stride


@pytest.mark.timeout(3600)  # the whole text takes minutes, and far more beside other work
def test_loss_equals_transformers_on_the_real_model(smollm2, full_size):
    text = public_text(100_000 if full_size else 2_000)
    window, stride = (1024, 1000) if full_size else (192, 120)
    llm = LLM(smollm2, device="cpu", dtype="float32", exact_inputs=True)
    found = evaluate(llm, text, window, stride)
    ids = llm.tokenizer.encode(text)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    )
    loss = their_loss(theirs.eval(), ids, window, stride)
    assert found.loss == pytest.approx(loss, rel=5e-5)  # 4 digits
    assert found.tokens == len(ids) - 1
    assert found.perplexity == pytest.approx(math.exp(loss), rel=2e-4)
    scored = text.removeprefix(llm.tokenizer.decode(ids[:1]))
    assert found.bits_per_byte == pytest.approx(loss * found.tokens / math.log(2) / len(scored.encode()), rel=1e-4)


def test_logprobs_of_ragged_batches_equal_transformers(tmp_path):
    model = make("qwen2", tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    generator = torch.Generator().manual_seed(3)
    sequences = [torch.randint(199, (n,), generator=generator).tolist() for n in (2, 300, 17, 64, 65, 300)]
    ticks: list[tuple[int, int]] = []
    found = logprobs(llm, sequences, 1, lambda done, total: ticks.append((done, total)))
    assert ticks == [(n + 1, 6) for n in range(6)]
    for sequence, entries in zip(sequences, found, strict=True):
        with torch.no_grad():
            scores = model(torch.tensor([sequence])).logits[0].log_softmax(-1)
        wanted = scores[:-1].gather(1, torch.tensor(sequence[1:])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor([e.logprob for e in entries]), wanted, atol=1e-4, rtol=1e-4)
        assert [next(iter(e.top)) for e in entries] == scores[:-1].argmax(-1).tolist()


def test_mistakes_are_sentences(smollm2, tmp_path):
    llm = LLM(smollm2, device="cpu", max_context=64)
    with pytest.raises(UserError, match="between 2 and 63"):
        evaluate(llm, "one two three", window=64)
    with pytest.raises(UserError, match="stride must be between 1 and 31"):
        evaluate(llm, "one two three", window=32, stride=32)
    with pytest.raises(UserError, match="two tokens or more, not 0"):
        evaluate(llm, "")
    with pytest.raises(UserError, match="needs a tokenizer"):
        evaluate(LLM("random:stories15m,layers=1", device="cpu"), "one")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="not UTF-8 text: byte 3"):
        read_text(tmp_path / "latin")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_text(tmp_path / "none")
