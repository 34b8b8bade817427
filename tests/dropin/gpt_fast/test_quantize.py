"""gpt-fast's quantized files: read by its modules and by the engine, and close to the weights."""

import contextlib
from pathlib import Path

import pytest
import torch
from dropin.gpt_fast.tiny_gpt_fast import SHAPES
from torch.nn.functional import linear

from genwright.errors import UserError
from genwright.text.llm import LLM

PROMPT = torch.tensor([[5, 17, 200, 31, 8, 90]])


def quantized(checkpoint: Path, tmp_path: Path, **settings) -> Path:
    """The file that the command writes, in a folder of the same name as the checkpoint's."""
    from quantize import quantize

    folder = tmp_path / checkpoint.name
    folder.mkdir(exist_ok=True)
    for file in checkpoint.iterdir():
        with contextlib.suppress(FileExistsError):
            (folder / file.name).symlink_to(file)
    before = set(folder.iterdir())
    quantize(folder / "model.pth", label="_", **settings)
    (new,) = set(folder.iterdir()) - before
    return new


def logits(path: Path) -> torch.Tensor:
    from generate import _load_model

    model = _load_model(path, "cpu", torch.bfloat16, False)
    model.setup_caches(1, 16)
    with torch.inference_mode():
        return model(PROMPT, torch.arange(6))[0].float()


@pytest.mark.parametrize(
    ("name", "settings", "file", "bound"),
    [
        ("tiny", {"mode": "int8"}, "model_int8.pth", 0.05),
        ("tiny-moe", {"mode": "int8"}, "model_int8.pth", 0.05),
        ("tiny", {"mode": "int4", "groupsize": 32}, "model_int4.g32.pth", 0.25),
        ("tiny", {"mode": "int4", "groupsize": 256}, "model_int4.g256.pth", 0.35),
    ],
)
def test_files_are_read_by_the_modules_and_by_the_engine(
    checkpoints: Path, tmp_path: Path, name: str, settings, file: str, bound: float
) -> None:
    """The rows of the tiny model are padded to 1,024 columns in int4, as the original does it."""
    path = quantized(checkpoints / name, tmp_path, **settings)
    assert path.name == file
    found, exact = logits(path), logits(checkpoints / name / "model.pth")
    assert float((found - exact).norm() / exact.norm()) < bound
    with LLM(path, device="cpu", dtype="bfloat16", backend="torch") as llm:
        engine = llm.logits(PROMPT[0].tolist())
    assert float((engine - found).norm() / exact.norm()) < 0.05


def test_the_command_says_how_weights_are_stored(checkpoints: Path, tmp_path: Path, capsys) -> None:
    from generate import main

    path = quantized(checkpoints / "tiny", tmp_path, mode="int8")
    capsys.readouterr()
    main(num_samples=1, max_new_tokens=2, checkpoint_path=path, compile=False, device="cpu")
    assert "Loading model ...\nUsing int8 weight-only quantization!\nTime to load model" in capsys.readouterr().out


def test_tiles_are_those_that_the_reader_unpacks() -> None:
    from quantize import WeightOnlyInt4Linear

    from genwright.quant.tinygemm import columns, repack, tile

    torch.manual_seed(0)
    q = torch.randint(0, 16, (24, 256))
    pairs = torch.stack([torch.ones(8, 24), torch.full((8, 24), 8.0)], dim=-1).bfloat16()
    for inner in (2, 4, 8):
        words = tile(q, inner)
        assert words.shape == (3, 256 // (16 * inner), 32, inner // 2)
        assert columns(words) == 256
        assert torch.equal(repack(words, pairs, 256, 32).dequantize(torch.float32), q.float())
        module = WeightOnlyInt4Linear(256, 24, groupsize=32, inner_k_tiles=inner, padding=False)
        module.weight, module.scales_and_zeros = words, pairs
        x = torch.randn(2, 3, 256).bfloat16()
        assert torch.equal(module(x), linear(x, q.bfloat16()))


def test_int8_modules_multiply_as_their_rows_say() -> None:
    from model import ConditionalFeedForward, ModelArgs, transformer_configs
    from quantize import ConditionalFeedForwardBit8, WeightOnlyInt8Linear, dynamically_quantize_per_channel

    transformer_configs.update(SHAPES)
    weight = torch.randn(16, 32)
    values, scales, zeros = dynamically_quantize_per_channel(weight, -128, 127, torch.int8)
    assert float((values * scales[:, None] - weight).abs().max()) <= float(scales.max()) / 2 * 1.001
    assert not zeros.any()
    module, x = WeightOnlyInt8Linear(32, 16), torch.randn(4, 32)
    module.weight, module.scales = values, scales
    torch.testing.assert_close(module(x), linear(x, values * scales[:, None]))
    experts = ConditionalFeedForwardBit8(4, 24, 16)
    plain = ConditionalFeedForward(ModelArgs(dim=16, n_head=2, intermediate_size=24, num_experts=4))
    for part in "123":
        shape = getattr(experts, f"w{part}").shape
        setattr(experts, f"w{part}", torch.randint(-127, 128, shape, dtype=torch.int8))
        setattr(experts, f"scales{part}", torch.rand(shape[:2]))
        dense = getattr(experts, f"w{part}") * getattr(experts, f"scales{part}")[..., None]
        getattr(plain, f"w{part}").data = dense
    for tokens in (1, 5):  # gathered, and through all experts
        x, ids = torch.randn(tokens, 16), torch.randint(0, 4, (tokens, 2))
        torch.testing.assert_close(experts(x, ids), plain(x, ids), rtol=1e-3, atol=1e-2)


def test_gptq_makes_the_outputs_on_its_text_better(checkpoints: Path, tmp_path: Path) -> None:
    text = tmp_path / "calibration.txt"
    text.write_text((Path(__file__).parents[3] / "LICENSE").read_text() * 2)
    common = {"groupsize": 256}
    nearest = quantized(checkpoints / "tiny", tmp_path, mode="int4", **common)
    calibrated = quantized(
        checkpoints / "tiny",
        tmp_path,
        mode="int4-gptq",
        calibration_tasks=(str(text),),
        calibration_limit=40,
        calibration_seq_length=64,
        blocksize=32,
        percdamp=0.01,
        **common,
    )
    assert calibrated.name == "model_int4-gptq.g256.pth"
    from generate import _load_model
    from tokenizer import get_tokenizer

    words = get_tokenizer(checkpoints / "tiny" / "tokenizer.model")
    ids = torch.tensor([[1, *words.encode(text.read_text()[2000:2600])]])[:, :64]
    exact, errors = None, []
    for path in (checkpoints / "tiny" / "model.pth", nearest, calibrated):
        model = _load_model(path, "cpu", torch.bfloat16, False)
        model.setup_caches(1, 64)
        with torch.inference_mode():
            found = model(ids, torch.arange(ids.shape[1])).float()
        exact = found if exact is None else exact
        errors.append(float((found - exact).norm()))
    assert errors[2] < 0.9 * errors[1]


def test_a_file_is_quantized_once(checkpoints: Path, tmp_path: Path) -> None:
    from quantize import quantize

    path = quantized(checkpoints / "tiny", tmp_path, mode="int8")
    with pytest.raises(UserError, match=r"model_int8\.pth is int8 already"):
        quantize(path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "int4-gptq"}, "hellaswag is no text file; lm-eval's tasks need its package and the network"),
        ({"mode": "int4", "groupsize": 20}, "groupsize must be one of 32, 64, 128, 256, not 20"),
        ({"mode": "int3"}, "The mode must be one of int8, int4, int4-gptq, not 'int3'"),
    ],
)
def test_mistakes_are_one_sentence(checkpoints: Path, settings, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        quantized(checkpoints / "tiny", tmp_path, **settings)
    if settings["mode"] == "int4":
        with pytest.raises(UserError, match="quantize Mixtral to int8"):
            quantized(checkpoints / "tiny-moe", tmp_path, mode="int4")
