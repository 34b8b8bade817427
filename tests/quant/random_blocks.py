"""Random rows of GGML's types, and the numbers of the quantized ones by name."""

import numpy as np
import torch

from genwright.quant.ggml import TYPES

QUANTIZED = {block.name: kind for kind, block in TYPES.items() if block.stored is None}
# Where each quantized type stores float16 scales, which random bytes could make infinite.
SCALES = {"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208]}
SCALES |= {"IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}


def random_rows(kind: int, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random bytes with finite scales and floats."""
    block, rng = TYPES[kind], np.random.default_rng(seed)
    if block.stored is not None:
        values = torch.from_numpy(rng.standard_normal((rows, columns))).to(block.stored)
        return values.view(torch.uint8).numpy()
    blocks = rng.integers(0, 256, (rows * columns // block.elements, block.bytes), dtype=np.uint8)
    for at in SCALES.get(block.name, [0, 2]):
        blocks[:, at : at + 2] = rng.standard_normal((len(blocks), 1)).astype(np.float16).view(np.uint8)
    if block.name == "MXFP4":  # exponents of 2
        blocks[:, 0] = rng.integers(100, 140, len(blocks))
    return blocks.reshape(rows, -1)


def random_weights(kind: int, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Rows of a quantized type whose weights are near 0 and have a standard deviation of about columns^-0.5."""
    block, rng = TYPES[kind], np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // block.elements, block.bytes), dtype=np.uint8)
    wide = 1 / {"Q8_0": 74, "Q4_0": 4.6, "Q4_1": 4.6, "Q5_0": 9.2, "Q5_1": 9.2, "IQ4_NL": 69}.get(block.name, 1)
    wide = {"Q2_K": 0.06, "Q3_K": 0.024, "Q4_K": 0.006, "Q5_K": 0.003, "Q6_K": 7e-4, "IQ4_XS": 8e-4}.get(
        block.name, wide
    )
    minimum = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}.get(block.name, 0)
    for at, factor in zip(SCALES.get(block.name, [0, 2]), (1, minimum), strict=False):
        scale = rng.uniform(0.5, 1.5, (len(blocks), 1)) if factor == 1 else 1
        blocks[:, at : at + 2] = np.float16(wide * columns**-0.5 * factor * scale).reshape(-1, 1).view(np.uint8)
    if block.name == "MXFP4":
        blocks[:, 0] = 126 - round(np.log2(columns) / 2) - rng.integers(0, 2, len(blocks))
    return torch.from_numpy(blocks.reshape(rows, -1))
