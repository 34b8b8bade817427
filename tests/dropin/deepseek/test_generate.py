"""DeepSeek's generate: its functions beside the engine, and its command for files and conversations, on ranks too."""

import io
from pathlib import Path

import pytest
import torch
from dropin.deepseek.tiny_deepseek import ANSWER, PROMPTS, SHAPES, TORCHRUN, run
from safetensors.torch import load_model

from genwright import LLM, SamplingParams
from genwright.errors import UserError

GREEDY = SamplingParams(max_new_tokens=ANSWER)
TYPED = f"{PROMPTS[0]}\n/clear\n{PROMPTS[1]}\n/exit\nnever read\n"


@pytest.fixture(scope="module")
def llm(checkpoints: Path):
    with LLM(checkpoints / "v2", device="cpu", dtype="float32") as llm:
        yield llm


def test_greedy_tokens_are_the_engines(checkpoints: Path, llm: LLM) -> None:
    from generate import generate
    from model import ModelArgs, Transformer

    model = Transformer(ModelArgs(**SHAPES["v2"])).float()
    load_model(model, checkpoints / "v2-mp1" / "model0-mp1.safetensors")
    prompts = [llm.encode_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    assert len({len(prompt) for prompt in prompts}) > 1
    expected = [r.ids for r in llm.generate(prompts, SamplingParams(max_new_tokens=ANSWER, ignore_eos=True))]
    assert generate(model, prompts, ANSWER, eos_id=-1, temperature=0) == expected
    end = expected[0][4]
    assert generate(model, prompts[:1], ANSWER, eos_id=end, temperature=0) == [expected[0][: expected[0].index(end)]]
    with pytest.raises(UserError, match="A prompt has 300 tokens, but max_seq_len is 256"):
        generate(model, [[1] * 300], 1, -1)


def test_samples_follow_the_distribution() -> None:
    from generate import sample

    torch.manual_seed(0)
    drawn = sample(torch.tensor([0.0, 1.0, 2.0]).expand(20000, 3), temperature=0.5)
    frequencies = drawn.bincount(minlength=3) / len(drawn)
    expected = torch.tensor([0.0, 2.0, 4.0]).softmax(dim=0)
    torch.testing.assert_close(frequencies, expected, rtol=0, atol=0.01)


def test_a_file_and_a_conversation(
    checkpoints: Path, llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from generate import main

    file, config = tmp_path / "prompts.txt", str(checkpoints / "v2.json")
    file.write_text("\n".join(PROMPTS[:2]))
    answers = [llm.chat([{"role": "user", "content": prompt}], GREEDY).text for prompt in PROMPTS[:2]]
    main(str(checkpoints / "v2-mp1"), config, str(file), False, ANSWER, 0.0)
    first, _, printed = capsys.readouterr().out.partition("\n")
    assert first.startswith("ModelArgs(max_batch_size=3, max_seq_len=256, ")
    assert printed == "".join(f"Prompt: {p}\nCompletion: {a}\n\n" for p, a in zip(PROMPTS[:2], answers, strict=True))
    monkeypatch.setattr("sys.stdin", io.StringIO(TYPED))
    main(str(checkpoints / "v2-mp2"), config, "", True, ANSWER, 0.0)  # one rank reads the shards of two
    assert capsys.readouterr().out.partition("\n")[2] == f">>> {answers[0]}\n>>> >>> {answers[1]}\n>>> "


def test_two_ranks_converse(checkpoints: Path, llm: LLM, tmp_path: Path) -> None:
    answers = [llm.chat([{"role": "user", "content": prompt}], GREEDY).text for prompt in PROMPTS[:2]]
    flags = ["--config", checkpoints / "v2.json", "--max-new-tokens", ANSWER, "--temperature", "0", "--interactive"]
    command = ["-m", "genwright", "dropin", "deepseek", "--ckpt-path", checkpoints / "v2-mp2", *flags]
    done = run([*TORCHRUN, *command], tmp_path, typed=TYPED)
    assert done.stdout.partition("\n")[2] == f">>> {answers[0]}\n>>> >>> {answers[1]}\n>>> "


def test_mistakes_are_one_sentence(checkpoints: Path, tmp_path: Path) -> None:
    from generate import main

    shards, config, wrong = str(checkpoints / "v2-mp1"), str(checkpoints / "v2.json"), tmp_path / "wrong.json"
    wrong.write_text('{"layers": 3}')
    with pytest.raises(UserError, match="Either --input-file or --interactive must be given"):
        main(shards, config, interactive=False)
    with pytest.raises(UserError, match=r"There is no input file none\.txt"):
        main(shards, config, "none.txt", interactive=False)
    with pytest.raises(UserError, match=r"wrong\.json has 'layers', which is not a setting of DeepSeek's"):
        main(shards, str(wrong))
    with pytest.raises(UserError, match=r"configs/config_1B\.json"):
        main(shards, "configs/config_1B.json")


@pytest.mark.parametrize("name", ["16B", "236B", "671B", "v3.1"])
def test_configurations_are_the_published_shapes(name: str) -> None:
    from generate import CONFIGS
    from model import ModelArgs

    from genwright.text.architectures.registry import named_shape, read_config

    shape = {"16B": "deepseek-v2-lite", "236B": "deepseek-v2"}.get(name, "deepseek-v3")
    ours = ModelArgs.from_file(CONFIGS / f"config_{name}.json").model_config()
    theirs = read_config(named_shape(shape), shape)
    for field in ("dim", "layers", "heads", "vocab_size", "ffn_dim", "mla", "moe", "rope", "attention"):
        assert getattr(ours, field) == getattr(theirs, field), field
