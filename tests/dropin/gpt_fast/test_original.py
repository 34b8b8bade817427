"""gpt-fast's own unmodified scripts on our modules, beside its own modules, if GENWRIGHT_GPT_FAST names a checkout."""

import importlib
import runpy
from pathlib import Path

import pytest
import torch
from dropin.gpt_fast.tiny_gpt_fast import GREEDY, SHAPES, answer, run

WITH_SHAPES = Path(__file__).parents[1] / "with_shapes.py"
OURS = ["-m", "genwright", "dropin", "gpt_fast", "--script", WITH_SHAPES]
SCRIPTS = {"tiny": "generate.py", "tiny-moe": "mixtral-moe/generate.py"}


def flags(checkpoints: Path, name: str) -> list[str | Path]:
    return ["--checkpoint_path", checkpoints / name / "model.pth", *GREEDY]


@pytest.fixture(scope="module")
def expected(original: Path, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The answers of the original's own modules."""
    folder = tmp_path_factory.mktemp("original")
    return {
        name: answer(run([WITH_SHAPES, script, *flags(checkpoints, name)], folder, script.parent))
        for name, script in ((name, original / script) for name, script in SCRIPTS.items())
    }


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("compile", [(), ("--compile", "--compile_prefill")], ids=["eager", "compiled"])
def test_greedy_tokens_are_the_originals(
    original: Path, expected: dict[str, str], checkpoints: Path, tmp_path: Path, name: str, compile: tuple[str, ...]
) -> None:
    output = run([*OURS, original / SCRIPTS[name], *flags(checkpoints, name), *compile], tmp_path)
    assert answer(output) == expected[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_our_own_command_answers_the_same(
    original: Path, expected: dict[str, str], checkpoints: Path, tmp_path: Path, name: str
) -> None:
    command = ["-m", "genwright", "dropin", "gpt_fast", "generate"]
    assert answer(run([*command, *flags(checkpoints, name)], tmp_path)) == expected[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_ranks_run_the_original(
    original: Path, expected: dict[str, str], checkpoints: Path, tmp_path: Path, name: str
) -> None:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    output = run([*ranks, *OURS, original / SCRIPTS[name], *flags(checkpoints, name)], tmp_path)
    assert answer(output) == expected[name]


@pytest.mark.parametrize("name", SCRIPTS)
def test_quantized_files_are_the_originals(original: Path, checkpoints: Path, name: str) -> None:
    """Bit by bit; the original's int4 needs a GPU, but its grid and its numbers do not."""
    import quantize
    from generate import _load_model
    from model import transformer_configs

    transformer_configs.update(SHAPES)
    model = _load_model(checkpoints / name / "model.pth", "cpu", torch.bfloat16, False)
    theirs = runpy.run_path(str((original / SCRIPTS[name]).with_name("quantize.py")))
    if name == "tiny":
        ours = quantize.WeightOnlyInt8QuantHandler(model).create_quantized_state_dict()
        found = theirs["WeightOnlyInt8QuantHandler"](model).create_quantized_state_dict()
        handler, weight = quantize.WeightOnlyInt4QuantHandler(model, 32), model.output.weight.data
        from genwright.dropin.transformer.int4 import tinygemm
        from genwright.quant.int4 import unpack

        packed = tinygemm(32).quantize(weight)
        q, pairs = theirs["group_quantize_tensor"](weight, 4, 32)
        same = (unpack(packed.words)[:, :64] == q).float().mean()
        assert same > 0.97  # the original computes in bfloat16
        torch.testing.assert_close(handler.tensors("x", packed)["x.scales_and_zeros"][:2], pairs, rtol=1e-2, atol=1e-2)
    else:
        ours = quantize.WeightOnlyBit8QuantHandler(model, torch.int8).create_quantized_state_dict()
        found = {}
        for part in "123":  # the original looks for experts of its own class
            weight = model.layers[0].block_sparse_moe.cond_ffn.get_parameter(f"w{part}")
            each = [theirs["dynamically_quantize_per_channel"](w.float(), -128, 127, torch.int8) for w in weight]
            prefix = "layers.0.block_sparse_moe.cond_ffn."
            found[f"{prefix}w{part}"] = torch.stack([values for values, _, _ in each])
            found[f"{prefix}scales{part}"] = torch.stack([scales for _, scales, _ in each]).bfloat16()
    for key, value in found.items():
        assert torch.equal(ours[key].to(value.dtype), value), key


def test_names_that_scripts_import_exist() -> None:
    wanted = {
        "model": "Transformer ModelArgs Attention FeedForward KVCache RMSNorm TransformerBlock find_multiple",
        "generate": "generate prefill decode_one_token decode_n_tokens speculative_decode sample logits_to_probs "
        "model_forward encode_tokens causal_mask _load_model device_sync main multinomial_sample_one_no_sync",
        "quantize": "WeightOnlyInt8QuantHandler WeightOnlyInt4QuantHandler WeightOnlyInt4GPTQQuantHandler quantize "
        "WeightOnlyInt8Linear WeightOnlyInt4Linear dynamically_quantize_per_channel",
        "tp": "maybe_init_dist apply_tp is_local",
        "tokenizer": "get_tokenizer TokenizerInterface SentencePieceWrapper TiktokenWrapper",
    }
    for module, names in wanted.items():
        ours = importlib.import_module(module)
        assert not [name for name in names.split() if not hasattr(ours, name)]
