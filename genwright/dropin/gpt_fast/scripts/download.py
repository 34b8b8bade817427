"""gpt-fast's download script: a repository of the Hugging Face hub into the folder checkpoints."""

import argparse
from pathlib import Path

from genwright.errors import UserError


def hf_download(repo_id: str, hf_token: str | None = None) -> None:
    """Fetch all files of a repository to `checkpoints/REPO_ID`."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError("Downloads need the package huggingface_hub: pip install 'genwright[hub]'.") from None
    folder = Path("checkpoints") / repo_id
    folder.mkdir(parents=True, exist_ok=True)
    try:
        snapshot_download(repo_id, local_dir=folder, token=hf_token)
    except Exception as error:  # the hub's errors, the network's or the file system's
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(
            f"{repo_id!r} could not be fetched from the hub: {why}; private repositories need --hf_token."
        ) from None


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Download a model of the Hugging Face hub.")
    parser.add_argument("--repo_id", default="meta-llama/Llama-2-7b-chat-hf", help="The repository.")
    parser.add_argument("--hf_token", default=None, help="The token of an account that may read it.")
    return parser


if __name__ == "__main__":
    hf_download(**vars(parser().parse_args()))
