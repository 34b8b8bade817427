"""Settings of the server that could mean nothing."""

from pathlib import Path

import pytest

from genwright.errors import UserError
from genwright.serve.server_settings import ServerSettings


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_a_model_has_a_name(name: str) -> None:
    assert ServerSettings(model_name=("a model", "b")).model_name == ("a model", "b")
    with pytest.raises(UserError, match=r"^model_name must be a text that is not empty\.$"):
        ServerSettings(model_name=("a", name))


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "https://page.example",
        "http://localhost:3000",
        "http://[::1]:8080",
        "chrome-extension://abc",
        "tauri://a_b",
        "null",
    ],
)
def test_origins_that_browsers_send(origin: str) -> None:
    assert ServerSettings(cors=(origin,)).cors == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "foo",
        "page.example",
        "https://",
        "https://page.example/",
        "https://Page.example",
        "https://a:b",
        "https://*.a",
    ],
)
def test_origins_that_no_browser_sends(origin: str) -> None:
    with pytest.raises(UserError) as found:
        ServerSettings(cors=("*", origin))
    assert str(found.value).startswith("cors must be * or an origin ") and str(found.value).endswith(
        f", not {origin!r}."
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "The key file {} cannot be read: No such file or directory."),
        (b"\xff", "The key file {} cannot be read: it is not UTF-8 text."),
        (b"# nobody\n\n", "The key file {} holds no key."),
    ],
)
def test_key_files_without_keys(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    with pytest.raises(UserError) as found:
        ServerSettings(api_key_file=str(keys)).read_keys()
    assert str(found.value) == sentence.format(keys)
