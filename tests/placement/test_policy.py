"""Policies are checked, read from text and written to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genwright.errors import UserError
from genwright.placement.policy import Policy


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    shares = []
    for _ in range(3):
        gpu = draw(st.integers(0, 100))
        shares += [gpu, draw(st.integers(0, 100 - gpu))]
    size = draw(st.integers(0, 64))
    flags = [draw(st.booleans()) for _ in range(4)]
    return Policy(*shares, size, draw(st.integers(1, 9)) if size else 1, *flags, draw(st.floats(0.01, 1)))


@given(policies())
def test_text_becomes_the_same_policy(policy: Policy) -> None:
    assert Policy.parse(str(policy)) == policy
    for what in ("weights", "cache", "activations"):
        assert sum(policy.shares(what)) == 100


def test_the_six_percentages_have_flexllmgens_order() -> None:
    assert Policy.parse("1,2,3,4,5,6") == Policy(1, 2, 3, 4, 5, 6)
    assert Policy.parse(" 0, 100,100,0,100,0,micro_batch=32,micro_batches=4,overlap=false") == Policy(
        0, 100, 100, 0, 100, 0, micro_batch=32, micro_batches=4, overlap=False
    )


def test_the_default_is_resident() -> None:
    assert Policy().resident and not Policy(99, 1).resident and not Policy(cache_gpu=0).resident
    assert Policy(micro_batch=32, micro_batches=4).batch == 128 and Policy().batch == 0


def test_describe_names_what_is_set() -> None:
    assert Policy().describe() == "weights 100% GPU, cache 100% GPU, activations 100% GPU"
    policy = Policy(0, 70, 50, 50, 0, 100, 8, 3, overlap=False, pin=False, cpu_attention=True, sparsity=0.1)
    assert policy.describe() == (
        "weights 70% CPU + 30% disk, cache 50% GPU + 50% CPU, activations 100% CPU, 3 x 8 sequences, no overlap, "
        "pageable memory, attention on the CPU, attention reads 10% of the cache"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,100,100,0,100", "six percentages"),
        ("0,100,100,0,100,0,0", "six percentages"),
        ("0,100,100,0,micro_batch=1,100,0", "six percentages"),
        ("a,100,100,0,100,0", "six percentages"),
        ("-1,100,100,0,100,0", "six percentages"),
        ("", "six percentages"),
        ("0,101,100,0,100,0", "weights_cpu must be"),
        ("50,60,100,0,100,0", "weights_gpu and weights_cpu must be at most 100 together, not 50 \\+ 60"),
        ("0,100,100,0,100,0,batch=3", "has no field 'batch'"),
        ("0,100,100,0,100,0,weights_gpu=3", "has no field 'weights_gpu'"),
        ("0,100,100,0,100,0,overlap=no", "overlap must be true or false"),
        ("0,100,100,0,100,0,micro_batch=x", "micro_batch must be a whole number"),
        ("0,100,100,0,100,0,sparsity=0", "sparsity must be above 0"),
        ("0,100,100,0,100,0,sparsity=nan", "sparsity must be a number between"),
        ("0,100,100,0,100,0,micro_batches=2", "micro_batch must be at least 1"),
    ],
)
def test_a_wrong_policy_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Policy.parse(text)
