"""The planner's predictions beside measurements, for several budgets: `python benchmarks/planner.py`.

The default is OPT-13B with random weights on a GPU, and a few layers of OPT-1.3B on a CPU. `--model`, `--quant` and
others change the case; `--budgets 8 16` are GB of the memory that is computed in.
"""

import argparse
import gc
import random
from typing import Any

import torch

from genwright import LLM, SamplingParams
from genwright.device import pick_device
from genwright.placement.footprint import Workload
from genwright.placement.planner import Plan
from genwright.placement.prediction import Timing, side_by_side
from genwright.text.build import open_model, plan_engine
from genwright.text.settings import EngineConfig

CASES: dict[str, dict[str, Any]] = {
    "cpu": {"model": "random:opt-1.3b,layers=8", "budgets": (1.0, 1.3, 1.6, 2.0, 4.0), "lengths": (32, 9), "batch": 4},
    "cuda": {"model": "random:opt-13b", "budgets": (8.0, 16.0, 24.0, 40.0, 80.0), "lengths": (256, 32), "batch": 128},
}


def measure(model: str, config: EngineConfig, plan: Plan) -> Timing:
    """Run as many sequences as were planned for, after a run that compiles kernels and captures graphs."""
    predicted, draw = plan.prediction, random.Random(0)
    offload = None if plan.policy.resident else plan.policy
    length = predicted.prompt_length + predicted.max_new_tokens
    with LLM(model, config, offload=offload, max_context=length) as llm:
        for new in (2 if offload else predicted.max_new_tokens, predicted.max_new_tokens):
            prompts = [
                [draw.randrange(llm.model.cfg.vocab_size) for _ in range(predicted.prompt_length)]
                for _ in range(predicted.sequences)
            ]
            results = llm.generate(prompts, SamplingParams(max_new_tokens=new, ignore_eos=True))
    first, total = (max(getattr(result.timing, name) for result in results) for name in ("first_token", "total"))
    return Timing(predicted.sequences, predicted.prompt_length, predicted.max_new_tokens, first, total - first)


def main() -> None:
    device = pick_device("auto")
    case = CASES[device.type]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=case["model"])
    parser.add_argument("--quant")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--dtype", default="float32" if device.type == "cpu" else "auto")
    parser.add_argument("--budgets", type=float, nargs="+", default=case["budgets"])
    parser.add_argument("--batch", type=int, default=case["batch"])
    parser.add_argument("--prompt-length", type=int, default=case["lengths"][0])
    parser.add_argument("--max-new-tokens", type=int, default=case["lengths"][1])
    given = parser.parse_args()
    work = Workload(given.prompt_length, given.max_new_tokens, given.batch)
    worst = 0.0
    for budget in given.budgets:
        memory = {"cpu_mem" if device.type == "cpu" else "gpu_mem": budget}
        config = EngineConfig(quant=given.quant, kv=given.kv, dtype=given.dtype, **memory)
        plan, _, _ = plan_engine(open_model(given.model, config), config, device, work, print)
        measured = measure(given.model, config, plan)
        off = abs(plan.prediction.total_rate / measured.total_rate - 1)
        worst = max(worst, off)
        print(f"\n{budget:g} GB: {'resident' if plan.policy.resident else plan.policy}")
        print(side_by_side(plan.prediction, measured), flush=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print(f"\nThe total rate is off by {worst:.0%} at most.")


if __name__ == "__main__":
    main()
