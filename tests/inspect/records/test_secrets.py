"""Secrets: which names have them, and that their values appear nowhere."""

import pytest

from genwright.inspect.records.secrets import (
    is_secret,
    redacted_arguments,
    redacted_environment,
    secret_values,
    without_secrets,
)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "--api-key", "dbPassword", "AWS_SECRET_ACCESS_KEY", "KEY"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["max_new_tokens", "TOKENIZERS_PARALLELISM", "eos_token", "keyboard", "monkey", "path", ""]
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)


def test_values_are_redacted() -> None:
    assert redacted_environment({"B_TOKEN": "x", "A": "y"}) == {"A": "y", "B_TOKEN": "[redacted]"}
    words = ["--token", "abcdefgh", "--api-key=12345678", "--n", "5", "--token", "--flag"]
    assert redacted_arguments(words) == [
        "--token",
        "[redacted]",
        "--api-key=[redacted]",
        "--n",
        "5",
        "--token",
        "--flag",
    ]
    values = secret_values({"B_TOKEN": "from-the-environment", "C_KEY": "short"}, words)
    assert set(values) == {"abcdefgh", "12345678", "from-the-environment"}
    data = {"x": ["a abcdefgh b"], "password": "p", "token": 3, "n": None}
    assert without_secrets(data, values) == {"x": ["a [redacted] b"], "password": "[redacted]", "token": 3, "n": None}
