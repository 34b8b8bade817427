"""The multi-token-prediction layer as a draft: it proposes what transformers does, and the text is unchanged."""

import random

import numpy as np
import pytest
import scipy.stats
import torch
from safetensors.torch import save_file
from text.cache.invariants import available, prefixes
from text.deepseek_folders import LAYERS, transformers_layer, with_draft
from text.engine.setup import check_pages, drain, engine_of, request
from text.families import make
from transformers.cache_utils import MtpCache

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.text.drafts.mtp import MtpDraft
from genwright.text.drafts.speculation import Pace, Speculation
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.request import Request
from genwright.text.ops.torch_ops import TorchOps

GREEDY = SamplingParams(max_new_tokens=25, ignore_eos=True)
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
    return LLM(made[0], device="cpu", dtype="float32", draft="mtp", speculate_k=K, max_context=512)


class FullPace(Pace):
    def length(self, most: int, cost: float) -> int:
        return most


class Steady(Speculation):
    """Always proposes as many tokens as allowed."""

    def guess(self, requests, budget, reserve):
        self._paces = {r: FullPace() for r in requests}
        return super().guess(requests, budget, reserve)


def speculating(llm: LLM, pages: int = 64, max_batch: int = 16, max_tokens: int = 50) -> Engine:
    executor = ResidentExecutor(llm.model, TorchOps(), pages, max_batch, max_tokens, llm.engine.executor.mtp)
    context = min(llm.max_context, pages * PAGE)
    return Engine(executor, max_batch, max_tokens, context, Steady(MtpDraft(executor), K, row_cost=0.05))


def accepted(requests: list[Request]) -> tuple[int, int]:
    return sum(sum(r.acceptance.accepted) for r in requests), sum(sum(r.acceptance.drafted) for r in requests)


@torch.no_grad()
def expected_guess(theirs, layer, tokens: list[int], count: int) -> list[int]:
    """transformers over the whole of what is known, and its own hidden state fed back for each further token."""
    hidden = theirs.model(torch.tensor([tokens[:-1]])).last_hidden_state
    tokens, guess = list(tokens[1:]), []
    while len(guess) < count:
        cache = MtpCache(config=theirs.config.get_mtp_config())
        out = layer.forward_layer(0, hidden, torch.arange(len(tokens))[None], cache, input_ids=torch.tensor([tokens]))
        guess.append(layer.shared_head(out)[0, -1].argmax().item())
        tokens.append(guess[-1])
        hidden = torch.cat((hidden, out[:, -1:]), dim=1)
    return guess


def test_every_guess_is_transformers(made, llm):
    """After chunked prompts, with accepted and rejected proposals, in a batch."""
    engine = speculating(llm)
    draft, calls = engine.speculation.draft, []
    plain_guess = draft.guess

    def recorded(wanted):
        guesses = plain_guess(wanted)
        calls.extend((list(r.tokens), n, guess.tokens) for (r, n), guess in zip(wanted, guesses, strict=True))
        return guesses

    draft.guess = recorded
    requests = [request(prompt, GREEDY) for prompt in prompts([1, 2, 63, 64, 65, 130])]
    drain(engine, requests)
    stood, drafted = accepted(requests)
    assert 0.1 < stood / drafted < 0.9, "right at times and wrong at times"
    assert len(calls) > 40
    for tokens, count, guess in calls:
        assert guess == expected_guess(*made[1:], tokens, count)


def test_greedy_tokens_are_those_without_a_draft(llm):
    texts = prompts([1, 5, 64, 100, 200, 17, 128], seed=1)
    plain = drain(engine_of(llm, pages=64), [request(text, GREEDY) for text in texts])
    requests = [request(text, GREEDY) for text in texts]
    engine = speculating(llm)
    assert drain(engine, requests, each_step=check_pages) == plain
    assert available(engine.pool) == engine.pool.cache.pages
    assert [r.ids for r in llm.generate(texts, GREEDY)] == plain
    few = [request(text, GREEDY) for text in texts]
    assert drain(speculating(llm, pages=6), few, each_step=check_pages) == plain, "pages run out on the way"
    assert accepted(few)[0] > 0


def test_a_shared_prefix_brings_the_layers_rows_along(llm):
    engine, (text,) = speculating(llm), prompts([150])
    first, second = request(text, GREEDY), request(text, GREEDY)
    outputs = drain(engine, [first]) + drain(engine, [second], each_step=check_pages)
    assert outputs[0] == outputs[1]
    assert second.cached_tokens == 149
    assert accepted([second]) == accepted([first])
    rows = engine.pool.cache.layers[-1].rows["latent"]
    assert all((rows[node.pages[0], : len(node.tokens) - 1] != 0).any(dim=-1).all() for node in prefixes(engine.pool))


def test_sampled_tokens_keep_their_distribution(llm):
    """The first two tokens that a guess can stand for, by other seeds, at a temperature that leaves few choices."""
    params = SamplingParams(max_new_tokens=3, ignore_eos=True, temperature=1.0, top_k=4)
    (text,) = prompts([9])
    counts, answers = [], 600
    for engine, first in ((engine_of(llm, pages=64), 0), (speculating(llm), answers)):
        requests = [Request(text, params, seed) for seed in range(first, first + answers)]
        outputs = drain(engine, requests)
        counts.append(np.bincount([(7 * out[1] + out[2]) % 16 for out in outputs], minlength=16))
    assert accepted(requests)[0] > answers / 20
    table = np.stack(counts)
    assert scipy.stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 1e-4


def test_a_layer_that_is_not_numbers_or_lacks_memory_costs_only_guesses(llm):
    texts = prompts([5, 70])
    plain = drain(engine_of(llm, pages=64), [request(text, GREEDY) for text in texts])
    engine = speculating(llm)
    predict, calls = engine.executor.predict, []

    def failing(chunks, hidden):
        calls.append(len(chunks))
        if len(calls) % 3 == 0:
            raise torch.OutOfMemoryError("no")
        logits, hidden = predict(chunks, hidden)
        return (torch.full_like(logits, float("nan")), hidden) if len(calls) % 3 == 1 else (logits, hidden)

    engine.executor.predict = failing
    assert drain(engine, [request(text, GREEDY) for text in texts], each_step=check_pages) == plain
    assert len(calls) > 10


def test_a_checkpoint_without_the_layer_is_told_so(tmp_path):
    for family in ("deepseek-v3", "llama"):
        make(family, tmp_path / family)
        with pytest.raises(UserError, match="multi-token-prediction"):
            LLM(tmp_path / family, device="cpu", draft="mtp")
