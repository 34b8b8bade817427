"""What the application describes of itself: /openapi.json, /metrics, and the endpoints' bodies."""

import re

import jsonschema
from serve.running import Running

PATHS = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/embeddings", "/v1/models", "/v1/models/{name}", "/v1/images/generations", "/tokenize", "/detokenize",
    "/apply-template", "/health", "/ready", "/metrics", "/openapi.json",
}  # fmt: skip
METRICS = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total", "generation_tokens_total",
    "request_success_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
    "e2e_request_latency_seconds_bucket", "request_queue_time_seconds_bucket",
}  # fmt: skip


def test_openapi_describes_every_endpoint(endless: Running) -> None:
    status, document = endless.request("GET", "/openapi.json")
    assert status == 200 and set(document["paths"]) == PATHS
    for operations in document["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                jsonschema.Draft202012Validator.check_schema(schema)
                assert schema["additionalProperties"] is False
    chat = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": None}
    assert jsonschema.Draft202012Validator(chat).is_valid(body)


def test_metrics_have_vllms_names(endless: Running) -> None:
    before = endless.metric("generation_tokens_total")
    assert endless.post("/v1/completions", {"prompt": "abc", "max_tokens": 5})[0] == 200
    text = endless.request("GET", "/metrics")[1].decode()
    assert set(re.findall(r"^vllm:(\w+)", text, re.M)) >= METRICS
    assert endless.metric("generation_tokens_total") == before + 5
    assert endless.metric("inter_token_latency_seconds_count") > 0
    ended = endless.metric("e2e_request_latency_seconds_count")  # some tests' clients go away before the end
    assert endless.metric("time_to_first_token_seconds_count") >= ended > 0
