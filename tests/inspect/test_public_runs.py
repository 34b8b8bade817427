"""Scripts of ten public repositories, rewritten by the whole command, run to their end with nobody there.

GENWRIGHT_PUBLIC_SCRIPTS names a folder of checkouts at the commits below; docs/inspect-projects.md lists the outcomes.
Models are tiny and random where their code runs on a CPU; packages that cannot run here are stubs.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fixture_cases import FIXTURES, ROOT

from genwright.inspect.run.records import Record, read_records

STUBS = FIXTURES / "public_stubs"
HOME = Path(os.environ.get("GENWRIGHT_PUBLIC_SCRIPTS", "/nonexistent"))
pytestmark = pytest.mark.skipif(not HOME.is_dir(), reason="GENWRIGHT_PUBLIC_SCRIPTS names no folder of checkouts")


def nothing(folder: Path, checkout: Path) -> dict[str, object]:
    return {}


@dataclass(frozen=True)
class Case:
    """A script of a commit, what prepares its run and gives the scenario, the stubs, and what the records must hold."""

    script: str
    commit: str
    calls: dict[str, int]  # of each interface, at least
    events: dict[str, int] = field(default_factory=dict)
    prepare: Callable[[Path, Path], dict[str, object]] = nothing
    stubs: tuple[str, ...] = ()  # packages that are anything that is asked of them
    needs: tuple[str, ...] = ()  # packages that must be real
    said: str = ""

    @property
    def checkout(self) -> Path:
        return HOME / self.script.partition("/")[0]


def made_by(code: str, folder: Path, checkout: Path) -> None:
    """Run a few lines in the checkout, with its modules: they make weights."""
    places = [folder.parent, checkout]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places)), "OUT": str(folder)}
    lines = f"import os\nOUT = os.environ['OUT']\n{code}"
    subprocess.run([sys.executable, "-c", lines], cwd=checkout, env=environment, check=True, timeout=300)


def nano_gpt(folder: Path, checkout: Path) -> dict[str, object]:
    code = """
import pickle, torch
from model import GPT, GPTConfig
sizes = dict(n_layer=1, n_head=2, n_embd=16, block_size=32, bias=False, vocab_size=64, dropout=0.0)
state = GPT(GPTConfig(**sizes)).state_dict()
torch.save({"model": state, "model_args": sizes, "config": {"dataset": OUT}}, f"{OUT}/ckpt.pt")
letters = dict(enumerate([chr(10), *(chr(33 + i) for i in range(63))]))
with open(f"{OUT}/meta.pkl", "wb") as file:
    pickle.dump({"stoi": {c: i for i, c in letters.items()}, "itos": letters}, file)
"""
    made_by(code, folder, checkout)
    return {"argv": [f"--out_dir={folder}", "--device=cpu", "--num_samples=3", "--max_new_tokens=5"]}


def gpt_fast(folder: Path, checkout: Path) -> dict[str, object]:
    code = """
import sentencepiece, torch
from model import Transformer
folder = f"{OUT}/stories15M"
os.makedirs(folder)
model = Transformer.from_name("stories15M")
state = model.state_dict()
state["output.weight"][300:] = 0  # the most likely token is one of the vocabulary
torch.save({"model": state}, f"{folder}/stories15M.pt")
text = [f"the quick brown fox {i} jumps over the lazy dog" for i in range(200)]
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(text), model_prefix=f"{folder}/tokenizer", vocab_size=320, model_type="bpe",
    hard_vocab_limit=False, byte_fallback=True)
"""
    made_by(code, folder, checkout)
    weights = folder / "stories15M" / "stories15M.pt"
    options = ["--num_samples", "2", "--max_new_tokens", "3", "--top_k", "1", "--device", "cpu"]
    return {
        "argv": ["--checkpoint_path", str(weights), *options],
        "environment": {"TORCHDYNAMO_DISABLE": "1"},
    }


def consistency_models(folder: Path, checkout: Path) -> dict[str, object]:
    options = {
        "image_size": 16,
        "num_channels": 32,
        "num_res_blocks": 1,
        "channel_mult": "1,2",
        "num_head_channels": 16,
    }
    options |= {"attention_resolutions": "8", "class_cond": False, "use_fp16": False, "resblock_updown": True}
    code = f"""
import torch
from cm.script_util import create_model_and_diffusion, model_and_diffusion_defaults
model, _ = create_model_and_diffusion(**model_and_diffusion_defaults() | {options!r})
torch.save(model.state_dict(), f"{{OUT}}/model.pt")
"""
    made_by(code, folder, checkout)
    argv = [f"--{name}={value}" for name, value in options.items()]
    argv += [f"--model_path={folder}/model.pt", "--num_samples=2", "--batch_size=2", "--steps=3", "--sampler=heun"]
    return {"argv": argv, "environment": {"OPENAI_LOGDIR": str(folder / "log")}}


def gpt_2(folder: Path, checkout: Path) -> dict[str, object]:
    model = folder / "124M"
    model.mkdir()
    (model / "hparams.json").write_text('{"n_vocab": 300, "n_ctx": 8, "n_embd": 4, "n_head": 2, "n_layer": 1}')
    (model / "encoder.json").write_text(json.dumps({chr(i): i for i in range(33, 127)}))
    (model / "vocab.bpe").write_text("#version: 0.2\nt h\n")
    return {"argv": [f"--models_dir={folder}", "--length=4"], "answers": ["hello", "", "world"]}


def deepseek(folder: Path, checkout: Path) -> dict[str, object]:
    config = str(checkout / "inference" / "configs" / "config_16B.json")
    argv = ["--ckpt-path", str(folder), "--config", config, "--interactive", "--max-new-tokens", "3"]
    return {"argv": argv, "answers": ["Hello", "/clear", "What is the sky?", "/exit"]}


def local_gpt(folder: Path, checkout: Path) -> dict[str, object]:
    return {"argv": ["--device_type", "cpu", "--show_sources"], "answers": ["What is a model?", "exit"]}


def llm(folder: Path, checkout: Path) -> dict[str, object]:
    """A model of its own, which answers a text backwards, as a plugin beside the stubs."""
    (folder.parent / "llm_backwards.py").write_text(
        "import llm\n"
        "class Backwards(llm.Model):\n"
        "    model_id, can_stream = 'backwards', False\n"
        "    def execute(self, prompt, stream, response, conversation=None):\n"
        "        yield prompt.prompt[::-1]\n"
        "@llm.hookimpl\n"
        "def register_models(register):\n"
        "    register(Backwards())\n"
    )
    about = folder.parent / "llm_backwards-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-backwards\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[llm]\nbackwards = llm_backwards\n")
    answers = ["hello there", "!multi", "one", "two", "!end", "exit"]
    return {"argv": ["chat", "-m", "backwards"], "answers": answers, "environment": {"LLM_USER_PATH": str(folder)}}


CASES = [
    Case(
        "nanoGPT/sample.py",
        "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        {"GPT": 1, "GPT.generate": 3},
        prepare=nano_gpt,
        said="---------------",
    ),
    Case(
        "minGPT/demo.ipynb",
        "37baab71b9abea1b76ab957409a1cc2fbfba8a26",
        {"GPT": 1, "GPT.generate": 3},
        prepare=lambda folder, checkout: {"set": {"train_config.max_iters": 3, "eval_split.max_batches": 1}},
        said="final score",
    ),
    Case(
        "gpt-fast/generate.py",
        "6ecad9b5b6b987d17ac4303965545873d0192086",
        {"generate": 2},
        prepare=gpt_fast,
        said="Average tokens/sec",
    ),
    Case(
        "consistency_models/scripts/image_sample.py",
        "e32b69ee436d518377db86fb2127a3972d0d8716",
        {"karras_sample": 1},
        prepare=consistency_models,
        stubs=("torchvision", "piq", "mpi4py", "blobfile", "flash_attn"),
        said="sampling complete",
    ),
    Case(
        "gpt-2/src/interactive_conditional_samples.py",
        "9b63575ef42771a015060c964af2c3da4cf7c8ab",
        {"sample_sequence": 1},
        {"answer": 3, "end-of-answers": 1},
        gpt_2,
        ("tensorflow", "model", "encoder"),
        ("fire",),
        "Prompt should not be empty!",
    ),
    Case(
        "DeepSeek-V3/inference/generate.py",
        "9b4e9788e4a3a731f7567338ed15d3ec549ce03b",
        {"generate": 3},
        {"answer": 4},
        deepseek,
        ("model", "torch", "transformers", "safetensors", "triton"),
    ),
    Case(
        "localGPT/run_localGPT.py",
        "d5635ad",
        {"load_full_model": 1},
        {"answer": 2},
        local_gpt,
        ("torch", "transformers", "langchain", "chromadb", "auto_gptq", "huggingface_hub", "dotenv"),
        ("click",),
        "> Answer:",
    ),
    Case(
        "llm/llm/cli.py",
        "f3f4f29c6e5e623c3776cbf6455dda2345638214",
        {"Conversation.chain": 2},
        {"answer": 6},
        llm,
        needs=("click", "click_default_group", "sqlite_utils", "pluggy", "ulid"),
        said="ereht olleh",
    ),
    Case(
        "face_recognition/examples/facerec_from_webcam.py",
        "2e2dccea9dd0ce730c8d464d0f67c6eebb40c9d1",
        {"face_encodings": 3, "face_locations": 1},
        {"window": 1},
        stubs=("dlib", "face_recognition_models"),
        needs=("cv2",),
    ),
    Case(
        "Spark-TTS/webui.py",
        "2f1ea9082400547242641f5271b6f941c9f439d1",
        {"SparkTTS": 1, "SparkTTS.inference": 2},
        stubs=("cli",),
        needs=("gradio", "soundfile"),
    ),
    Case(
        "LAVIS/app/caption.py",
        "506965b9c4a18c1e565bd32acaccabe0198433f7",
        {"generate_caption": 1},
        stubs=("lavis", "skimage"),
        needs=("streamlit",),
    ),
]


def toml(value: object) -> str:
    """A scenario's value as TOML, which for these values is JSON."""
    return json.dumps(value)


def run(case: Case, folder: Path) -> tuple[str, list[Record]]:
    """Rewrite a script by the command and run what it wrote; what it printed and its records."""
    weights = folder / "weights"
    weights.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nfrom stub_packages import Finder\n"
        f"sys.meta_path.insert(0, Finder(frozenset({case.stubs!r}), {str(STUBS)!r}))\n"
        if case.stubs
        else ""
    )
    scenario = case.prepare(weights, case.checkout)
    lines = [f"{key} = {toml(value)}" for key, value in scenario.items() if isinstance(value, list)]
    for key, table in scenario.items():
        if isinstance(table, dict):
            lines += [f"[{key}]", *(f"{name} = {toml(value)}" for name, value in table.items())]
    (folder / "scenario.toml").write_text("\n".join(lines) + "\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "GENWRIGHT_RECORDS": str(folder / "records"),
        "GENWRIGHT_HOME": str(folder / "home"),
    }
    command = [sys.executable, "-m", "genwright", "inspect", "rewrite", str(HOME / case.script)]
    command += ["--scenario", str(folder / "scenario.toml"), "--out", str(folder / "rewritten")]
    written = subprocess.run(
        command, cwd=folder, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert written.returncode == 0, written.stderr
    script = folder / "rewritten" / Path(case.script).with_suffix(".py").name
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=(HOME / case.script).parent,
        env=environment,
        input="typed by nobody\n",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stdout + done.stderr, [r for path in (folder / "records").glob("*/*") for r in read_records(path)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.script.partition("/")[0])
def test_a_rewritten_script_runs_to_its_end(case: Case, tmp_path: Path) -> None:
    if not case.checkout.is_dir():
        pytest.skip(f"{HOME} has no checkout of {case.checkout.name}")
    for package in case.needs:
        pytest.importorskip(package)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=case.checkout, capture_output=True, text=True)
    assert head.stdout.startswith(case.commit), f"{case.checkout.name} is not at {case.commit}"
    output, records = run(case, tmp_path)
    calls = Counter(r.interface for r in records if r.event in ("run", "create"))
    assert all(calls[name] >= count for name, count in case.calls.items()), calls
    assert all(r.status == "returned" for r in records if r.event in ("run", "create"))
    events = Counter(r.event for r in records)
    assert all(events[name] >= count for name, count in case.events.items()), events
    assert case.said in output and "typed by nobody" not in output
