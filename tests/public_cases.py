"""The scripts of public repositories that are run to their end, each with a commit, and what prepares its run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("GENWRIGHT_PUBLIC_SCRIPTS", "/nonexistent"))


def nothing(folder: Path, checkout: Path) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Case:
    """A script of a commit, what prepares its run and gives the scenario, the stubs, and what the records must hold."""

    script: str
    commit: str
    calls: dict[str, int]  # of each interface, at least
    events: dict[str, int] = field(default_factory=dict)
    prepare: Callable[[Path, Path], dict[str, Any]] = nothing
    stubs: tuple[str, ...] = ()  # packages that are anything that is asked of them
    needs: tuple[str, ...] = ()  # packages that must be real
    said: str = ""
    same: bool = False  # the original prints the same

    @property
    def checkout(self) -> Path:
        return HOME / self.script.partition("/")[0]


def made_by(code: str, folder: Path, checkout: Path) -> None:
    """Run a few lines in the checkout, with its modules: they make weights."""
    places = [folder.parent, checkout]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places)), "OUT": str(folder)}
    lines = f"import os\nOUT = os.environ['OUT']\n{code}"
    subprocess.run([sys.executable, "-c", lines], cwd=checkout, env=environment, check=True, timeout=300)


def nano_gpt(folder: Path, checkout: Path) -> dict[str, Any]:
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


def gpt_fast(folder: Path, checkout: Path) -> dict[str, Any]:
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


def consistency_models(folder: Path, checkout: Path) -> dict[str, Any]:
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


def gpt_2(folder: Path, checkout: Path) -> dict[str, Any]:
    model = folder / "124M"
    model.mkdir()
    (model / "hparams.json").write_text('{"n_vocab": 300, "n_ctx": 8, "n_embd": 4, "n_head": 2, "n_layer": 1}')
    (model / "encoder.json").write_text(json.dumps({chr(i): i for i in range(33, 127)}))
    (model / "vocab.bpe").write_text("#version: 0.2\nt h\n")
    return {"argv": [f"--models_dir={folder}", "--length=4"], "answers": ["hello", "", "world"]}


def deepseek(folder: Path, checkout: Path) -> dict[str, Any]:
    config = str(checkout / "inference" / "configs" / "config_16B.json")
    argv = ["--ckpt-path", str(folder), "--config", config, "--interactive", "--max-new-tokens", "3"]
    return {"argv": argv, "answers": ["Hello", "/clear", "What is the sky?", "/exit"]}


def local_gpt(folder: Path, checkout: Path) -> dict[str, Any]:
    return {"argv": ["--device_type", "cpu", "--show_sources"], "answers": ["What is a model?", "exit"]}


def llm(folder: Path, checkout: Path) -> dict[str, Any]:
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
        same=True,
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
        {"Session": 1, "Session.run": 1},
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
        "d5635adc385366be53bdd331b13587dbf95f436d",
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
