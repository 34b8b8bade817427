"""`hf:ORG/NAME[@REVISION][:FILE]`: models of the Hugging Face hub, by the package huggingface_hub."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from errno import EHOSTUNREACH, ENETUNREACH
from glob import escape
from pathlib import Path
from socket import gaierror

from genwright.errors import UserError

PREFIX = "hf:"
_NAME = re.compile(r"hf:(?P<repository>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^:@]+))?(:(?P<file>.+))?")
_BESIDE = (".json", ".model", ".jinja", ".txt", ".tiktoken")  # configuration and tokenizer
_SPLIT = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")


def fetch(name: str) -> Path:
    """Download a repository; returns its folder or GGUF file. Files downloaded before need no network."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"A hub model must be hf:ORG/NAME, hf:ORG/NAME@REVISION or hf:ORG/NAME:FILE.gguf, not {name!r}."
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError("hf: models need the package huggingface_hub: pip install 'genwright[hub]'.") from None
    repository, revision = match["repository"], match["revision"]
    try:
        wanted = choose(_files(repository, revision), repository, match["file"])
        patterns = [escape(file) for file in wanted]
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except UserError:
        raise
    except Exception as error:  # its own errors, the network's or the file system's
        raise UserError(f"{repository!r} could not be fetched from the hub: {_reason(error, revision)}.") from None
    return folder / wanted[0] if wanted[0].endswith(".gguf") else folder


def choose(files: Iterable[str], repository: str, file: str | None) -> list[str]:
    """The files to download: safetensors or .bin files with configuration and tokenizer, else a GGUF file."""
    top = [name for name in files if "/" not in name]
    for suffix, usual in ((".safetensors", "model"), (".bin", "pytorch_model")):
        weights = [name for name in top if name.endswith(suffix)]
        if weights and file is None:
            # Some repositories hold the same weights twice, under another name.
            own = [name for name in weights if name.startswith(usual)] or weights
            return [*own, *(name for name in top if name.endswith(_BESIDE))]
    ggufs = defaultdict(list)  # the parts of a split file count as one
    for name in sorted(files):
        if name.endswith(".gguf"):
            ggufs[_SPLIT.sub("", name)].append(name)
    asked = _SPLIT.sub("", file or "").lower()
    exact = [name for name in ggufs if name.lower() in (asked, f"{asked}.gguf")]
    ends = [name for name in ggufs if name.lower().endswith((asked, f"{asked}.gguf"))] if asked else []
    found = exact or ends or [name for name in ggufs if asked in name.lower()]
    if len(found) == 1:
        return ggufs[found[0]]
    if found:
        raise UserError(
            f"{repository} has {len(found)} GGUF files; name one as in hf:{repository}:{found[0]}. They are "
            f"{', '.join(found)}."
        )
    if ggufs:
        raise UserError(f"{repository} has no GGUF file {file!r}; it has {', '.join(ggufs)}.")
    what = "GGUF files" if file else "safetensors, .bin or GGUF files"
    raise UserError(f"{repository} holds no {what}.")


def _files(repository: str, revision: str | None) -> list[str]:
    """The names of a repository's files, or of those downloaded before if the hub cannot be reached."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        # Without a network, list_repo_files retries for half a minute; model_info does not.
        return [file.rfilename for file in HfApi().model_info(repository, revision=revision).siblings or ()]
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except Exception:
        with suppress(LocalEntryNotFoundError):
            folder = snapshot_download(repository, revision=revision, allow_patterns=[], local_files_only=True)
            return [path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()]
        raise


def _reason(error: Exception, revision: str | None) -> str:
    from huggingface_hub.errors import (
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return "accept its terms on its page first, then run `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or it is private, which needs `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return f"it has no revision {revision!r}"
    if isinstance(error, OfflineModeIsEnabled):
        return "it was not downloaded before, and HF_HUB_OFFLINE forbids it now"
    # The HTTP library, which differs between versions of huggingface_hub, wraps the system's error in its own.
    if any(_disconnected(cause) for cause in _causes(error)):
        return "there is no connection to it; check this machine's network"
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _disconnected(error: BaseException) -> bool:
    unreachable = isinstance(error, OSError) and error.errno in (ENETUNREACH, EHOSTUNREACH)
    return unreachable or isinstance(error, gaierror | ConnectionError | TimeoutError)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
