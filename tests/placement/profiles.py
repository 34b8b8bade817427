"""A fixed machine and fixed models, whose predictions can be worked out by hand."""

from genwright.placement.machine import Disk, Machine, Rates
from genwright.placement.model_facts import ModelFacts

H200 = Machine(
    Rates(
        device="NVIDIA H200",
        to_device=55.3e9,
        to_device_pageable=12e9,
        to_host=54e9,
        device_read=4.2e12,
        host_read=200e9,
        device_matmul={1: 4.2e12, 8: 33e12, 64: 250e12, 512: 700e12, 4096: 770e12},
        host_matmul={1: 0.1e12, 8: 0.5e12, 64: 1e12, 512: 2e12},
        host_attention=20e9,
        call=4e-6,
    ),
    Disk(read=3e9, write=2e9),
)
LAPTOP = Machine(
    Rates(
        *("cpu", 10e9, 10e9, 10e9, 20e9, 20e9),
        device_matmul={1: 10e9, 512: 180e9},
        host_matmul={1: 10e9, 512: 180e9},
        host_attention=1e9,
        call=2e-6,
    ),
    Disk(read=1.5e9, write=1e9),
)
GB = 10**9


def opt(dim: int, layers: int, bits: float = 16, context: int = 2048, vocab: int = 50272) -> ModelFacts:
    """OPT without biases and norms, in 16 bits or in fewer: a block is 12 dim^2 numbers."""
    return ModelFacts(
        layers=layers,
        itemsize=2,
        outer=2 * dim * (vocab + context),
        block=12 * dim**2 * bits / 8,
        largest_block=int(12 * dim**2 * bits / 8),
        widened=0 if bits == 16 else 8 * dim**2,
        parameters=12 * dim**2,
        head=vocab * dim,
        hidden=2 * dim,
        working=2 * (6 * dim + 8 * dim),
        logits=6 * vocab,
        cache_row=4 * dim,
        windows=(None,) * layers,
        attention=4 * dim,
    )


OPT_13B, OPT_13B_INT4 = opt(5120, 40), opt(5120, 40, bits=4.5)
MIXTRAL = ModelFacts(
    layers=32,
    itemsize=2,
    outer=2 * 4096 * 2 * 32000,
    block=2 * (2 * 4096**2 + 2 * 4096 * 1024 + 8 * 3 * 4096 * 14336),
    largest_block=2 * (2 * 4096**2 + 2 * 4096 * 1024 + 8 * 3 * 4096 * 14336),
    widened=0,
    parameters=2 * 4096**2 + 2 * 4096 * 1024,
    head=4096 * 32000,
    hidden=8192,
    working=2 * (6 * 4096 + 2 * 3 * 14336),
    logits=6 * 32000,
    cache_row=2 * 2 * 1024,
    windows=(None,) * 32,
    attention=4 * 4096,
    expert_bytes=2 * 8 * 3 * 4096 * 14336,
    expert_parameters=8 * 3 * 4096 * 14336,
    experts=8,
    top_k=2,
)
