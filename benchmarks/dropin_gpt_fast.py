"""Compare gpt-fast's unmodified generate.py, on its own modules and on ours, with our command and the engine.

Run alone on the machine: `python benchmarks/dropin_gpt_fast.py CHECKOUT`, where CHECKOUT is one of gpt-fast. The
checkpoint is random and written by this script; its layers share their weights in the file, but not on the device.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import sentencepiece
import torch

from genwright import LLM, SamplingParams
from genwright.dropin.gpt_fast.model import Transformer

ROOT = Path(__file__).parents[1]
PROMPT = "Hello, my name is"
RATE, COMPILED = re.compile(r"([\d.]+) tokens/sec$", re.MULTILINE), re.compile(r"Compilation time: ([\d.]+)")


def write_checkpoint(folder: Path, shape: str, device: str) -> Path:
    """A model.pth in bfloat16, a config.json, and a tokenizer that decodes every id."""
    with torch.device("meta"):
        model = Transformer.from_name(shape)
    drawn: dict[str, torch.Tensor] = {}
    state = {}
    for name, tensor in model.state_dict().items():
        key = re.sub(r"layers\.\d+", "layers", name)
        if key not in drawn:
            values = torch.randn(tensor.shape, dtype=torch.bfloat16, device=device) * 0.02
            drawn[key] = (torch.ones_like(values) if "norm" in name else values).cpu()
        state[name] = drawn[key]
    target = folder / shape
    target.mkdir()
    torch.save(state, target / "model.pth")
    (target / "config.json").write_text(json.dumps(model.config.hugging_face()), encoding="utf-8")
    words = [f"word{number}" for number in range(model.config.vocab_size - 100)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(map(chr, range(33, 127))),
        model_prefix=str(target / "tokenizer"),
        model_type="char",
        vocab_size=model.config.vocab_size,
        user_defined_symbols=words,
        minloglevel=2,
    )
    return target / "model.pth"


def run_engine(checkpoint: str, device: str, samples: int, max_new_tokens: int) -> None:
    """Print the engine's own rate of each call after the first, in gpt-fast's words."""
    with LLM(checkpoint, device=device, dtype="bfloat16") as llm:
        for number in range(-1, samples):
            params = SamplingParams(0.8, top_k=200, max_new_tokens=max_new_tokens, seed=number + 1, ignore_eos=True)
            started = time.perf_counter()
            llm.generate(PROMPT, params)
            seconds = time.perf_counter() - started
            if number < 0:
                print(f"Compilation time: {seconds:.2f} seconds", flush=True)
            else:
                print(f"{max_new_tokens / seconds:.2f} tokens/sec", flush=True)


def contenders(checkout: Path, checkpoint: Path, args: argparse.Namespace) -> dict[str, list[str]]:
    script, ours = str(checkout / "generate.py"), ["-m", "genwright", "dropin", "gpt_fast"]
    flags = ["--checkpoint_path", str(checkpoint), "--device", args.device, "--prompt", PROMPT, "--compile"]
    flags += ["--num_samples", str(args.samples), "--max_new_tokens", str(args.max_new_tokens)]
    engine = [__file__, "--engine", str(checkpoint), str(checkout), "--device", args.device]
    found = {
        "generate.py on its own modules": [script, *flags],
        "generate.py on our modules": [*ours, "--script", script, *flags],
        "genwright dropin gpt_fast generate": [*ours, "generate", *flags],
        "genwright.LLM": [*engine, "--samples", str(args.samples), "--max_new_tokens", str(args.max_new_tokens)],
    }
    return {name: found[name] for row, name in enumerate(found, 1) if row in (args.only or range(1, 5))}


def measure(command: list[str], folder: Path) -> tuple[list[float], float, float]:
    """Tokens/s of each sample, the seconds of the first call, and those of the whole process."""
    started = time.perf_counter()
    words = ["env", f"PYTHONPATH={ROOT}", sys.executable, *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(words)} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}", flush=True)
        return [], 0, 0
    compiled = COMPILED.search(done.stdout)
    rates = [float(rate) for rate in RATE.findall(done.stdout)]
    return rates, float(compiled[1]) if compiled else 0, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="A checkout of gpt-fast.")
    parser.add_argument("--shape", default="7B", help="A shape that gpt-fast knows.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=3, help="Calls that each contender times.")
    parser.add_argument("--max_new_tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1, help="Processes of each contender, in turns.")
    parser.add_argument("--only", type=int, nargs="+", choices=(1, 2, 3, 4), help="Contenders, by their rows.")
    parser.add_argument("--folder", type=Path, help="Where the checkpoint is written for the time of the run.")
    parser.add_argument("--engine", help=argparse.SUPPRESS)  # the checkpoint of a process that measures the engine
    args = parser.parse_args()
    if args.engine:
        run_engine(args.engine, args.device, args.samples, args.max_new_tokens)
        return
    machine = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    print(f"{args.shape} in bfloat16 on {machine}, torch {torch.__version__}, {args.max_new_tokens} tokens", flush=True)
    with TemporaryDirectory(dir=args.folder) as folder:
        checkpoint = write_checkpoint(Path(folder), args.shape, args.device)
        torch.cuda.empty_cache()
        commands = contenders(args.checkout.resolve(), checkpoint, args)
        rates: dict[str, list[float]] = {name: [] for name in commands}
        print(f"{'':36}{'median':>9}{'lowest':>9}{'highest':>9}   tokens/s")
        for _ in range(args.rounds):
            for name, command in commands.items():
                found, compiled, whole = measure(command, Path(folder))
                rates[name] += found
                if found:
                    row = "".join(f"{rate:9.1f}" for rate in (statistics.median(found), min(found), max(found)))
                    print(f"{name:36}{row}   first call {compiled:.1f} s, process {whole:.1f} s", flush=True)
    for name, found in rates.items():
        if args.rounds > 1 and found:
            print(f"{name:36}{statistics.median(found):9.1f}   in all rounds")


if __name__ == "__main__":
    main()
