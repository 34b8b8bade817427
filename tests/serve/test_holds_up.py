"""What would bring a server down: clients that go away, wrong bodies, a dead engine, a signal."""

import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve.running import Running, read_all, running

QUESTION = [{"role": "user", "content": "Hi"}]
LONG = {"messages": QUESTION, "max_tokens": 8000}
SHORT = {"messages": QUESTION, "max_tokens": 3}


def is_well(server: Running) -> None:
    status, answer = server.post("/v1/chat/completions", SHORT)
    assert status == 200 and answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_sequence(endless: Running, stream: bool) -> None:
    before = endless.metric("generation_tokens_total")
    connection = endless.open("/v1/chat/completions", {**LONG, "stream": stream})
    if stream:
        assert b"200 OK" in connection.recv(100)
    endless.wait_for("num_requests_running", 1)
    connection.close()
    endless.wait_for("num_requests_running", 0)
    assert endless.metric("kv_cache_usage_perc") == 0
    is_well(endless)
    endless.line()  # is written after the answer
    lines = [line for line in map(json.loads, endless.log.read_text().splitlines()) if line.get("model")]
    gone = lines[-2]
    assert gone["finish_reason"] == "cancelled" and gone["prompt_tokens"] > 0
    assert (gone["completion_tokens"] > 0) == stream, "of a whole answer only the end is known"
    assert endless.metric("generation_tokens_total") == before + gone["completion_tokens"] + 3


def unread_stream(server: Running) -> socket.socket:
    """A stream that fills its connection's buffers, because nobody reads it."""
    unread = socket.socket()
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.connect(("127.0.0.1", server.port))
    data = json.dumps({**LONG, "stream": True, "logprobs": True, "top_logprobs": 20, "max_tokens": 500}).encode()
    unread.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return unread


def test_a_slow_reader_holds_up_nobody(endless: Running) -> None:
    slow = unread_stream(endless)
    for _ in range(5):
        is_well(endless)
    endless.wait_for("num_requests_running", 0)  # the engine does not wait for the reader
    slow.settimeout(30)
    received = read_all(slow, b"[DONE]")
    slow.close()
    assert received.count(b'"finish_reason":"length"') == 1


BODIES = {
    "no JSON": (b"{", 400),
    "invalid UTF-8": (b'{"messages": "\xff\xfe"}', 400),
    "deep": (b"[" * 200_000, 400),
    "deep in a field": (b'{"messages":' + b'[{"role":"user","content":' * 2000 + b"]" * 2000 + b"}", 400),
    "deep response format": (
        b'{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"schema":'
        + b'{"a":' * 900
        + b"1"
        + b"}" * 903,
        400,
    ),
    "deep schema": (
        b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":'
        + b'{"a":' * 900
        + b"1"
        + b"}" * 900
        + b"}}]}",
        400,
    ),
    "a list": (b"[]", 400),
    "nothing": (b"", 400),
    "a number without end": (b'{"messages": ' + b"9" * 10_000 + b"}", 400),
    "infinity": (b'{"temperature": Infinity, "messages": []}', 400),
    "a large number": (b'{"temperature": 1e999, "messages": [{"role":"user","content":"x"}]}', 400),
    "a lone surrogate": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    "null bytes": (b'{"messages": [{"role": "user", "content": "\\u0000"}], "max_tokens": 1}', 200),
    "100 MB": (b" " * 100_000_000, 413),
}


@pytest.mark.parametrize("name", BODIES)
def test_wrong_bodies_are_one_sentence(endless: Running, name: str) -> None:
    body, expected = BODIES[name]
    status, answer = endless.request("POST", "/v1/chat/completions", body)
    assert status == expected
    if status != 200:
        assert 10 < len(answer["error"]["message"]) < 500 and "Traceback" not in answer["error"]["message"]
    is_well(endless)


def test_unknown_paths_and_methods(endless: Running) -> None:
    assert endless.request("GET", "/v1/nothing")[0] == 404
    status, answer = endless.request("GET", "/v1/chat/completions")
    assert status == 405 and answer["error"]["message"] == "/v1/chat/completions has no method GET."


def mutate(draw: random.Random, value: object) -> object:
    """A value with a random change somewhere inside."""
    odd = [None, True, -1, 0, 1e308, "", "x", "\ud83d", [], {}, [[]], {"": None}, 2**70, "é" * 50, ["a", 1]]
    if draw.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return draw.choice(odd)
    if isinstance(value, list):
        place = draw.randrange(len(value))
        return [mutate(draw, each) if index == place else each for index, each in enumerate(value)]
    name = draw.choice(list(value))
    changed = {**value, name: mutate(draw, value[name])}
    if draw.random() < 0.2:
        changed[draw.choice(["", "n", "stop", "logprobs", "tools", "x" * 30])] = draw.choice(odd)
    return changed


TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
VALID = {
    "/v1/chat/completions": {
        "messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]}, *QUESTION],
        "max_tokens": 2, "n": 2, "seed": 1, "stop": ["q"], "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2,
        "temperature": 1, "top_p": 0.9, "presence_penalty": 0.1, "stream": False, "response_format": {"type": "text"},
    },
    "/v1/completions": {"prompt": ["a", [5, 6]], "max_tokens": 2, "echo": True, "logprobs": 1, "n": 1, "top_k": 3},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "max_output_tokens": 2,
        "text": {"format": {"type": "text"}}, "instructions": "x",
    },
    "/v1/messages": {
        "model": "endless", "max_tokens": 2, "messages": QUESTION, "system": "x", "stop_sequences": ["a"], "top_k": 2,
    },
    "/v1/messages/count_tokens": {"model": "endless", "messages": QUESTION},
    "/v1/embeddings": {"input": ["a", "b"], "encoding_format": "base64"},
    "/v1/images/generations": {"prompt": "x", "n": 1},
    "/tokenize": {"content": "x", "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": QUESTION},
}  # fmt: skip


def test_fuzzed_requests(endless: Running, full_size: bool) -> None:
    """10,000 of them at full size: none is a 500, and every error is one sentence."""
    draw = random.Random(1)
    counts: dict[int, int] = {}
    for _ in range(10_000 if full_size else 250):
        path = draw.choice(list(VALID))
        body: object = VALID[path]
        for _ in range(draw.choice([0, 1, 1, 2])):
            body = mutate(draw, body)
        data = json.dumps(body).encode()
        if draw.random() < 0.05:
            place = draw.randrange(len(data))
            data = data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]
        status, answer = endless.request("POST", path, data)
        counts[status] = counts.get(status, 0) + 1
        assert status in (200, 400, 404), (path, body, answer)
        if status != 200:
            assert answer["error"]["message"], (path, body)
    assert counts[200] and counts[400]
    is_well(endless)


@pytest.fixture(scope="module")
def small(endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a short time limit and no queue."""
    flags = ("--max-context", "50000", "--max-queue", "0", "--timeout", "8", "--log-prompts")
    with running(endless_model, tmp_path_factory.mktemp("small"), *flags) as server:
        yield server


def test_a_full_queue_and_the_time_limit(small: Running) -> None:
    full = small.open("/v1/chat/completions", {"messages": QUESTION, "n": 64, "max_tokens": 40_000})
    small.wait_for("num_requests_running", 64)
    for path, body in (("/v1/chat/completions", SHORT), ("/v1/embeddings", {"input": "x"})):
        status, answer = small.post(path, body)
        assert status == 503 and "queue is full" in answer["error"]["message"] and small.headers["retry-after"] == "1"
    received = read_all(full, b"seconds")
    assert b"504 Gateway" in received and b"longer than 8 seconds" in received
    small.wait_for("num_requests_running", 0)
    is_well(small)
    assert small.line()["body"] == SHORT, "--log-prompts asks for it"


def test_kill_9_of_the_engine(small: Running) -> None:
    streamed = small.open("/v1/chat/completions", {**LONG, "stream": True})
    assert b"200 OK" in streamed.recv(100)
    waiting = small.open("/v1/chat/completions", LONG)
    small.wait_for("num_requests_running", 2)
    os.kill(small.engine_pid(), signal.SIGKILL)
    received = read_all(streamed, b"[DONE]")
    assert b"The engine process ended; it is being started again." in received
    assert b"503 Service Unavailable" in waiting.recv(1 << 16)
    streamed.close(), waiting.close()
    seen = set()
    while (status := small.request("GET", "/health")[0]) != 200:
        seen.add(status)
        assert small.post("/v1/chat/completions", SHORT)[0] in (200, 503)
        time.sleep(0.05)
    assert seen == {503}
    is_well(small)
    assert small.metric("engine_restarts_total") == 1
    errors = [line for line in map(json.loads, small.log.read_text().splitlines()) if "ended" in line.get("error", "")]
    assert any(line["stream"] and line["completion_tokens"] > 0 for line in errors)


def test_sigterm_lets_answers_end_and_refuses_new_ones(endless_model: Path, tmp_path: Path) -> None:
    """An answer that outlasts the timeout ends with an error; a client that does not read it is left."""
    with running(endless_model, tmp_path, "--max-context", "50000", "--shutdown-timeout", "8") as server:
        unread = unread_stream(server)
        unsent = socket.create_connection(("127.0.0.1", server.port))
        unsent.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        short = server.open("/v1/chat/completions", {**LONG, "stream": True, "max_tokens": 300})
        long = server.open("/v1/chat/completions", {**LONG, "stream": True, "max_tokens": 49_000})
        assert short.recv(10) and long.recv(10)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(OSError):
            while True:
                socket.create_connection(("127.0.0.1", server.port)).close()
        ended = read_all(short, b"[DONE]")
        assert b"[DONE]" in ended and ended.count(b'"finish_reason":"length"') == 1
        assert b"The server is shutting down." in read_all(long, b"[DONE]")
        end = "to end; another Ctrl-C or SIGTERM ends the server at once.\n"
        assert server.end() == (0, f"Waiting up to 8 s for 4 answers {end}")
        unread.close(), unsent.close()


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_answers(
    endless_model: Path, tmp_path: Path, first: signal.Signals, second: signal.Signals
) -> None:
    """Each with an error; the exit status is the second signal's."""
    with running(endless_model, tmp_path, "--max-context", "50000", "--shutdown-timeout", "1000") as server:
        streamed = server.open("/v1/chat/completions", {**LONG, "stream": True, "max_tokens": 49_000})
        waiting = server.open("/v1/chat/completions", {**LONG, "max_tokens": 49_000})
        server.wait_for("num_requests_running", 2)
        server.process.send_signal(first)
        while not server.stderr:
            time.sleep(0.02)
        server.process.send_signal(second)
        received = read_all(streamed, b"\r\n0\r\n\r\n")
        assert b"The server is shutting down." in received and b"[DONE]" in received
        assert b"503 Service Unavailable" in read_all(waiting, b"down.")
        code, shown = server.end()
    assert code == (130 if second == signal.SIGINT else 0)
    assert shown.startswith("Waiting up to 1000 s for 2 answers to end; ") and shown.count("\n") == 1
    ended = [json.loads(line) for line in server.log.read_text().splitlines() if "completions" in line]
    assert [line["error"] for line in ended] == ["The server is shutting down."] * 2


def test_a_signal_says_nothing_if_nobody_waits(endless_model: Path, tmp_path: Path) -> None:
    with running(endless_model, tmp_path) as server:
        with socket.create_connection(("127.0.0.1", server.port)):
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == (0, "")


def test_what_is_no_http_is_not_told(endless: Running) -> None:
    with socket.create_connection(("127.0.0.1", endless.port), timeout=30) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert b"400 Bad Request" in connection.recv(1000)
    is_well(endless)
    assert not any("HTTP" in line for line in endless.stderr)


def test_a_large_body_is_prepared_beside_the_streams(endless: Running) -> None:
    """It is tokenized on a thread; the sentence has both lengths."""
    body = {"messages": [{"role": "user", "content": "word " * 20_000}]}
    status, answer = endless.post("/v1/chat/completions", body)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert "100,0" in answer["error"]["message"] and "8,192" in answer["error"]["message"]
    status, answer = endless.post("/tokenize", {"content": "x" * 100_000})
    assert status == 200 and len(answer["tokens"]) == 100_000
