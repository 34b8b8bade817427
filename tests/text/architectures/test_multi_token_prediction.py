"""The multi-token-prediction layer against transformers' MtpModel, whole and in chunks, packed and not."""

import pytest
import torch
from safetensors.torch import load_file
from text.deepseek_folders import in_fp8, transformers_layer, with_draft
from text.families import make
from transformers.cache_utils import MtpCache

from genwright.quant.fp8 import Fp8Blocks
from genwright.text.architectures.deepseek import cache_layers, predict
from genwright.text.cache.layout import Cache, CacheSpec
from genwright.text.checkpoints.check_tensors import has_draft
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.loader import Loader
from genwright.text.ops.step import Chunk, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

TOKENS = torch.randint(3, 199, (90,), generator=torch.Generator().manual_seed(3))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A folder with the layer, and the last hidden states and the next token's logits that transformers finds."""
    folder = tmp_path_factory.mktemp("mtp")
    theirs = make("deepseek-v3-blocks", folder)
    tensors = with_draft(folder)
    layer = transformers_layer(theirs, tensors)
    with torch.no_grad():
        hidden = theirs.model(TOKENS[None, :-1]).last_hidden_state
        positions = torch.arange(1, len(TOKENS))[None]
        cache = MtpCache(config=theirs.config.get_mtp_config())
        out = layer.forward_layer(0, hidden, positions, cache, input_ids=TOKENS[None, 1:])
        return folder, hidden[0], layer.shared_head(out)[0], out[0]


def run(folder, hidden, chunks, ops, packed=False):
    checkpoint = open_checkpoint(str(folder))
    load = Loader(checkpoint, torch.float32, CPU, packed)
    model, weights = load.model(128), load.block(checkpoint.config.layers)
    cache = Cache(CacheSpec(cache_layers(model.cfg), torch.float32), 2, CPU).layers[0]
    buffers, logits, out, first = StepBuffers(128, 1, 2, CPU, rope_tables=model.rope_tables), [], [], 0
    for count in chunks:
        step = buffers.fill([Chunk(TOKENS[1 + first : 1 + first + count].tolist(), first, [range(2)], count)])
        piece = hidden[first : first + count]
        new = predict(ops, model.cfg, model.outer, weights, cache, piece, step)
        logits.append(new[0])
        out.append(new[1])
        first += count
    return torch.cat(logits), torch.cat(out), weights


@pytest.mark.parametrize("ops", [TorchOps(), TorchOps(deterministic=True)])
@pytest.mark.parametrize("chunks", [[89], [64, 20, 1, 1, 3]])
def test_predictions_equal_transformers(chunks, ops, both):
    folder, hidden, expected, expected_hidden = both
    logits, out, _ = run(folder, hidden, chunks, ops)
    assert (logits - expected).norm() / expected.norm() < 1e-4
    assert (out - expected_hidden).norm() / expected_hidden.norm() < 1e-4
    assert logits.argmax(-1).equal(expected.argmax(-1))


def test_a_packed_layer_predicts_the_same(both, tmp_path):
    folder, hidden, _, _ = both
    in_fp8(folder, tmp_path / "fp8")
    assert load_file(tmp_path / "fp8" / "model.safetensors").keys() > load_file(folder / "model.safetensors").keys()
    logits, _, weights = run(tmp_path / "fp8", hidden, [89], TorchOps(), packed=True)
    assert isinstance(weights["experts.down"], Fp8Blocks)
    expected, _, _ = run(tmp_path / "fp8", hidden, [89], TorchOps(), packed=False)
    assert (logits - expected).norm() / expected.norm() < 1e-5


def test_a_folder_without_the_layer_has_none(tmp_path):
    make("deepseek-v3", tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.config.draft_layers == 1
    assert not has_draft(checkpoint)
