import hashlib

import pytest

from genwright.errors import UserError
from genwright.images.metrics import inception_download as inception


@pytest.fixture
def published(tmp_path, monkeypatch):
    path = tmp_path / "weights.pth"
    path.write_bytes(b"weights")
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(inception, "URL", path.as_uri())
    monkeypatch.setattr(inception, "SIZE", 7)
    monkeypatch.setattr(inception, "SHA256", hashlib.sha256(b"weights").hexdigest())
    return path


def test_the_pinned_file_is_kept_and_found(published):
    said = []
    assert inception.find() is None
    path = inception.pull(said.append)
    assert path.read_bytes() == b"weights" and inception.find() == path and len(said) == 1
    published.unlink()
    assert inception.pull(said.append) == path and len(said) == 1


@pytest.mark.parametrize("content", [b"other", b"weights and more", None])
def test_anything_else_is_refused(published, content):
    published.unlink() if content is None else published.write_bytes(content)
    with pytest.raises(UserError, match="could not be fetched" if content is None else "pinned sha256"):
        inception.pull(lambda line: None)
    assert inception.find() is None and [path.name for path in (published.parent / "home/inception").iterdir()] == [
        "lock"
    ]
