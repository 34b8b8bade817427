"""GGUF files on a CPU beside llama.cpp: `python benchmarks/llama_cpp.py LLAMA_BENCH FILE ...`.

LLAMA_BENCH is the path of llama.cpp's llama-bench. Both engines run in turn, each time in a new process: a prompt of
256 tokens, then 48 new tokens after it. The table has medians in tokens/s. `genwright convert --to q8_0` and its like
write files of a shape such as random:tinyllama-1.1b.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

PROMPT, NEW = 256, 48


def ours(file: Path) -> tuple[float, float]:
    """Tokens/s of the prompt, and of decoding."""
    lengths = ["--prompt-length", str(PROMPT), "--max-new-tokens", str(NEW), "--samples", "3"]
    command = [sys.executable, "-m", "genwright", "bench", str(file), "--device", "cpu", *lengths, "--json"]
    (row,) = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["rows"]
    return row["prefill"], row["decode"]


def theirs(llama_bench: Path, file: Path, threads: int) -> tuple[float, float]:
    command = [str(llama_bench), "-m", str(file), "-t", str(threads), "-r", "3", "-o", "json"]
    found = []
    for test in (["-p", str(PROMPT), "-n", "0"], ["-p", "0", "-n", str(NEW), "-d", str(PROMPT)]):
        done = subprocess.run([*command, *test], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        found.append(json.loads(done.stdout)[0]["avg_ts"])
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_bench", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| file | prompt | llama.cpp | ratio | decoding | llama.cpp | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for file in given.files:
        rounds = [(ours(file), theirs(given.llama_bench, file, given.threads)) for _ in range(given.rounds)]
        cells = []
        for place in range(2):
            mine, peer = (statistics.median(both[which][place] for both in rounds) for which in range(2))
            cells.append(f"{mine:.1f} | {peer:.1f} | {mine / peer:.2f}")
        print(f"| {file.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
