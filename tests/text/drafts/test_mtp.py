"""The multi-token-prediction layer as a draft: it proposes what transformers does, and the text is unchanged."""

import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from text.cache.invariants import available, prefixes
from text.deepseek_folders import LAYERS, transformers_layer, with_draft
from text.drafts.setup import Steady, acceptance, answer, mix, run_mix
from text.engine.setup import check_pages, drain, engine_of, request
from text.families import make
from transformers.cache_utils import MtpCache

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.text.drafts.mtp import MtpDraft
from genwright.text.drafts.proposal_length import StepCost
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.request import Request
from genwright.text.ops.cpu_ops import CpuOps

GREEDY = SamplingParams(max_new_tokens=25, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, top_k=4, seed=3)
K = 3


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    """No two begin alike."""
    rng = random.Random(seed)
    return [[3 + i, *(rng.randrange(3, 199) for _ in range(length - 1))] for i, length in enumerate(lengths)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A DeepSeek-V3 whose last token says most about the next, and a layer that knows as much; in transformers too."""
    folder = tmp_path_factory.mktemp("mtp")
    theirs = make("deepseek-v3", folder)
    for name, parameter in theirs.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj", "down_proj.weight")):
            parameter.data *= 0.003
    theirs.save_pretrained(folder)
    tensors = with_draft(folder)
    own = f"model.layers.{LAYERS}."
    dim = tensors["model.norm.weight"].shape[0]
    tensors[f"{own}eh_proj.weight"] = torch.cat((torch.eye(dim), tensors[f"{own}eh_proj.weight"][:, dim:] / 4), dim=1)
    tensors[f"{own}shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
    for name in tensors:
        if name.startswith(own) and name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] *= 0.02
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder, theirs, transformers_layer(theirs, tensors)


@pytest.fixture(scope="module")
def llm(made) -> LLM:
    return LLM(made[0], device="cpu", dtype="float32", draft="mtp", speculate_k=K, max_context=512, deterministic=True)


def speculating(llm: LLM, pages: int = 64, max_batch: int = 16, max_tokens: int = 50, steps_ahead: int = 0) -> Engine:
    mtp = llm.engine.executor.mtp
    executor = ResidentExecutor(llm.model, CpuOps(deterministic=True), pages, max_batch, max_tokens, mtp)
    context = min(llm.max_context, pages * PAGE)
    return Engine(executor, max_batch, max_tokens, context, Steady(MtpDraft(executor), K, StepCost(0.05)), steps_ahead)


def accepted(requests: list[Request]) -> tuple[int, int]:
    total = acceptance(requests)
    return sum(total.accepted), sum(total.drafted)


@torch.no_grad()
def expected_proposal(theirs, layer, tokens: list[int], count: int) -> list[int]:
    """transformers over the whole of what is known, and its own hidden state fed back for each further token."""
    hidden = theirs.model(torch.tensor([tokens[:-1]])).last_hidden_state
    tokens, proposal = list(tokens[1:]), []
    while len(proposal) < count:
        cache = MtpCache(config=theirs.config.get_mtp_config())
        out = layer.forward_layer(0, hidden, torch.arange(len(tokens))[None], cache, input_ids=torch.tensor([tokens]))
        proposal.append(layer.shared_head(out)[0, -1].argmax().item())
        tokens.append(proposal[-1])
        hidden = torch.cat((hidden, out[:, -1:]), dim=1)
    return proposal


def test_every_proposal_is_that_of_transformers(made, llm):
    """After chunked prompts, with accepted and rejected proposals, in a batch."""
    engine = speculating(llm)
    draft, calls = engine.speculation.draft, []
    propose = draft.propose

    def recorded(wanted, sampler):
        places, tokens = propose(wanted, sampler)
        calls.extend((list(r.tokens), tokens[each].tolist()) for r, each in places.items())
        return places, tokens

    draft.propose = recorded
    requests = [request(prompt, GREEDY) for prompt in prompts([1, 2, 63, 64, 65, 130])]
    drain(engine, requests)
    some, drafted = accepted(requests)
    assert 0.1 < some / drafted < 0.9, "right at times and wrong at times"
    assert len(calls) > 40
    for tokens, proposal in calls:
        assert proposal == expected_proposal(*made[1:], tokens, len(proposal))


@pytest.mark.parametrize(("params", "steps_ahead"), [(GREEDY, 0), (SAMPLED, 1)], ids=["greedy", "sampled, ahead"])
def test_tokens_are_those_without_a_draft(llm, params, steps_ahead):
    texts = prompts([1, 64, 100, 17, 128], seed=1)
    plain = drain(engine_of(llm, pages=64, deterministic=True), [request(text, params) for text in texts])
    requests = [request(text, params) for text in texts]
    engine = speculating(llm, steps_ahead=steps_ahead)
    assert drain(engine, requests, each_step=check_pages) == plain
    assert available(engine.pool) == engine.pool.cache.pages
    assert 0.05 < accepted(requests)[0] / accepted(requests)[1] < 0.9
    assert [r.ids for r in llm.generate(texts, params)] == plain
    few = [request(text, params) for text in texts]
    assert drain(speculating(llm, pages=5, steps_ahead=steps_ahead), few, each_step=check_pages) == plain
    assert accepted(few)[0] > 0


def test_a_placed_cache_has_the_layers_rows_in_every_tier(made, llm, tmp_path):
    policy = "0,100,30,40,100,0,micro_batch=2,micro_batches=3"
    settings = {"draft": "mtp", "max_context": 512, "deterministic": True, "offload_dir": str(tmp_path)}
    placed = LLM(made[0], device="cpu", dtype="float32", offload=policy, **settings)
    executor = placed.engine.executor
    runs = []
    for engine in (speculating(llm), Engine(executor, 6, 50, 512, Steady(MtpDraft(executor), K, StepCost(0.05)))):
        requests = [request(text, GREEDY) for text in prompts([1, 64, 100, 17, 128], seed=1)]
        runs.append((drain(engine, requests, each_step=check_pages), accepted(requests)))
    assert runs[0] == runs[1], "the same tokens, and as many of them proposed and accepted"


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_options_arrivals_and_cancellations_change_nothing(llm, steps_ahead):
    expected, requests = (mix(12, seed=3) for _ in range(2))
    drain(engine_of(llm, pages=64, deterministic=True), expected)
    run_mix(speculating(llm, pages=12, steps_ahead=steps_ahead), requests, random.Random(5))
    assert {r.finish_reason for r in requests} == {"length", "stop", "cancelled"}
    for got, whole in zip(requests, expected, strict=True):
        if got.finish_reason == "cancelled":
            assert got.output == whole.output[: len(got.output)]
        else:
            assert answer(got) == answer(whole)


def test_a_shared_prefix_brings_the_layers_rows_along(llm):
    engine, (text,) = speculating(llm), prompts([150])
    first, second = request(text, GREEDY), request(text, GREEDY)
    outputs = drain(engine, [first]) + drain(engine, [second], each_step=check_pages)
    assert outputs[0] == outputs[1]
    assert second.cached_tokens == 149
    assert accepted([second]) == accepted([first])
    rows = engine.pool.cache.layers[-1].rows["latent"]
    assert all((rows[node.pages[0], : len(node.tokens) - 1] != 0).any(dim=-1).all() for node in prefixes(engine.pool))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_nan_or_lack_of_memory_in_the_layer_costs_only_proposals(llm, params):
    texts = prompts([5, 70])
    plain = drain(engine_of(llm, pages=64, deterministic=True), [request(text, params) for text in texts])
    engine = speculating(llm)
    predict, calls = engine.executor.predict, []

    def failing(chunks, hidden, known=None):
        calls.append(len(chunks))
        if len(calls) % 3 == 0:
            raise torch.OutOfMemoryError("no")
        logits, hidden = predict(chunks, hidden, known)
        return (torch.full_like(logits, float("nan")), hidden) if len(calls) % 3 == 1 else (logits, hidden)

    engine.executor.predict = failing
    assert drain(engine, [request(text, params) for text in texts], each_step=check_pages) == plain
    assert len(calls) > 10


def test_a_checkpoint_without_the_layer_is_told_so(tmp_path):
    for family in ("deepseek-v3", "llama"):
        make(family, tmp_path / family)
        with pytest.raises(UserError, match="multi-token-prediction"):
            LLM(tmp_path / family, device="cpu", draft="mtp")
