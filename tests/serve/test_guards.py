"""Keys, limits and the log."""

import ssl
from pathlib import Path

import pytest
from serve.running import Running, make_certificate, running

ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def guarded(endless_model: Path, tmp_path_factory: pytest.TempPathFactory):
    """A server with keys, TLS and limits, whose log's disk is full."""
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys"
    keys.write_text("# people\nsecond\n\nthird \n")
    flags = ["--api-key", "first", "--api-key-file", str(keys), "--requests-per-minute", "6", "--max-body", "0.01"]
    cert, key = make_certificate(folder)
    flags += ["--tls-cert", cert, "--tls-key", key]
    flags += ["--max-tokens", "50", "--max-prompt", "100", "--cors", "https://page.example"]
    with running(endless_model, folder, *flags, "--max-context", "8192", "--log-file", "/dev/full") as server:
        assert server.url.startswith("https://")
        server.tls = ssl.create_default_context(cafile=cert)
        yield server


def test_keys_guard_everything_but_health(guarded: Running) -> None:
    assert guarded.request("GET", "/health")[0] == guarded.request("GET", "/ready")[0] == 200
    assert guarded.request("GET", "/")[0] == guarded.request("HEAD", "/")[0] == 200
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
        assert guarded.request("GET", path)[0] == 401
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "firs"}, {"authorization": "first"}):
        status, body = guarded.request("POST", "/v1/chat/completions", ASK, headers)
        assert status == 401 and body["error"]["code"] == "invalid_api_key"
    for headers in ({"authorization": "Bearer first"}, {"x-api-key": "second"}, {"authorization": "bearer third"}):
        assert guarded.request("GET", "/v1/models", None, headers)[0] == 200
    status, body = guarded.request("POST", "/v1/messages", {}, {"x-api-key": "no"})
    assert status == 401 and body["error"]["type"] == "authentication_error" and body["type"] == "error"


def test_limits_of_size_and_tokens(guarded: Running) -> None:
    key = {"authorization": "Bearer second"}
    post = lambda body: guarded.request("POST", "/v1/chat/completions", body, key)  # noqa: E731
    status, body = post({**ASK, "user": "x" * 20_000})
    assert status == 413 and "0.01 MB" in body["error"]["message"]
    status, body = post({**ASK, "max_tokens": 51})
    assert status == 400 and body["error"]["param"] == "max_tokens"
    status, body = post({"messages": [{"role": "user", "content": "x" * 200}]})
    assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    status, body = post({"messages": ASK["messages"]})
    assert status == 200 and body["usage"]["completion_tokens"] == 50, "the server's limit is the default"


def test_requests_per_minute_of_each_key(guarded: Running) -> None:
    key = {"authorization": "Bearer third"}
    statuses = [guarded.request("POST", "/tokenize", {"content": "x"}, key)[0] for _ in range(8)]
    assert statuses == [200] * 6 + [429] * 2 and int(guarded.headers["retry-after"]) > 0
    assert guarded.request("GET", "/v1/models", None, key)[0] == 200


def test_a_full_disk_for_the_log_is_told_once(guarded: Running) -> None:
    assert guarded.request("GET", "/health")[0] == 200
    told = [line for line in guarded.stderr if "log cannot be written" in line]
    assert len(told) == 1 and "No space left" in told[0]


def test_cors_is_for_the_origins_that_were_asked_for(guarded: Running, endless: Running) -> None:
    for origin, allowed in (("https://page.example", "https://page.example"), ("https://other.example", None)):
        guarded.request("GET", "/health", None, {"origin": origin})
        assert guarded.headers.get("access-control-allow-origin") == allowed
    endless.request("GET", "/health", None, {"origin": "https://page.example"})
    assert "access-control-allow-origin" not in endless.headers


def test_log_has_one_line_per_request_without_prompts(endless: Running) -> None:
    status, answer = endless.post("/v1/chat/completions", {**ASK, "user": "somebody"})
    assert status == 200
    line = endless.line()
    assert line["status"] == 200 and line["completion_tokens"] == 4 and line["path"] == "/v1/chat/completions"
    assert line["prompt_tokens"] == answer["usage"]["prompt_tokens"] and line["first_token"] > 0
    assert "Hi" not in str(line) and "somebody" not in str(line)


def test_log_counts_the_tokens_of_several_prompts_as_the_answer_does(endless: Running) -> None:
    status, answer = endless.post("/v1/completions", {"prompt": ["abcd", "ef"], "n": 2, "max_tokens": 3})
    line = endless.line()
    assert status == 200 and (line["prompt_tokens"], line["completion_tokens"]) == (6, 12)
    assert line["cached_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
