"""Fixtures that several test files share."""

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

# A GPU machine's own Python may lack them (`make gpu`).
NOT_EVERYWHERE = {
    "anthropic", "diffusers", "gguf", "jsonschema", "lm_eval",
    "mistral_common", "openai", "pybible", "starlette", "tiktoken", "uvicorn",
}  # fmt: skip
FULL_SIZE = bool(os.environ.get("GENWRIGHT_FULL_SIZE"))

if not torch.cuda.is_available():
    # Triton reads it when it is first imported, which other tests' libraries do.
    os.environ["TRITON_INTERPRET"] = "1"

torch.set_num_threads(1)  # tiny models: a second thread costs more than it brings, and two workers share two cores


@pytest.fixture(scope="session")
def full_size() -> bool:
    """Whether tests run at the sizes of the acceptance criteria."""
    return FULL_SIZE


@pytest.fixture(scope="session")
def device() -> str:
    """Where kernels run: on the GPU, or in Triton's interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def cuda_device(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where CUDA C++ kernels run: on the GPU, or on an emulated one, with tensors of the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    from kernels.cuda.emulated_gpu import compiler, emulate

    if compiler() is None:
        pytest.skip("needs NVRTC, of the package nvidia-cuda-nvrtc")
    folder = tmp_path_factory.getbasetemp()
    emulate(monkeypatch, folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)  # one for all processes
    return "cpu"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real default model."""
    from genwright.text.catalogue import pull

    return pull("smollm2")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if torch.cuda.is_available() and {"device", "cuda_device"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available() and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip modules that need a package of NOT_EVERYWHERE where there is none."""
    report = yield
    missing = re.search(r"No module named '(\w+)", report.longreprtext) if report.failed else None
    if missing and missing[1] in NOT_EVERYWHERE:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {missing[1]} is not installed")
    return report
