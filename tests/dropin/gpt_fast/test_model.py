"""gpt-fast's Transformer: logits of transformers, masks, torch.compile, and the original's parameter names."""

import re
from pathlib import Path

import pytest
import torch
from dropin.gpt_fast.tiny_gpt_fast import SHAPES, VOCAB, random_state
from torch.nn.attention.flex_attention import create_block_mask

from genwright.errors import UserError
from genwright.text.architectures.registry import named_shape, read_config
from genwright.text.llm import LLM

PROMPT = torch.tensor([[5, 17, 200, 31, 8, 90]])


def new_model(name: str, dtype: torch.dtype = torch.float32):
    from model import Transformer, transformer_configs

    transformer_configs.update(SHAPES)
    with torch.device("meta"):
        model = Transformer.from_name(name)
    model.load_state_dict(random_state(model), assign=True)
    model = model.to(dtype=dtype).eval()
    model.setup_caches(2, 40)
    return model


@torch.inference_mode()
def greedy(model, step, tokens: int = 12) -> list[int]:
    """`step(x, positions)` gives logits."""
    x, positions, found = PROMPT, torch.arange(PROMPT.shape[1]), []
    for _ in range(tokens):
        x = step(x, positions)[:, -1].argmax(dim=-1, keepdim=True)
        positions = positions[-1:] + 1
        found.append(int(x))
    return found


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_logits_are_those_of_the_engine(checkpoints: Path, name: str) -> None:
    """Which has the same weights in another order, pages, and rotary channels in halves."""
    model = new_model(name)
    with LLM(checkpoints / name / "model.pth", device="cpu", dtype="float32", backend="torch") as llm:
        expected = llm.logits(PROMPT[0].tolist())
    with torch.inference_mode():
        logits = model(PROMPT, torch.arange(6))[0]
        later = torch.cat([model(PROMPT[:, i : i + 1], torch.tensor([i]))[0] for i in range(6)])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(later, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_logits_are_those_of_transformers(checkpoints: Path, tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    from genwright.text.checkpoints.open import open_checkpoint
    from genwright.text.export.convert import convert

    convert(open_checkpoint(str(checkpoints / name / "model.pth")), tmp_path / "hf", "safetensors", None, print)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    model = new_model(name)
    with torch.inference_mode():
        model.freqs_cis = None
        model.max_seq_length = -1
        model.setup_caches(1, 40)
        torch.testing.assert_close(model(PROMPT, torch.arange(6)), reference(PROMPT).logits, rtol=1e-4, atol=1e-4)


def with_block_mask(model):
    from generate import causal_mask

    size = model.max_seq_length
    whole = create_block_mask(causal_mask, 1, 1, size, size, device="cpu")

    def step(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if len(positions) > 1:
            return model(create_block_mask(causal_mask, 1, 1, len(positions), size, device="cpu"), x, positions)
        mask = whole[:, :, positions // whole.BLOCK_SIZE[0]]
        mask.mask_mod, mask.seq_lengths = whole.mask_mod, (1, size)
        return model(mask, x, positions)

    return step


def test_a_block_mask_shows_what_it_says() -> None:
    model = new_model("tiny")
    assert greedy(model, with_block_mask(model)) == greedy(model, model)
    window = create_block_mask(
        lambda b, h, q, kv: (q >= kv) & (q - kv < 2), 1, 1, 6, model.max_seq_length, device="cpu"
    )
    with torch.inference_mode():
        narrow = model(window, PROMPT, torch.arange(6))
        whole = model(PROMPT, input_pos=torch.arange(6))
    torch.testing.assert_close(narrow[:, :2], whole[:, :2], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(narrow[:, 2:], whole[:, 2:], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_torch_compile_traces_it_as_one_graph(name: str) -> None:
    model = new_model(name)
    traced = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    assert greedy(model, traced) == greedy(model, model)


def test_sequences_of_a_batch_do_not_see_each_other() -> None:
    model = new_model("tiny")
    both = torch.cat([PROMPT, PROMPT.flip(1)])
    with torch.inference_mode():
        together = model(both, torch.arange(6))
        alone = [model(row[None], torch.arange(6)) for row in both]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_parameters_have_the_originals_names() -> None:
    from model import Transformer, transformer_configs

    transformer_configs.update(SHAPES)
    layer = {"attention.wqkv.weight", "attention.wo.weight", "attention_norm.weight", "ffn_norm.weight"}
    dense = {"feed_forward.w1.weight", "feed_forward.w2.weight", "feed_forward.w3.weight"}
    moe = {f"block_sparse_moe.{each}" for each in ("gate.weight", "cond_ffn.w1", "cond_ffn.w2", "cond_ffn.w3")}
    outer = {"tok_embeddings.weight", "norm.weight", "output.weight"}
    for name, own in (("tiny", dense), ("tiny-moe", moe)):
        model = Transformer.from_name(name)
        found = {re.sub(r"^layers\.\d+\.", "", each) for each in model.state_dict()}
        assert found == layer | own | outer
    separate = dict(Transformer.from_name("tiny").state_dict())
    for number in range(2):
        fused = separate.pop(f"layers.{number}.attention.wqkv.weight")
        for part, rows in zip("qkv", fused.split([64, 32, 32]), strict=True):
            separate[f"layers.{number}.attention.w{part}.weight"] = rows
    Transformer.from_name("tiny").load_state_dict(separate)


def test_names_find_shapes_as_the_original_does() -> None:
    from model import ModelArgs

    assert ModelArgs.from_name("Llama-2-7b-chat-hf").intermediate_size == 11008
    assert ModelArgs.from_name("Mistral-7B-Instruct-v0.1").n_local_heads == 8
    assert ModelArgs.from_name("meta-llama-3.1-70B").rope_scaling["factor"] == 8.0
    assert ModelArgs.from_name("Mixtral-8x7B-v0.1").num_experts == 8
    assert ModelArgs.from_name("stories15M").head_dim == 48
    with pytest.raises(UserError, match="No known shape is part of the name 'gpt2'"):
        ModelArgs.from_name("gpt2")


def test_a_configuration_says_the_shape_that_a_name_says() -> None:
    from model import ModelArgs, transformer_configs

    for name in transformer_configs:
        args = ModelArgs.from_name(name)
        assert ModelArgs.from_config(read_config(args.hugging_face(), name)) == args
    with pytest.raises(UserError, match="gpt-fast's modules are of Llama and Mixtral, not of"):
        ModelArgs.from_config(read_config(named_shape("opt-125m"), "opt"))


def test_shapes_are_the_originals(original: Path) -> None:
    import runpy

    from model import ModelArgs

    for file in ("model.py", "mixtral-moe/model.py"):
        theirs = runpy.run_path(str(original / file))
        for name, shape in theirs["transformer_configs"].items():
            expected = vars(theirs["ModelArgs"](**shape))
            assert {key: getattr(ModelArgs.from_name(name), key) for key in expected} == expected


def test_tokenizers(checkpoints: Path, tmp_path: Path) -> None:
    import base64

    from tokenizer import SentencePieceWrapper, TiktokenWrapper, get_tokenizer

    words = get_tokenizer(checkpoints / "tiny" / "tokenizer.model", "llama-3")
    assert isinstance(words, SentencePieceWrapper)
    assert words.decode(words.encode("Hello, my name")) == "Hello, my name"
    assert (words.bos_id(), words.eos_id()) == (1, 2)
    assert words.decode([*words.encode("Hello"), VOCAB + 7]) == words.decode([*words.encode("Hello"), 0])
    ranks = tmp_path / "llama3.model"
    lines = [base64.b64encode(bytes([i])).decode() + f" {i}" for i in range(256)]
    ranks.write_text("\n".join([*lines, base64.b64encode(b"my").decode() + " 256", ""]))
    bytewise = get_tokenizer(ranks, "stories")
    assert isinstance(bytewise, TiktokenWrapper)
    assert bytewise.encode("my a") == [256, 32, 97]
    assert bytewise.decode([256, 32, 97]) == "my a"
    assert (bytewise.bos_id(), bytewise.eos_id()) == (257, 258)
    (tmp_path / "broken").write_bytes(b"\0\1\2")
    with pytest.raises(UserError, match="neither a SentencePiece model"):
        get_tokenizer(tmp_path / "broken", "")
