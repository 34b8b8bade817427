"""gpt-fast's generate module: its functions over the modules, and its command on the engine."""

import argparse
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from model import Transformer
from tokenizer import TokenizerInterface, get_tokenizer
from tp import apply_tp, launched_ranks

from genwright.bench.profile import profiled
from genwright.dropin.transformer.checkpoint import load_modules, model_size, open_llm, read_state, weight_format
from genwright.dropin.transformer.completion import Completion, Task, complete
from genwright.dropin.transformer.decoding import (
    causal_mask,
    decode_n_tokens,
    decode_one_token,
    generate,
    logits_to_probs,
    model_forward,
    multinomial_sample_one_no_sync,
    prefill,
    sample,
    speculative_decode,
)
from genwright.errors import UserError
from genwright.text.llm import LLM

__all__ = [
    "causal_mask", "decode_n_tokens", "decode_one_token", "device_sync", "encode_tokens", "generate",
    "logits_to_probs", "main", "model_forward", "multinomial_sample_one_no_sync", "prefill", "sample",
    "speculative_decode",
]  # fmt: skip

default_device = "cuda" if torch.cuda.is_available() else "cpu"
default_checkpoint = Path("checkpoints/meta-Transformer/Transformer-2-7b-chat-hf/model.pth")
B_INST, E_INST = "[INST]", "[/INST]"
SYNTHETIC = 1024  # a synthetic prompt is of ids below this


def device_sync(device: str) -> None:
    if "cuda" in device:
        torch.cuda.synchronize(device)


def encode_tokens(
    tokenizer: TokenizerInterface, string: str, bos: bool = True, device: str = default_device
) -> torch.Tensor:
    ids = [*([tokenizer.bos_id()] if bos else []), *tokenizer.encode(string)]
    return torch.tensor(ids, dtype=torch.int, device=device)


def _load_model(checkpoint_path: Path, device: str, precision: torch.dtype, use_tp: bool) -> Any:
    model = load_modules(checkpoint_path, Transformer, "cpu" if use_tp else device, precision)
    if use_tp:
        print("Applying tensor parallel to model ...")
        apply_tp(model)
    return model.to(device=device)


@dataclass
class Figures:
    """What the samples measured, and the lines that say so."""

    model_size: int  # bytes of a rank's part
    params: int  # likewise
    rates: list[float] = field(default_factory=list)  # tokens per second of one sequence
    accept_counts: list[list[int]] = field(default_factory=list)

    def add(self, done: Completion, prompt_length: int, seconds: float) -> None:
        rate = (len(done.rows[0]) - prompt_length) / seconds
        self.rates.append(rate)
        self.accept_counts.append(done.accept_counts)
        print(f"Time for inference {len(self.rates)}: {seconds:.02f} sec total, {rate:.02f} tokens/sec")
        print(f"Bandwidth achieved: {self.model_size * rate / 1e9:.02f} GB/s")
        computed = sum(map(len, done.rows)) / seconds
        print(f"FLOPS achieved: {self.params * computed * 2 / 1e12:.02f} TF/s\n")

    def print_acceptance(self, speculate_k: int) -> None:
        counts = [sum(c[i] for c in self.accept_counts if i < len(c)) for i in range(speculate_k + 1)]
        proposals = sum(counts) or 1
        print(f"Acceptance probs: {[count / proposals for count in counts]}")
        print(f"Mean Accepted: {sum(i * count for i, count in enumerate(counts)) / proposals}")


@dataclass
class Session:
    """A loaded model and what its samples need."""

    llm: LLM
    tokenizer: TokenizerInterface
    device: str
    figures: Figures

    def warm_up(self, task: Task) -> None:
        started = time.perf_counter()
        complete(self.llm, task)
        print(f"Compilation time: {time.perf_counter() - started:.2f} seconds")

    def sample(self, task: Task, trace: str | None = None) -> None:
        """Run a task, print its answer and its speed, and write its Chrome trace."""
        found: list[Completion] = []
        started = time.perf_counter()
        if trace is None:
            found.append(complete(self.llm, task))
        else:
            profiled(lambda: found.append(complete(self.llm, task)), Path(trace))
        device_sync(self.device)
        seconds = time.perf_counter() - started
        if task.show is not None:
            print()
        else:
            if task.batch_size > 1:
                print("Only displaying the first generation of the batch")
            print(self.tokenizer.decode(found[0].rows[0]))
        self.figures.add(found[0], len(task.prompt), seconds)

    def ids(self, prompt: int | str) -> list[int]:
        """The ids of a text, or so many random ones."""
        if isinstance(prompt, int):
            return torch.randint(0, SYNTHETIC, (prompt,), generator=torch.Generator().manual_seed(0)).tolist()
        return encode_tokens(self.tokenizer, prompt, device="cpu").tolist()

    def asked(self, task: Task, is_chat: bool) -> Task | None:
        """The task with a prompt that is typed, None at the end of input; its answer is shown while it is generated."""
        try:
            prompt = input("What is your prompt? ")
        except EOFError:
            print()
            return None
        ids = self.ids(f"{B_INST} {prompt.strip()} {E_INST}" if is_chat else prompt)
        return replace(task, prompt=ids, stop=True, show=lambda text: print(text, end="", flush=True))


def _tokenizer(checkpoint_path: Path) -> TokenizerInterface:
    path = checkpoint_path.parent / "tokenizer.model"
    if not path.is_file():
        raise UserError(f"There is no tokenizer {path}.")
    return get_tokenizer(path, checkpoint_path)


def main(
    prompt: int | str = "Hello, my name is",
    interactive: bool = False,
    num_samples: int = 5,
    max_new_tokens: int = 100,
    batch_size: int = 1,
    top_k: int = 200,
    temperature: float = 0.8,
    checkpoint_path: Path = default_checkpoint,
    compile: bool = True,
    compile_prefill: bool = False,
    profile: Path | None = None,
    draft_checkpoint_path: Path | None = None,
    speculate_k: int = 5,
    device: str = default_device,
) -> None:
    """Generate samples and print them with their speed.

    `compile` makes a first call, which is not timed: it compiles kernels and captures CUDA graphs. It contains the
    whole prompt, so there is nothing left for `compile_prefill`. Ranks of torchrun other than 0 open the model, follow
    rank 0, and end there.
    """
    if "mps" in device:
        raise UserError("--device mps is not supported; choose cpu or cuda.")
    rank, ranks = launched_ranks()
    with redirect_stdout(StringIO() if rank else sys.stdout):
        print(f"Using device={device}\nLoading model ...")
        started = time.time()
        state = read_state(checkpoint_path)
        if (found := weight_format(state)) is not None:
            print(f"Using {found} weight-only quantization!")
        if ranks > 1:
            print("Applying tensor parallel to model ...")
        figures = Figures(*(size // ranks for size in model_size(state)))
        tokenizer = _tokenizer(checkpoint_path)
        settings = {"speculate_k": speculate_k, "device": device, "tp": ranks}
        with open_llm(checkpoint_path, Transformer.args, draft_checkpoint_path, **settings) as llm:
            device_sync(device)
            print(f"Time to load model: {time.time() - started:.02f} seconds")
            session = Session(llm, tokenizer, device, figures)
            task = Task(session.ids(prompt), max_new_tokens, batch_size, temperature, top_k)
            if compile:
                session.warm_up(task)
            for number in range(num_samples):
                this = replace(task, seed=task.seed + number)
                if interactive:
                    if (asked := session.asked(this, "chat" in str(checkpoint_path))) is None:
                        break
                    this = asked
                traced = profile is not None and number == num_samples - 1
                session.sample(this, f"{profile}{'_rank_0' if ranks > 1 else ''}.json" if traced else None)
        print("==========")
        if draft_checkpoint_path is not None:
            figures.print_acceptance(speculate_k)
        print(f"Batch Size: {batch_size}\nPrompt Length: {len(task.prompt)}\nGenerated tokens: {max_new_tokens}")
        print(f"Average tokens/sec: {sum(figures.rates) / max(len(figures.rates), 1):.2f}")
        print(f"Memory used: {torch.cuda.max_memory_reserved() / 1e9:.02f} GB")


def _int_or_str(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Generate text with a model in gpt-fast's format.")
    add = parser.add_argument
    add("--prompt", type=_int_or_str, default="Hello, my name is", help="A text, or a number of random tokens.")
    add("--interactive", action="store_true", help="Ask for prompts, and show answers while they are generated.")
    add("--num_samples", type=int, default=5, help="How many samples to generate, one after the other.")
    add("--max_new_tokens", type=int, default=200, help="Tokens of a sample.")
    add("--batch_size", type=int, default=1, help="Sequences that are generated together, all of one prompt.")
    add("--top_k", type=int, default=200, help="Sample from the k most likely tokens.")
    add("--temperature", type=float, default=0.8, help="Sampling temperature; 0 is greedy.")
    add("--checkpoint_path", type=Path, default=default_checkpoint, help="The model.pth file.")
    add("--compile", action="store_true", help="Compile kernels and capture CUDA graphs in a first call.")
    add("--compile_prefill", action="store_true", help="The same for the prompt, which --compile contains.")
    add("--profile", type=Path, default=None, help="Write a Chrome trace of the last sample to PROFILE.json.")
    add("--speculate_k", type=int, default=5, help="Tokens that the draft proposes at a time.")
    add("--draft_checkpoint_path", type=Path, default=None, help="The model.pth file of a draft.")
    add("--device", default=default_device, help="cpu or cuda.")
    return parser


if __name__ == "__main__":
    main(**vars(parser().parse_args()))
