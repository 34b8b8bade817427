"""Folders under the names that generated scripts import them by; the samples are made when they are first asked for."""

from genwright.home import cache_folder
from genwright.inspect.media.samples import sample_folder

ENV_BASE = f"{cache_folder().absolute()}/environments/"


def __getattr__(name: str) -> str:
    if name == "RESOURCES_PATH":
        return f"{sample_folder()}/"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
