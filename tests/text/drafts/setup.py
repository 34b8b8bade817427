"""Engines with a draft, with deterministic ops, so that tokens can be compared with those of an engine without one."""

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from text.engine.setup import check_pages

from genwright import LLM, SamplingParams
from genwright.kernels import PAGE, sampling
from genwright.text.drafts.draft_model import DraftModel
from genwright.text.drafts.prompt_lookup import PromptLookup
from genwright.text.drafts.proposal_length import ProposalLength, StepCost
from genwright.text.drafts.speculation import Draft, Speculation
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import Int32s, ResidentExecutor, Verified
from genwright.text.engine.request import Acceptance, Request
from genwright.text.engine.sampler import Sampler
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.step import Chunk

GREEDY = SamplingParams(max_new_tokens=40, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, seed=5)
DRAFTS = ("identical", "similar", "unrelated", "prompt-lookup", "identical alone", "similar alone")
K = 5


class Most(ProposalLength):
    def best(self, most: int, costs: Sequence[float]) -> int:
        return most


class Steady(Speculation):
    """Always wants as many tokens as allowed, so that many are rejected."""

    def _length(self, request: Request) -> ProposalLength:
        return self._lengths.setdefault(request, Most())


class DecodingExecutor(ResidentExecutor):
    """Decodes alone, as graphs do on a GPU."""

    def decode(
        self, chunks: Sequence[Chunk], settings: Int32s, counts: Sequence[int], verified: Verified | None = None
    ) -> torch.Tensor:
        assert len({len(chunk.tokens) for chunk in chunks}) == 1
        settings, chunks = settings.copy(), list(chunks)
        if verified is not None:
            for i, (row, place, count) in enumerate(verified.rows.tolist()):
                drawn, proposed = verified.drawn[row : row + count + 1].tolist(), verified.proposed[place:].tolist()
                accepted = next((j for j in range(count) if drawn[j] != proposed[j]), count)
                tokens = [chunks[i].tokens[0], *drawn[: accepted + 1]][-2:]
                chunks[i] = replace(chunks[i], tokens=tokens, start=chunks[i].start + accepted)
                settings[i, sampling.POSITION] += accepted
        answers = torch.zeros(len(chunks), max(counts), dtype=torch.int64)
        for column in range(max(counts)):
            going = [row for row, count in enumerate(counts) if count > column]
            drawn = sampling.draw(self.run([chunks[row] for row in going]), torch.from_numpy(settings[going]))
            for row, token in zip(going, drawn.tolist(), strict=True):
                answers[row, column] = token
                start = chunks[row].start + len(chunks[row].tokens)
                chunks[row] = replace(chunks[row], tokens=[max(token, 0)], start=start)
            settings[:, sampling.POSITION] += 1
        return answers


def draft_of(llms: dict[str, LLM], name: str, pages: int = 64, max_context: int = 512) -> DraftModel | PromptLookup:
    """The draft of that name; those that are "alone" decode without the host."""
    if name == "prompt-lookup":
        return PromptLookup(torch.device("cpu"))
    kind, name = DecodingExecutor if name.endswith(" alone") else ResidentExecutor, name.removesuffix(" alone")
    executor = kind(llms[name].model, CpuOps(deterministic=name == "identical"), pages, 16, 64)
    return DraftModel(executor, llms["identical"].model, 64, max_context)


def engine_with(
    llm: LLM,
    draft: Draft | None,
    kind: type[Speculation] = Steady,
    k: int = K,
    pages: int = 64,
    max_batch: int = 16,
    max_tokens: int = 256,
    steps_ahead: int = 0,
) -> Engine:
    executor = ResidentExecutor(llm.model, CpuOps(deterministic=True), pages, max_batch, max_tokens)
    speculation = kind(draft, k, StepCost(0.05)) if draft is not None else None
    return Engine(executor, max_batch, max_tokens, min(llm.max_context, pages * PAGE), speculation, steps_ahead)


def proposed(draft: Draft, wanted: Sequence[tuple[Request, int]], sampler: Sampler) -> list[list[int]]:
    """The proposed tokens of each request."""
    places, tokens = draft.propose(wanted, sampler)
    ids = [] if tokens is None else tokens.tolist()
    return [[ids[place] for place in places.get(request, [])] for request, _ in wanted]


def sampler_of(llm: LLM) -> Sampler:
    return Sampler(llm.model.cfg.vocab_size, torch.device("cpu"), fused=False)


def prompts(count: int, low: int, high: int, seed: int = 0) -> list[list[int]]:
    """Of mixed lengths, each with a passage that it repeats, so that there is something to look up."""
    rng = random.Random(seed)
    texts = [[rng.randrange(3, 199) for _ in range(rng.randint(low, high))] for _ in range(count)]
    return [text + text[: len(text) // 2] for text in texts]


def acceptance(requests: list[Request]) -> Acceptance:
    total = Acceptance()
    for each in requests:
        total.add(each.acceptance)
    return total


class Letters:
    """A detokenizer with one letter for each token."""

    def push(self, token: int) -> str:
        return chr(97 + token % 26)

    def end(self) -> str:
        return ""


def _forbid_repeats(tokens, logits):
    logits[tokens[-8:]] = float("-inf")
    return logits


OPTIONS = [
    {"ignore_eos": True},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"repetition_penalty": 0.8, "frequency_penalty": -3.0, "logprobs": 2, "ignore_eos": True},  # repeats itself
    {"logit_bias": {7: 3.0, 11: -100.0}, "min_new_tokens": 20},
    {"stop_ids": tuple(range(0, 199, 9)), "ignore_eos": True},
    {"stop_ids": tuple(range(0, 199, 9)), "min_new_tokens": 7, "presence_penalty": 1.0},
    {"stop": ("ab", "c", "z")},
    {"stop": ("a", "b", "cd"), "min_new_tokens": 11},
    {"max_new_tokens": 1},
    {"max_new_tokens": 2, "logprobs": 3},
    {"logprobs": 0, "prompt_logprobs": True},
    {"logits_processor": _forbid_repeats, "frequency_penalty": 0.5},
]
TEMPERATURES = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 9, "top_p": 0.9},
    {"temperature": 1.5, "min_p": 0.05},
]


def mix(count: int, seed: int, longest: int = 60) -> list[Request]:
    """Requests with all options, greedy and sampled; the same ones for the same seed."""
    rng = random.Random(seed)
    texts = prompts(count, 1, longest, seed)
    requests = []
    for index, text in enumerate(texts):
        options = {"max_new_tokens": 30, **OPTIONS[index % len(OPTIONS)], **rng.choice(TEMPERATURES)}
        one = Request(
            text, SamplingParams(**options), rng.randrange(9), frozenset({2}), Letters(), sample=rng.randrange(3)
        )
        requests.append(one)
    return requests


def answer(r: Request) -> tuple:
    """All that must not depend on a draft."""
    return r.output, r.text, r.finish_reason, r.logprobs, r.prompt_logprobs


def run_mix(engine: Engine, requests: list[Request], rng: random.Random) -> None:
    """Run requests that arrive at random steps; some of them are cancelled on the way."""
    waiting, running = list(reversed(requests)), []
    while waiting or engine.busy():
        while waiting and (not engine.busy() or rng.random() < 0.4):
            running.append(waiting.pop())
            engine.submit(running[-1])
        engine.step()
        check_pages(engine)
        if rng.random() < 0.05:
            engine.cancel([rng.choice(running)])
