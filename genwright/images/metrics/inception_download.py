"""Download the weights of FID's Inception; imports no torch, so that `genwright pull` starts fast."""

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from genwright.errors import UserError
from genwright.home import cache_folder, lock

URL = "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
SIZE = 95_628_359
ABOUT = "InceptionV3 of FID, Apache-2.0: for `genwright images metrics`"


def find() -> Path | None:
    """The path of the downloaded weights, or None."""
    return _home() if _home().exists() else None


def pull(tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr)) -> Path:
    """Download pytorch-fid's file once; it is kept only if it has the pinned sha256."""
    target = _home()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock(target.parent / "lock"):
            if not target.exists():  # another process may have downloaded it by now
                tell(f"Fetching inception ({SIZE / 1e6:.0f} MB) from {URL.split('/')[2]}.")
                part = target.with_suffix(f".{os.getpid()}")
                try:
                    if _download(part) != SHA256:
                        raise UserError(f"{URL} does not hold the file with the pinned sha256; nothing was kept.")
                    part.rename(target)
                finally:
                    part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror or error}.") from None
    return target


def _home() -> Path:
    return cache_folder() / "inception" / URL.rpartition("/")[2]


def _download(part: Path) -> str:
    digest, left = hashlib.sha256(), SIZE + 1
    with part.open("wb") as sink:
        try:
            with urllib.request.urlopen(URL, timeout=60) as source:
                while left > 0 and (data := source.read(min(left, 1 << 20))):
                    digest.update(data)
                    sink.write(data)
                    left -= len(data)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            raise UserError(
                f"{URL} could not be fetched: {reason}. Fetch it elsewhere and name it by --inception FILE."
            ) from None
    return digest.hexdigest()
