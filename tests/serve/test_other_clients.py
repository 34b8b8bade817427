"""Public clients in environments of their own, which `make clients` sets up; without them these tests are skipped."""

import os
import subprocess
from pathlib import Path

import pytest
from serve.running import Running

SCRIPTS = Path(__file__).parent / "clients"
FOLDER = os.environ.get("GENWRIGHT_CLIENTS")  # a virtual environment, in which openai for Node is installed too


@pytest.mark.skipif(FOLDER is None, reason="There are no other clients here; make clients installs them.")
@pytest.mark.parametrize("script", ["langchain_openai_client.py", "litellm_client.py", "openai_client.mjs"])
def test_chat_stream_tools_schema_logprobs_embeddings_images_and_errors(server: Running, script: str) -> None:
    """Each script raises an error at the first thing that is wrong."""
    folder = Path(FOLDER or "").resolve()
    path, env = SCRIPTS / script, {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path.suffix == ".mjs":
        path = folder / script  # a module finds packages beside itself
        path.write_text((SCRIPTS / script).read_text())
    program = "node" if path.suffix == ".mjs" else str(folder / "bin" / "python")
    done = subprocess.run([program, str(path), server.url], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
