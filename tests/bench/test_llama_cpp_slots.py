"""Slots of llama.cpp, on a llama.cpp that checks what it is given."""

import sys
from collections import defaultdict
from types import SimpleNamespace

import pytest

from genwright.bench.experiments import Traffic
from genwright.bench.serving import arrivals, lengths

VOCAB = 1000


class FakeLlama(SimpleNamespace):
    """The functions that are used; a sequence's cache is the list of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, list[int]] = defaultdict(list)
        self.ended: list[list[int]] = []
        self.rows: set[int] = set()  # of the last step, that have logits
        self.steps: list[int] = []
        self.samplers = 0
        self.llama_context_default_params = self.llama_sampler_chain_default_params = SimpleNamespace
        self.llama_init_from_model = lambda model, params: params
        self.llama_get_memory = lambda context: self.cache
        for name in ("batch_free", "free", "sampler_chain_add"):
            setattr(self, f"llama_{name}", lambda *_: None)
        for name in ("top_k", "temp", "dist"):
            setattr(self, f"llama_sampler_init_{name}", lambda value: value)

    def llama_batch_init(self, tokens: int, embd: int, sequences: int) -> SimpleNamespace:
        columns = {name: [None] * tokens for name in ("token", "pos", "n_seq_id", "logits")}
        return SimpleNamespace(n_tokens=0, seq_id=[[None] for _ in range(tokens)], **columns)

    def llama_decode(self, context: SimpleNamespace, batch: SimpleNamespace) -> int:
        for i in range(batch.n_tokens):
            sequence = self.cache[batch.seq_id[i][0]]
            assert (batch.pos[i], batch.n_seq_id[i]) == (len(sequence), 1), "positions follow each other"
            sequence.append(batch.token[i])
        self.rows = {i for i in range(batch.n_tokens) if batch.logits[i]}
        self.steps.append(batch.n_tokens)
        assert 0 < batch.n_tokens <= 512
        assert len(self.cache) <= context.n_seq_max
        return 0

    def llama_sampler_chain_init(self, params: object) -> object:
        self.samplers += 1
        return object()

    def llama_sampler_sample(self, sampler: object, context: object, row: int) -> int:
        self.rows.remove(row)  # once only
        return VOCAB

    def llama_sampler_free(self, sampler: object) -> None:
        self.samplers -= 1

    def llama_memory_seq_rm(self, memory: dict[int, list[int]], slot: int, start: int, end: int) -> None:
        self.ended.append(memory.pop(slot))


@pytest.mark.parametrize("rate", [None, 500.0])
def test_every_request_has_its_prompt_and_its_tokens_in_one_slot(monkeypatch, rate):
    llama = FakeLlama()
    monkeypatch.setitem(sys.modules, "llama_cpp", llama)
    monkeypatch.delitem(sys.modules, "genwright.bench.llama_cpp_slots", raising=False)
    from genwright.bench.llama_cpp_slots import Slots

    traffic = Traffic(50, (1, 700), (2, 9))
    requests = arrivals(traffic, 0, rate, VOCAB)
    slots = Slots(None, 709, 2, 200, 0.8)
    run = slots.serve(requests)
    slots.close()
    expected = [[*each.prompt, *[VOCAB] * (each.new - 1)] for each in requests]
    assert sorted(llama.ended) == sorted(expected)  # the last token is never computed
    assert (llama.samplers, llama.rows) == (0, set())
    assert len(run.gaps) == sum(new - 1 for _, new in lengths(traffic))
    assert min(run.first) > 0
    if rate is None:
        assert max(llama.steps) == 512, "prompts fill the steps"
