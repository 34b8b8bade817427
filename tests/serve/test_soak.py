"""Many streams at once, of which a tenth go away: every answer is complete, and nothing is left behind."""

import asyncio
import json
import random
import time

import psutil
import pytest
from serve.running import Running

TOKENS = 40


async def ask(port: int, leave: bool, draw: random.Random) -> int:
    """Stream one answer; returns the tokens of it that arrived. A client that is to `leave` does so in the middle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    prompt = [draw.randrange(10, 200) for _ in range(draw.randrange(1, 200))]
    body = {"prompt": prompt, "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    tokens, received = 0, b""
    try:
        while b"[DONE]" not in received[-100:]:
            received += (part := await reader.read(1 << 16))
            assert part, received[-500:]
            if leave and len(received) > 2000:
                return 0
        for event in received.split(b"data: ")[1:-1]:
            tokens = json.loads(event.partition(b"\n")[0])["usage"] or tokens
        return tokens["completion_tokens"]
    finally:
        writer.close()


def memory(server: Running) -> int:
    process = psutil.Process(server.process.pid)
    return sum(each.memory_info().rss for each in (process, *process.children()))


@pytest.mark.timeout(900)
def test_many_streams(endless: Running, full_size: bool) -> None:
    """256 streams for five minutes at full size, with memory flat within 5 %."""
    streams, seconds = (256, 300.0) if full_size else (64, 2.0)
    draw, deadline, answers = random.Random(0), time.monotonic() + seconds, [0, 0]
    sizes: list[int] = []

    async def client() -> None:
        while time.monotonic() < deadline:
            leave = draw.random() < 0.1
            tokens = await ask(endless.port, leave, draw)
            assert tokens == (0 if leave else TOKENS)
            answers[leave] += 1

    async def watch() -> None:
        while time.monotonic() < deadline:
            await asyncio.sleep(seconds / 20)
            sizes.append(memory(endless))

    async def run() -> None:
        await asyncio.gather(watch(), *(client() for _ in range(streams)))

    asyncio.run(run())
    assert all(answers)
    endless.wait_for("num_requests_running", 0)
    assert endless.metric("kv_cache_usage_perc") == endless.metric("num_requests_waiting") == 0
    if full_size:
        settled = sizes[len(sizes) // 4 :]  # the cache's pages and the allocators have been used once by then
        assert max(settled) <= 1.05 * min(settled), settled
