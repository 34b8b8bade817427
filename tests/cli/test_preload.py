"""What a command imports, in a process of its own."""

import subprocess
import sys

CODE = """
import sys
from genwright.cli.preload import preload_torch
preload_torch()
from genwright import LLM, SamplingParams
LLM("random:stories15m,layers=1").generate([[1, 2, 3]], SamplingParams(max_new_tokens=4, temperature=0.0))
print(sorted(name for name in sys.modules if name in ("torch._dynamo", "torch._inductor", "sympy", "scipy", "rich")))
"""


def test_a_model_runs_without_torchs_compiler() -> None:
    """It takes longer to import than torch itself."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
