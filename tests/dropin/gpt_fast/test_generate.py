"""gpt-fast's generate: the command on the engine, its lines and files, and the functions over modules."""

import builtins
import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from dropin.gpt_fast.flags import FLAGS
from dropin.gpt_fast.tiny_gpt_fast import GREEDY, SHAPES, answer, run

from genwright.errors import UserError

LINES = """\
Using device=cpu
Loading model ...
Time to load model: N seconds
Compilation time: N seconds
Only displaying the first generation of the batch
TEXT
Time for inference 1: N sec total, N tokens/sec
Bandwidth achieved: N GB/s
FLOPS achieved: N TF/s

==========
Acceptance probs: \\[N, N, N, N\\]
Mean Accepted: N
Batch Size: 2
Prompt Length: N
Generated tokens: 12
Average tokens/sec: N
Memory used: N GB
"""


def load(checkpoints: Path, name: str):
    from generate import _load_model
    from model import transformer_configs

    transformer_configs.update(SHAPES)
    return _load_model(checkpoints / name / "model.pth", "cpu", torch.float32, False)


@pytest.mark.parametrize("command", FLAGS)
def test_every_flag_is_read(command: str) -> None:
    parser = importlib.import_module(command).parser()
    known = {flag: action.dest for action in parser._actions for flag in action.option_strings}
    default = vars(parser.parse_args([]))
    for flag, value in FLAGS[command].items():
        found = vars(parser.parse_args([flag] if value is None else [flag, value]))
        changed = {name for name in found if found[name] != default[name]}
        assert changed <= {known[flag]}, flag
        assert changed or str(default[known[flag]]) == str(value), flag


def test_the_list_of_flags_is_the_originals(original: Path) -> None:
    for folder in (original, original / "mixtral-moe"):
        for command, flags in FLAGS.items():
            file = folder / f"{command.replace('.', '/')}.py"
            if file.exists():
                calls = re.findall(r"add_argument\(\s*(.*?), (?:type|action|nargs)", file.read_text())
                found = {flag for call in calls for flag in re.findall(r"'(-[-\w]+)'", call)}
                assert found and found <= set(flags), file
                assert folder != original or found == set(flags)


def test_the_command_prints_the_originals_lines(checkpoints: Path, tmp_path: Path, capsys) -> None:
    from generate import main

    trace = tmp_path / "trace"
    main(
        num_samples=1,
        max_new_tokens=12,
        batch_size=2,
        temperature=0,
        checkpoint_path=checkpoints / "tiny" / "model.pth",
        profile=trace,
        draft_checkpoint_path=checkpoints / "tiny-draft" / "model.pth",
        speculate_k=3,
        device="cpu",
    )
    printed = "\n".join(line for line in capsys.readouterr().out.split("\n") if not line.startswith("USDT"))
    number = r"-?[0-9.]+(?:e-?[0-9]+)?"
    pattern = re.escape(LINES).replace(r"\\\[", r"\[").replace(r"\\\]", r"\]").replace(r"\ ", " ").replace(r"\-", "-")
    pattern = re.sub(r"\bN\b", lambda _: number, pattern).replace("TEXT", "Hello, my name is.*")
    assert re.fullmatch(pattern, printed), printed
    assert json.loads(trace.with_suffix(".json").read_text())["traceEvents"]


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_the_engines_tokens_are_the_modules(checkpoints: Path, name: str) -> None:
    from generate import generate

    from genwright.text.engine.request import SamplingParams
    from genwright.text.llm import LLM

    prompt = torch.tensor([1, 40, 300, 7])
    rows, _ = generate(load(checkpoints, name), prompt, 20, 2, interactive=False, draft_model=None, temperature=0)
    assert rows.shape == (2, 24)
    assert rows[0].tolist() == rows[1].tolist()
    with LLM(checkpoints / name / "model.pth", device="cpu", dtype="float32") as llm:
        found = llm.generate([prompt.tolist()], SamplingParams(max_new_tokens=20, ignore_eos=True))[0].ids
    assert rows[0, 4:].tolist() == found
    assert len(set(found)) > 10


def test_speculation_leaves_greedy_tokens_as_they_are(checkpoints: Path) -> None:
    from generate import generate

    model, draft, prompt = load(checkpoints, "tiny"), load(checkpoints, "tiny-draft"), torch.tensor([1, 40, 300, 7])
    shown: list[int] = []
    plain, _ = generate(model, prompt, 20, 1, interactive=False, draft_model=None, temperature=0, top_k=1)
    for helper in (draft, load(checkpoints, "tiny")):
        shown.clear()
        rows, stats = generate(
            model,
            prompt,
            20,
            1,
            interactive=False,
            draft_model=helper,
            speculate_k=3,
            temperature=0,
            top_k=1,
            callback=lambda token: shown.append(int(token)),
        )
        assert rows.tolist() == plain.tolist()
        assert shown == plain[0, 5:].tolist()
    counts = stats["accept_counts"]
    assert counts[:3] == [0, 0, 0] and counts[3] == 5  # the last draft is the model itself: 19 tokens, 4 at a time


def test_sampling_draws_from_the_most_likely_tokens() -> None:
    from generate import logits_to_probs, sample

    logits = torch.tensor([[[9.0, 9, 9, 9]], [[0.0, 1, 2, 3]]])
    probs = logits_to_probs(logits[:, -1], temperature=0.5, top_k=2)
    assert probs[1].tolist() == pytest.approx([0, 0, 1 / (1 + 7.389056), 7.389056 / (1 + 7.389056)])
    torch.manual_seed(0)
    drawn = torch.cat([sample(logits[1:], 0.5, 2)[0] for _ in range(200)])
    assert set(drawn.flatten().tolist()) == {2, 3}
    assert 0.8 < (drawn == 3).float().mean() < 0.95


def test_interactive_prompts_are_answered_as_they_come(checkpoints: Path, monkeypatch, capsys) -> None:
    from generate import main

    asked = ["Grant of License", "Copyright"]

    def typed(words: str) -> str:
        if not asked:
            raise EOFError
        return asked.pop(0)

    monkeypatch.setattr(builtins, "input", typed)
    path = checkpoints / "tiny" / "model.pth"
    main(interactive=True, num_samples=3, max_new_tokens=5, checkpoint_path=path, compile=False, device="cpu")
    printed = capsys.readouterr().out
    assert "Time for inference 2" in printed and "Average tokens/sec" in printed
    assert "Compilation time" not in printed


def test_a_number_is_a_synthetic_prompt(checkpoints: Path, capsys) -> None:
    from generate import parser

    assert parser().parse_args(["--prompt", "17"]).prompt == 17
    assert parser().parse_args(["--prompt", "17 days"]).prompt == "17 days"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "mps"}, "mps is not supported"),
        ({"checkpoint_path": Path("none.pth")}, "There is no checkpoint none.pth"),
        ({"draft_checkpoint_path": Path("none.pth")}, "There is no checkpoint none.pth"),
        ({"profile": Path("none/x"), "num_samples": 1}, r"There is no folder none for the trace x\.json"),
    ],
)
def test_mistakes_are_one_sentence(checkpoints: Path, changes, words: str) -> None:
    from generate import main

    with pytest.raises(UserError, match=words):
        main(**{"checkpoint_path": checkpoints / "tiny" / "model.pth", "device": "cpu", **changes})


def test_two_ranks_generate_what_one_does(checkpoints: Path, tmp_path: Path) -> None:
    command = ["-m", "genwright", "dropin", "gpt_fast", "generate"]
    flags = ["--checkpoint_path", checkpoints / "tiny" / "model.pth", *GREEDY]
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    shaped = ["-m", "genwright", "dropin", "gpt_fast", "--script", Path(__file__).parents[1] / "with_shapes.py"]
    own = Path(__file__).parents[3] / "genwright" / "dropin" / "gpt_fast" / "generate.py"
    output = run([*ranks, *shaped, own, *flags, "--profile", tmp_path / "trace"], tmp_path)
    assert (tmp_path / "trace_rank_0.json").exists()
    assert output.count("Applying tensor parallel to model ...") == 1  # rank 0's
    assert answer(output) == answer(run([*command, *flags], tmp_path))
