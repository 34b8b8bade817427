"""The counter hash on tensors against the one on Python integers."""

import torch

from genwright.rng import extend, key, key_tensor, uniform

SEEDS = [0, 1, 7, 2**31, 2**32 - 1, 2**40 + 5, 2**63 - 1, -1, -(2**35)]


def test_keys_of_a_step_extend_the_key_of_the_request():
    positions = [0, 1, 5, 64, 4095, 131071, 2**20, 2**31 - 1, 17]
    prefix = key_tensor([key(seed, sample) for sample, seed in enumerate(SEEDS)])
    for purpose in range(4):
        whole = [
            key(seed, i, position, purpose) for i, (seed, position) in enumerate(zip(SEEDS, positions, strict=True))
        ]
        assert torch.equal(extend(extend(prefix, torch.tensor(positions)), purpose), key_tensor(whole))


def test_one_key_is_extended_by_many_parts():
    parts = torch.arange(1000)
    assert torch.equal(extend(key_tensor([key(3, 9)]), parts), key_tensor([key(3, 9, part) for part in range(1000)]))


def test_noise_is_never_0_or_1():
    low, high = uniform(torch.tensor([0, -1], dtype=torch.int32)).double().tolist()
    assert low == 2.0**-24 and high == 1 - 2.0**-24
