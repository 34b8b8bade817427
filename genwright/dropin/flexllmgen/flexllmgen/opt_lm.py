"""Policy and OptLM: FlexLLMGen's placement policy and model, over LLM."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from flexllmgen.breakdown import measured_moves, print_breakdown
from flexllmgen.compression import CompressionConfig
from flexllmgen.opt_config import OptConfig, get_opt_config, open_weights
from flexllmgen.timer import timers
from flexllmgen.utils import ExecutionEnv
from genwright.errors import UserError
from genwright.placement import policy as placement
from genwright.text.engine.request import Piece, SamplingParams
from genwright.text.llm import LLM

BREAKDOWN = "breakdown"
DEBUG_MODES = ("fewer_batch", BREAKDOWN)
_DEBUG_STEPS = 4  # that a debug mode runs, prefill included


@dataclass(frozen=True)
class Policy:
    """Where weights, cache and activations live, and in which batches a step runs, in FlexLLMGen's words."""

    gpu_batch_size: int
    num_gpu_batches: int
    w_gpu_percent: float
    w_cpu_percent: float
    cache_gpu_percent: float
    cache_cpu_percent: float
    act_gpu_percent: float
    act_cpu_percent: float
    overlap: bool
    sep_layer: bool
    pin_weight: bool
    cpu_cache_compute: bool
    attn_sparsity: float
    compress_weight: bool
    comp_weight_config: CompressionConfig
    compress_cache: bool
    comp_cache_config: CompressionConfig

    @property
    def w_disk_percent(self) -> float:
        return 100 - self.w_gpu_percent - self.w_cpu_percent

    @property
    def cache_disk_percent(self) -> float:
        return 100 - self.cache_gpu_percent - self.cache_cpu_percent

    @property
    def act_disk_percent(self) -> float:
        return 100 - self.act_gpu_percent - self.act_cpu_percent


def _engine_settings(config: OptConfig, env: ExecutionEnv, policy: Policy) -> dict[str, Any]:
    """The settings of LLM that a policy asks for."""
    if policy.compress_cache and policy.attn_sparsity < 1:
        raise UserError("compress_cache and an attn_sparsity below 1 cannot be combined.")
    if env.disk is None and max(policy.w_disk_percent, policy.cache_disk_percent, policy.act_disk_percent) > 0:
        raise UserError("The policy keeps a part on disk, but the environment has no disk.")
    gpu = env.gpu or env.cpu
    device = "auto" if gpu is None else gpu.engine_device
    faster = config.dtype is np.float16 and not device.startswith("cuda")  # than float16 is what a CPU computes in
    return {
        "device": device,
        "dtype": "auto" if faster else np.dtype(config.dtype).name,
        "quant": policy.comp_weight_config.weight_format() if policy.compress_weight else None,
        "kv": policy.comp_cache_config.cache_format() if policy.compress_cache else "auto",
        "offload": _placement(policy),
        "offload_dir": None if env.disk is None else env.disk.path,
    }


def _placement(policy: Policy) -> placement.Policy | None:
    """The same policy for the engine; None if all of it is on the GPU, where weights need no moving."""
    names = ("w_gpu", "w_cpu", "cache_gpu", "cache_cpu", "act_gpu", "act_cpu")
    percents = (getattr(policy, f"{name}_percent") for name in names)
    shares: dict[str, Any] = {
        name: int(percent) if int(percent) == percent else percent
        for name, percent in zip(placement.SHARES, percents, strict=True)
    }
    found = placement.Policy(
        **shares,
        micro_batch=policy.gpu_batch_size,
        micro_batches=policy.num_gpu_batches,
        overlap=policy.overlap,
        separate_layers=policy.sep_layer,
        pin=policy.pin_weight,
        cpu_attention=policy.cpu_cache_compute,
        sparsity=policy.attn_sparsity,
    )
    return None if found.resident and found.sparsity == 1 else found


class OptLM:
    """An OPT model whose `generate` takes and returns rows of token ids, padded on the left."""

    stages = 1  # ranks, each of which has some of the layers

    def __init__(self, config: str | OptConfig, env: ExecutionEnv, path: str, policy: Policy):
        self.config = get_opt_config(config) if isinstance(config, str) else config
        self.env, self.path, self.policy = env, path, policy
        self.num_gpu_batches = policy.num_gpu_batches
        self.num_layers = 2 + self.config.num_hidden_layers * (2 if policy.sep_layer else 1)
        with open_weights(self.config, path) as model:
            self.llm = LLM(model, pp=self.stages, **_engine_settings(self.config, env, policy))
        self.vocab_size = self.llm.model.cfg.vocab_size
        if env.disk is not None:
            env.disk.models.add(self)

    def close(self) -> None:
        """End the engine; `ExecutionEnv.close_copy_threads` calls it."""
        self.llm.close()

    def generate(
        self,
        inputs: np.ndarray | Sequence[Sequence[int]],
        max_new_tokens: int = 32,
        do_sample: bool = False,
        temperature: float = 1.0,
        stop: int | None = None,
        debug_mode: str | None = None,
        cut_gen_len: int | None = None,
        verbose: int = 0,
    ) -> np.ndarray:
        """Rows of prompt and answer [batch, prompt + max_new_tokens]; what follows a stop id is padding.

        `cut_gen_len` ends after so many tokens, and a debug mode after a few; the rest is padding. The seconds of each
        step are in `timers("generate").costs`, those that a debug mode leaves out as the mean of the others. In a
        breakdown of a policy with overlap, moves count as far as they are waited for. `verbose` prints nothing, as in
        FlexLLMGen.
        """
        batch, lengths = self.policy.gpu_batch_size * self.policy.num_gpu_batches, {len(row) for row in inputs}
        if len(inputs) != batch or len(lengths) != 1:
            raise UserError(
                f"The policy needs {batch} prompts of one length, not {len(inputs)} of {sorted(lengths)} tokens."
            )
        rows = np.asarray(inputs)
        if debug_mode not in (None, *DEBUG_MODES):
            raise UserError(f"debug_mode must be {' or '.join(DEBUG_MODES)}, not {debug_mode!r}.")
        steps = min(cut_gen_len or max_new_tokens, max_new_tokens)
        run = min(steps, _DEBUG_STEPS) if debug_mode else steps
        with measured_moves(self.llm, debug_mode == BREAKDOWN) as moves:
            answers, costs = self._answers(rows, run, temperature if do_sample else 0.0, stop)
        output = np.full((len(rows), rows.shape[1] + max_new_tokens), self.config.pad_token_id, np.int32)
        output[:, : rows.shape[1]] = rows
        for row, answer in zip(output, answers, strict=True):
            row[rows.shape[1] : rows.shape[1] + len(answer)] = answer
        if debug_mode == BREAKDOWN:
            print_breakdown(costs, moves, self.num_layers, self.num_gpu_batches, max_new_tokens)
        if debug_mode:
            costs += [sum(costs[1:]) / max(len(costs) - 1, 1)] * (steps - len(costs))
        timers("generate").costs += costs
        return output

    def complete(self, rows: Sequence[Sequence[int]], steps: int) -> list[list[int]]:
        """The greedy answers of `steps` tokens to any number of padded prompts, each behind its prompt."""
        answers, _ = self._answers(np.asarray(rows), steps, 0.0, None)
        return [[*row, *answer] for row, answer in zip(rows, answers, strict=True)]

    def _answers(
        self, rows: np.ndarray, steps: int, temperature: float, stop: int | None
    ) -> tuple[list[list[int]], list[float]]:
        """The tokens that follow each row, and the seconds from one to the next until all rows had it."""
        prompts = [self._without_padding(row, steps) for row in rows]
        greedy = SamplingParams(max_new_tokens=steps, ignore_eos=True, stop_ids=(stop,) if stop else ())
        params = [greedy] * len(rows)
        if temperature >= 1e-5:
            # Seeds of torch's generator, so that torch.manual_seed repeats a run.
            seeds = torch.randint(1 << 62, (len(rows),)).tolist()
            params = [replace(greedy, temperature=temperature, seed=seed) for seed in seeds]
        times, counts = [time.perf_counter()], [0] * len(rows)  # times[i]: when the last row had i tokens

        def count(piece: Piece) -> None:
            for _ in piece.ids:
                counts[piece.index] += 1
                times[counts[piece.index] : counts[piece.index] + 1] = [time.perf_counter()]

        results = self.llm.generate(prompts, params, count)
        if any(result.finish_reason == "error" for result in results):
            raise UserError("The model computed logits that are not numbers; check its weights.")
        return [result.ids for result in results], np.diff(np.maximum.accumulate(times)).tolist()

    def _without_padding(self, row: np.ndarray, steps: int) -> list[int]:
        """A prompt's own tokens, for an answer of `steps` more."""
        prompt: list[int] = row[row != self.config.pad_token_id].tolist()
        if not prompt or row[-1] == self.config.pad_token_id:
            raise UserError("A prompt must be padded on the left and have at least one token.")
        if len(prompt) + steps > self.llm.max_context:
            raise UserError(
                f"A prompt of {len(prompt)} tokens and {steps} new ones exceed the context, {self.llm.max_context}."
            )
        return prompt
