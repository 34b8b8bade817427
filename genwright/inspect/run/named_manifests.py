"""Find a project's manifest by name: NAME.toml or NAME.json in one of some folders."""

from collections.abc import Iterable
from pathlib import Path

from genwright.inspect.analysis.manifest import Manifest, load_manifest


def find_manifest(name: str, folders: Iterable[Path]) -> Manifest | None:
    """The first manifest that is there."""
    for folder in folders:
        for path in (folder / f"{name}.toml", folder / f"{name}.json"):
            if path.is_file():
                return load_manifest(path)
    return None
