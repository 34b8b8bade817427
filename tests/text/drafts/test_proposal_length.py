"""How many tokens are proposed, and what they cost."""

import random

import pytest
from text.families import make

from genwright import LLM
from genwright.text.drafts.proposal_length import ProposalLength, StepCost


def test_the_length_falls_to_rare_trials_and_recovers():
    length, proposals = ProposalLength(), []

    def step(accepted: float) -> int:
        k = length.best(5, [0.3 * k for k in range(6)])
        length.skipped += not k
        if k:
            length.learn(k, int(k * accepted))
        return k

    proposals = [step(0) for _ in range(1000)]
    assert proposals[0] > 1
    assert sum(proposals[:50]) <= 12
    assert 1 <= sum(proposals[50:]) <= 12
    steps = 0
    while step(1) < 5:
        steps += 1
    assert steps < 300, "a passage that can be predicted is found within a few trials"


def test_the_length_has_the_most_tokens_per_cost():
    rng = random.Random(0)
    for _ in range(200):
        length, cost, verify_cost = ProposalLength(), rng.choice([0, 0.01, 0.1, 0.3, 0.9, 1.0]), rng.choice([0, 0.3])
        costs = [verify_cost * (k > 0) + k * cost for k in range(9)]
        length.accepted, length.rejected = rng.random(), rng.random()
        a = length.accepted / (length.accepted + length.rejected)
        rates = [(1 - a ** (k + 1)) / (1 - a) / (1 + costs[k]) for k in range(9)]
        if best := length.best(8, costs):
            assert rates[best] == pytest.approx(max(rates)) or (cost == 0 and best == 1)
        else:
            assert max(rates) == pytest.approx(1)
        assert length.best(0, costs) == 0


def test_the_cost_of_proposals_is_that_of_their_rows():
    cost = StepCost(0.1, several=0.5)
    assert cost.of_proposals(5, batch=1) == pytest.approx(0.5 + 0.5)
    assert cost.of_proposals(5, batch=8) == pytest.approx(5 * 8 * 0.1 / (1 + 7 * 0.1))  # sequences share the weights


def test_further_rows_of_a_mixture_read_experts_of_their_own(tmp_path):
    make("mixtral", tmp_path)
    with LLM(tmp_path, device="cpu", dtype="float32") as llm:
        model, cost = llm.model, StepCost.of(llm.model)
    assert cost.second_row > 0.1
    for batch, count in ((1, 1), (1, 5), (4, 3)):
        first, without, verified = (model.bytes_read(rows) for rows in (1, batch, batch * (1 + count)))
        further = (verified - without) / first + cost.row * batch * count
        assert cost.of_proposals(count, batch) == pytest.approx(further / (without / first + cost.row * (batch - 1)))


def test_a_mixture_gets_fewer_proposals_than_a_dense_model():
    """Mixtral's shape: two of eight experts, nearly all of the bytes, so that each of the first rows reads its own."""
    dense, mixture = StepCost(0.02, 0.5), StepCost(0.02, 0.5, second_row=0.75 * 0.95, unchosen=0.75)
    length = ProposalLength()
    length.accepted, length.rejected = 7.0, 3.0
    costs = [[0.1 * k + cost.of_proposals(k, 1) for k in range(9)] for cost in (dense, mixture)]
    chosen = [length.best(8, each) for each in costs]
    assert chosen[0] > 2 and chosen[1] == 0
