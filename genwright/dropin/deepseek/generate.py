"""DeepSeek's generate module: its functions over the Transformer, and its command on the engine."""

import argparse
import os
from pathlib import Path

import torch
from model import ModelArgs, Transformer
from torch import Tensor

from genwright.errors import UserError
from genwright.text.conversation import Conversation
from genwright.text.engine.request import SamplingParams
from genwright.text.llm import LLM

__all__ = ["generate", "main", "sample"]

SEED = 965
CONFIGS = Path(__file__).with_name("configs")


def sample(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Draw a token from each row of logits: the largest p / e, with e drawn from an exponential distribution."""
    probabilities = torch.softmax(logits / max(temperature, 1e-5), dim=-1)
    return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(dim=-1)


@torch.inference_mode()
def generate(
    model: Transformer, prompt_tokens: list[list[int]], max_new_tokens: int, eos_id: int, temperature: float = 1.0
) -> list[list[int]]:
    """The tokens after each prompt, up to `eos_id`; prompts that are shorter than others start answering earlier."""
    lengths = [len(prompt) for prompt in prompt_tokens]
    if max(lengths) > model.max_seq_len:
        raise UserError(f"A prompt has {max(lengths):,} tokens, but max_seq_len is {model.max_seq_len:,}.")
    total = min(model.max_seq_len, max_new_tokens + max(lengths))
    device = next(model.parameters()).device
    given = torch.tensor([prompt + [-1] * (total - len(prompt)) for prompt in prompt_tokens], device=device)
    tokens, is_prompt = given.clone(), given != -1
    finished = torch.zeros(len(tokens), dtype=torch.bool, device=device)
    computed = 0
    for position in range(min(lengths), total):
        logits = model(tokens[:, computed:position], computed)
        drawn = sample(logits, temperature) if temperature > 0 else logits.argmax(dim=-1)
        tokens[:, position] = torch.where(is_prompt[:, position], given[:, position], drawn)
        finished |= ~is_prompt[:, position] & (drawn == eos_id)
        computed = position
        if finished.all():
            break
    answers = [row[n : n + max_new_tokens] for row, n in zip(tokens.tolist(), lengths, strict=True)]
    return [answer[: answer.index(eos_id)] if eos_id in answer else answer for answer in answers]


def main(
    ckpt_path: str,
    config: str,
    input_file: str = "",
    interactive: bool = True,
    max_new_tokens: int = 100,
    temperature: float = 1.0,
) -> None:
    """Answer the lines of a file, or what is typed, with the engine; torchrun's ranks share the experts."""
    if not (input_file or interactive):
        raise UserError("Either --input-file or --interactive must be given.")
    path = Path(config) if Path(config).exists() else CONFIGS / Path(config).name
    args = ModelArgs.from_file(path)
    if os.environ.get("RANK", "0") == "0":
        print(args)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    params = SamplingParams(temperature=max(temperature, 0), max_new_tokens=max_new_tokens, seed=SEED)
    with LLM(ckpt_path, arch=str(path), ep=ranks, max_context=args.max_seq_len) as llm:
        if interactive:
            _converse(llm, params)
        else:
            _answer_lines(llm, Path(input_file), params)


def _converse(llm: LLM, params: SamplingParams) -> None:
    """Answer prompts until /exit or the end of the input; /clear starts anew."""
    if llm.tokenizer is None:
        raise UserError("--interactive needs a tokenizer in --ckpt-path.")
    conversation = Conversation(llm, llm.tokenizer)
    while True:
        try:
            prompt = input(">>> ")
        except EOFError:
            return
        if prompt == "/exit":
            return
        if prompt == "/clear":
            conversation.clear()
            continue
        for piece in conversation.ask(prompt, params):
            print(piece.text, end="", flush=True)
        print()


def _answer_lines(llm: LLM, file: Path, params: SamplingParams) -> None:
    if not file.is_file():
        raise UserError(f"There is no input file {file}.")
    prompts = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    chats = [llm.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    for prompt, result in zip(prompts, llm.generate(chats, params), strict=True):
        print(f"Prompt: {prompt}\nCompletion: {result.text}\n")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Generate text with a model in DeepSeek's format.")
    add = parser.add_argument
    add("--ckpt-path", required=True, help="The folder of shards and of the tokenizer.")
    add("--config", required=True, help="The shape of the model: a file, or one of configs/, such as config_671B.json.")
    add("--input-file", default="", help="Answer each line of this file.")
    add("--interactive", action="store_true", help="Answer what is typed; /clear starts anew, and /exit ends.")
    add("--max-new-tokens", type=int, default=200, help="The most tokens of an answer.")
    add("--temperature", type=float, default=0.2, help="Sampling temperature; 0 is greedy.")
    return parser


if __name__ == "__main__":
    given = parser().parse_args()
    main(given.ckpt_path, given.config, given.input_file, given.interactive, given.max_new_tokens, given.temperature)
