"""Where Genwright keeps what it can make or fetch again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """GENWRIGHT_HOME, else genwright under the user's cache folder."""
    home = os.environ.get("GENWRIGHT_HOME")
    base = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(home).expanduser() if home else Path(base).expanduser() / "genwright"
