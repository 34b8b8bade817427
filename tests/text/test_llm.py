"""The public surface, on the real default model, against transformers on the same file."""

from pathlib import Path

import pytest
import torch
from text.checkpoints.random_gguf import write_random_gguf

from genwright import LLM, SamplingParams
from genwright.text.conversation import Conversation

QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List three prime numbers and say why they are prime.",
    "Translate 'good morning' into Spanish, German and Italian.",
)


@pytest.fixture(scope="module")
def llm(smollm2) -> LLM:
    return LLM(smollm2, device="cpu", dtype="float32", exact_inputs=True)


def test_greedy_chat_equals_transformers_on_the_same_file(llm, smollm2, full_size):
    import transformers

    options = {"gguf_file": smollm2.name, "dtype": torch.float32}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(smollm2.parent, **options).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    count = 64 if full_size else 8
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert llm.encode_chat(messages) == ids
        with torch.no_grad():
            out = theirs.generate(
                torch.tensor([ids]), max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=2
            )
        expected = out[0, len(ids) :].tolist()
        assert llm.chat(messages, SamplingParams(max_new_tokens=count)).ids == expected


def test_it_knows_paris(llm):
    result = llm.chat([{"role": "user", "content": QUESTIONS[0]}])
    assert "Paris" in result.text
    assert result.finish_reason == "stop"


def test_streamed_text_is_the_whole_text(llm):
    params = SamplingParams(max_new_tokens=48, temperature=1.0, seed=3)
    pieces = list(llm.stream("Ünïcödé 🙂🙃 and 漢字 are", params))
    result = llm.generate("Ünïcödé 🙂🙃 and 漢字 are", params)[0]
    assert "".join(piece.text for piece in pieces) == result.text
    assert [token for piece in pieces for token in piece.ids] == result.ids
    assert llm.tokenizer.decode(result.ids) == result.text


def test_the_same_seed_gives_the_same_tokens_alone_and_in_a_batch(llm):
    params = [SamplingParams(temperature=0.9, top_k=k, top_p=p, seed=s, max_new_tokens=12) for k, p, s in
              ((0, 1.0, 1), (50, 1.0, 2), (0, 0.9, 3), (20, 0.8, 4))]  # fmt: skip
    prompts = ["The weather today", "Once upon a time there was", "def main():", "2 + 2 ="]
    together = llm.generate(prompts, params)
    assert [r.ids for r in together] == [llm.generate(p, q)[0].ids for p, q in zip(prompts, params, strict=True)]


def test_samples_of_one_prompt(llm):
    params = SamplingParams(temperature=1.2, n=3, seed=5, max_new_tokens=8)
    first = llm.generate("Hello", params)[0]
    texts = [first.text, *(sample.text for sample in first.samples)]
    assert len(set(texts)) == 3
    again = llm.generate("Hello", params)[0]
    assert texts == [again.text, *(sample.text for sample in again.samples)]
    drawn = llm.generate("Hello", SamplingParams(temperature=1.2, max_new_tokens=8))[0]
    repeat = llm.generate("Hello", SamplingParams(temperature=1.2, max_new_tokens=8, seed=drawn.seed))[0]
    assert drawn.ids == repeat.ids, "a drawn seed is reported"


def test_logprobs_of_prompt_and_answer_equal_the_logits(llm):
    prompt = llm.tokenizer.encode("The quick brown fox jumps over the lazy dog")
    llm.generate([prompt], SamplingParams(max_new_tokens=4))  # the prefix cache must not swallow the prompt's logits
    result = llm.generate([prompt], SamplingParams(max_new_tokens=4, logprobs=2, prompt_logprobs=True))[0]
    scores = llm.logits(prompt + result.ids).log_softmax(dim=-1)
    tokens = prompt + result.ids
    entries = result.prompt_logprobs + result.logprobs
    assert entries[0] is None
    assert len(entries) == len(tokens)
    for position, entry in enumerate(entries[1:], 1):
        assert entry.id == tokens[position]
        assert entry.logprob == pytest.approx(scores[position - 1, entry.id].item(), abs=1e-3)
        assert len(entry.top) == 2


def test_turn_five_prefills_only_its_own_tokens(smollm2):
    llm = LLM(smollm2, device="cpu", dtype="float32")
    conversation = Conversation(llm, llm.tokenizer, system="You are terse.")
    computed = 0
    run = llm.engine.executor.run

    def counting(chunks, known=None):
        nonlocal computed
        computed += sum(len(chunk.tokens) for chunk in chunks)
        return run(chunks, known)

    llm.engine.executor.run = counting
    known = 0
    for turn in range(5):
        computed = 0
        pieces = list(
            conversation.ask(f"Question {turn}: what is {turn} plus {turn}?", SamplingParams(max_new_tokens=20))
        )
        answered = sum(len(piece.ids) for piece in pieces)
        spoken = len(conversation._ids)
        prompt = spoken - answered + (pieces[-1].ids[-1:] == [2])
        assert computed == prompt - known + answered - 1, f"turn {turn}"
        # All but a last token that was never fed back is in the cache.
        known = prompt + answered - 1
    assert known > 150


def test_keep_keeps_types_without_a_format_of_ours(tmp_path: Path) -> None:
    path = write_random_gguf(tmp_path / "model.gguf", lambda name: "Q6_K" if "attn_v" in name else "Q4_K")
    settings = {"device": "cpu", "dtype": "float32", "backend": "torch"}
    plain, kept = LLM(path, **settings), LLM(path, **settings, quant="keep")
    assert torch.equal(kept.logits([5, 9, 200]), plain.logits([5, 9, 200]))
    plain_bytes, kept_bytes = (llm.engine.executor.model.step_bytes for llm in (plain, kept))
    assert kept_bytes < 0.16 * plain_bytes


@pytest.mark.parametrize(("has_bf16", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_float16_checkpoints_run_in_a_faster_type_on_a_cpu(has_bf16, dtype, monkeypatch):
    monkeypatch.setattr("genwright.text.build.has_bf16", lambda: has_bf16)
    with LLM("random:opt-125m,layers=1", device="cpu") as llm:
        assert llm.model.dtype == dtype
    with LLM("random:opt-125m,layers=1", device="cpu", dtype="float16") as llm:
        assert llm.model.dtype == torch.float16
