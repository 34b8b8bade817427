"""What a grammar costs at batch 1: milliseconds per token with and without one, in alternating rounds.

The time of the processors is measured too, because it hardly depends on what else a shared machine does.

`free` has no grammar. `text` has one that allows almost every token, so that each step has one row and the difference
is the cost of masks; `object` has a schema whose forced tokens are proposed and save steps.
"""

import argparse
import statistics
import time
from typing import Any

from genwright import LLM, SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 30},
        "last_name": {"type": "string", "maxLength": 30},
        "year_of_birth": {"type": "integer", "minimum": 1900, "maximum": 2026},
        "occupation": {"enum": ["astronomer", "carpenter", "physician", "unemployed"]},
    },
    "required": ["first_name", "last_name", "year_of_birth", "occupation"],
    "additionalProperties": False,
}
PROMPT = "Some people, as JSON: "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    llm = LLM(options.model)
    sampled: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": options.tokens, "ignore_eos": True}
    kinds: dict[str, dict[str, Any]] = {
        "free": {},
        "text": {"regex": r"(.|\n)*"},
        "object": {"schema": {"type": "array", "items": PERSON, "minItems": 99}},
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for turn in range(options.rounds + 1):
        for name in sorted(kinds, reverse=bool(turn % 2)):
            started = time.process_time()
            result = llm.generate([PROMPT], SamplingParams(**sampled, **kinds[name], seed=turn))[0]
            wall = (result.timing.total - result.timing.first_token) / (len(result.ids) - 1)
            cpu = (time.process_time() - started) / len(result.ids)
            times[name] += [(wall, cpu)] if turn else []  # the first round compiles
    for name, each in times.items():
        cells = []
        for kind, label in enumerate(("per token", "of the processors")):
            mine, free = [row[kind] for row in each], [row[kind] for row in times["free"]]
            # Neighbouring rounds are compared, because the machine's speed drifts.
            ratio = statistics.median(one / other for one, other in zip(mine, free, strict=True))
            cells.append(f"{statistics.median(mine) * 1e3:8.2f} ms {label} ({100 * (ratio - 1):+.1f} %)")
        print(f"{name:8}", *cells)


if __name__ == "__main__":
    main()
