"""`hf:` names, by the real huggingface_hub against a small hub on this machine."""

import errno
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from genwright.errors import UserError
from genwright.text.catalogue import resolve
from genwright.text.hub import choose

FOLDER = ("config.json", "tokenizer.json", "README.md", "notes/more.json")
BIN = (*FOLDER, "pytorch_model.bin", "training_args.bin")
SAFE = (*BIN, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors")
GGUFS = ("config.json", "m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q4_0_4_4.gguf")
SPLIT = ("big/m-Q8_0-00001-of-00002.gguf", "big/m-Q8_0-00002-of-00002.gguf")
REPOSITORIES = {
    ("org/safe", "main"): SAFE,
    ("org/safe", "v1"): BIN,
    ("org/one-gguf", "main"): ("README.md", "m.gguf"),
    ("org/ggufs", "main"): (*GGUFS, *SPLIT),
    ("org/none", "main"): FOLDER,
}


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that a download uses; a file holds its revision and name."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].removeprefix("/api/models").strip("/").split("/")
        parts += ["revision", "main"]  # where none is named
        repository, verb, revision = "/".join(parts[:2]), parts[2], parts[3]
        # A commit's hash stands for the branch or tag that it was made of.
        commits = {hashlib.sha1("/".join(key).encode()).hexdigest(): key for key in REPOSITORIES}
        key = commits.get(revision, (repository, revision))
        commit = next((commit for commit, other in commits.items() if other == key), "")
        if not commit:
            known = any(repository == name for name, _ in REPOSITORIES)
            self.answer(404, b"", {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})
        elif verb == "resolve":
            name = "/".join(parts[4:-2])
            content = f"{key[1]} {name}".encode()
            self.answer(200, content, {"ETag": hashlib.sha1(content).hexdigest(), "X-Repo-Commit": commit})
        elif verb == "tree":
            rows = [
                {"type": "file", "path": name, "size": len(f"{key[1]} {name}"), "oid": "0"}
                for name in REPOSITORIES[key]
            ]
            self.answer(200, json.dumps(rows).encode(), {})
        else:
            siblings = [{"rfilename": name} for name in REPOSITORIES[key]]
            self.answer(200, json.dumps({"id": repository, "sha": commit, "siblings": siblings}).encode(), {})

    do_HEAD = do_GET

    def answer(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()


def fetched(path: str) -> set[str]:
    return {found.relative_to(path).as_posix() for found in Path(path).rglob("*") if found.is_file()}


def test_a_folder_of_safetensors_or_bin_files_at_a_revision(hub: ThreadingHTTPServer) -> None:
    beside = {"config.json", "tokenizer.json"}
    safe = resolve("hf:org/safe")
    assert fetched(safe) == beside | {name for name in SAFE if name.startswith("model-")}
    old = resolve("hf:org/safe@v1")
    assert fetched(old) == beside | {"pytorch_model.bin"}
    assert (Path(old) / "pytorch_model.bin").read_text() == "v1 pytorch_model.bin"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hf:org/one-gguf", "m.gguf"),
        ("hf:org/ggufs:m-Q4_K_M.gguf", "m-Q4_K_M.gguf"),
        ("hf:org/ggufs@main:q4_k_m", "m-Q4_K_M.gguf"),
        ("hf:org/ggufs:Q4_0", "m-Q4_0.gguf"),
    ],
)
def test_a_gguf_file_is_chosen(hub: ThreadingHTTPServer, name: str, file: str) -> None:
    path = Path(resolve(name))
    assert path.name == file and path.read_text() == f"main {file}"
    assert fetched(str(path.parent)) == {file}


def test_the_parts_of_a_split_gguf_come_together(hub: ThreadingHTTPServer) -> None:
    path = Path(resolve("hf:org/ggufs:Q8_0"))
    assert path.as_posix().endswith(SPLIT[0])
    assert fetched(str(path.parent.parent)) == set(SPLIT)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "hf:org/ggufs",
            "org/ggufs has 4 GGUF files; name one as in hf:org/ggufs:big/m-Q8_0.gguf. They are big/m-Q8_0.gguf, "
            "m-Q4_0.gguf, m-Q4_0_4_4.gguf, m-Q4_K_M.gguf.",
        ),
        ("hf:org/one-gguf:Q2", "org/one-gguf has no GGUF file 'Q2'; it has m.gguf."),
        ("hf:org/safe:Q2", "org/safe holds no GGUF files."),
        ("hf:org/none", "org/none holds no safetensors, .bin or GGUF files."),
        ("hf:org/safe@v2", "'org/safe' could not be fetched from the hub: it has no revision 'v2'."),
        (
            "hf:org/secret",
            "'org/secret' could not be fetched from the hub: there is no such repository, or it is private, which "
            "needs `hf auth login`.",
        ),
        ("hf:", "A hub model must be hf:ORG/NAME, hf:ORG/NAME@REVISION or hf:ORG/NAME:FILE.gguf, not 'hf:'."),
    ],
)
def test_mistakes_are_one_sentence(hub: ThreadingHTTPServer, name: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(name)
    assert str(caught.value) == sentence


def test_what_was_fetched_is_found_without_the_hub(hub: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("hf:org/safe", "hf:org/ggufs:Q4_K_M")
    paths = [resolve(name) for name in names]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert [resolve(name) for name in names] == paths
    with pytest.raises(UserError, match="'org/one-gguf' could not be fetched from the hub: "):
        resolve("hf:org/one-gguf")


@pytest.mark.parametrize(
    "error", [socket.gaierror(-2, "not known"), ConnectionRefusedError(), OSError(errno.ENETUNREACH, "")]
)
def test_a_hub_that_cannot_be_reached_is_told_in_words(error: OSError, hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(UserError, match=r"the hub: there is no connection to it; check this machine's network\.$"):
        resolve("hf:org/safe")


def test_our_own_names_of_weights_are_fetched_whole() -> None:
    assert choose(["weights.safetensors", "config.json"], "org/x", None) == ["weights.safetensors", "config.json"]
