"""The HTTP server beside the engine that it serves: tokens/s of 1, 8 and 32 streams, and the time to the first byte.

python benchmarks/serve.py [MODEL] [--streams 1,8,32] [--tokens 128] [--rounds 3] [--peer http://127.0.0.1:8080]

Each round runs the same requests through LLM.generate, through our server, and through a peer with OpenAI's API, if one
is given (such as llama.cpp's server on the same file). Rounds alternate, and the table has their medians. The client is
`hey`, which is compiled and takes little of the processors; without it, curl. Engines that wait take no processor time.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import closing
from pathlib import Path

from genwright import LLM, SamplingParams
from genwright.text.catalogue import resolve

WARM_UP = 8  # tokens
FIRST_BYTES = 40  # requests whose time to the first byte is measured


def start_server(model: str, flags: list[str]) -> tuple["subprocess.Popen[str]", str]:
    command = [sys.executable, "-m", "genwright", "serve", model, "--port", "0", "--log-file", os.devnull, *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        if found := re.search(r"http://\S+", line):
            return process, found[0]
        said.append(line)
    raise SystemExit(f"The server did not start.\n{''.join(said)}")


def request(prompt: list[int] | str, tokens: int, stream: bool = True) -> dict[str, object]:
    known = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream}
    return {**known, "ignore_eos": True}


def served(url: str, body: dict[str, object], streams: int) -> float:
    """Seconds that a compiled client takes for so many streams at once."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(body, file)
        file.flush()
        target, begun = f"{url}/v1/completions", time.perf_counter()
        if shutil.which("hey"):
            flags = ["-n", str(streams), "-c", str(streams), "-t", "0", "-m", "POST", "-T", "application/json"]
            done = subprocess.run(["hey", *flags, "-D", file.name, target], capture_output=True, text=True, check=True)
            if f"[200]\t{streams} responses" not in done.stdout:
                raise SystemExit(done.stdout)
            return float(re.search(r"Total:\s+([\d.]+) secs", done.stdout)[1])  # type: ignore[index]
        one = ["curl", "-sSfN", "-o", os.devnull, "-H", "content-type: application/json", "-d", f"@{file.name}", target]
        for process in [subprocess.Popen(one) for _ in range(streams)]:
            if process.wait():
                raise SystemExit("curl failed.")
        return time.perf_counter() - begun


def own(llm: LLM, prompt: list[int], tokens: int, streams: int) -> float:
    """Seconds of the same requests through LLM.generate."""
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
    begun = time.perf_counter()
    llm.generate([prompt] * streams, params)
    return time.perf_counter() - begun


def first_byte(url: str, body: dict[str, object]) -> float:
    """Seconds from sending a request to the first byte of its answer."""
    host, port = re.fullmatch(r"http://(.+):(\d+)", url).groups()  # type: ignore[union-attr]
    data = json.dumps(body).encode()
    with closing(socket.create_connection((host, int(port)))) as connection:
        begun = time.perf_counter()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        connection.recv(1)
        seconds = time.perf_counter() - begun
        while connection.recv(1 << 16):
            pass
    return seconds


def first_piece(llm: LLM, prompt: list[int]) -> float:
    begun = time.perf_counter()
    for _ in llm.stream(prompt, SamplingParams(max_new_tokens=1, ignore_eos=True)):
        return time.perf_counter() - begun
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", help="The address of another server of the same model.")
    parser.add_argument("--max-context", type=int, default=2048)
    parser.add_argument("--gpu-mem", help="Of each of the two engines, such as 40GiB.")
    arguments = parser.parse_args()
    model = resolve(arguments.model)
    llm = LLM(model, max_context=arguments.max_context, gpu_mem=arguments.gpu_mem)
    prompt = [(37 * place) % 1000 + 100 for place in range(arguments.prompt_tokens)]
    memory = ["--gpu-mem", arguments.gpu_mem] if arguments.gpu_mem else []
    process, url = start_server(model, ["--max-context", str(arguments.max_context), *memory])
    try:
        compare(llm, url, arguments, prompt)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def compare(llm: LLM, url: str, arguments: argparse.Namespace, prompt: list[int]) -> None:
    print("| streams | LLM.generate | genwright serve | of it | peer |\n| ---: | ---: | ---: | ---: | ---: |")
    for streams in map(int, arguments.streams.split(",")):
        total, rates = streams * arguments.tokens, dict[str, list[float]](engine=[], server=[], peer=[])
        own(llm, prompt, WARM_UP, streams)
        served(url, request(prompt, WARM_UP), streams)
        for _ in range(arguments.rounds):
            rates["engine"].append(total / own(llm, prompt, arguments.tokens, streams))
            rates["server"].append(total / served(url, request(prompt, arguments.tokens), streams))
            if arguments.peer:
                rates["peer"].append(total / served(arguments.peer, request(prompt, arguments.tokens), streams))
        engine, server = (statistics.median(rates[name]) for name in ("engine", "server"))
        peer = f"{statistics.median(rates['peer']):.1f}" if arguments.peer else ""
        print(f"| {streams} | {engine:.1f} | {server:.1f} | {server / engine:.1%} | {peer} |", flush=True)
    bare, http = [], []
    for _ in range(FIRST_BYTES):
        bare.append(first_piece(llm, prompt))
        http.append(first_byte(url, request(prompt, 1)))
    added = statistics.median(http) - statistics.median(bare)
    print(f"\nFirst byte after {statistics.median(http) * 1e3:.1f} ms at the median, which is {added * 1e3:.1f} ms")
    print(f"more than the engine's first token. {os.cpu_count()} processors; model {Path(arguments.model).name}.")
    with urllib.request.urlopen(f"{url}/metrics") as response:
        use = re.search(r"^vllm:kv_cache_usage_perc\S* (\S+)$", response.read().decode(), re.M)
    assert use is not None and float(use[1]) == 0, "pages leaked"


if __name__ == "__main__":
    main()
