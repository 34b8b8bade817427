"""The original scripts of public repositories, read from the folder that GENWRIGHT_PUBLIC_SCRIPTS names.

It holds checkouts: gpt-fast, FlexLLMGen, consistency_models, DeepSeek-V3, pytorch and Inspection_release. What is
expected here was checked by hand; docs/inspect-projects.md tells how.
"""

import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from call_count import calls

from genwright.inspect.analysis.border import draft_for_script
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.outputs import output_variables
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.rewrite.rewrite import Rewrite, rewrite

HOME = Path(os.environ.get("GENWRIGHT_PUBLIC_SCRIPTS", "/nonexistent"))
pytestmark = pytest.mark.skipif(
    not HOME.is_dir(), reason="GENWRIGHT_PUBLIC_SCRIPTS names no folder with checkouts of the public repositories"
)

KARRAS = (
    "diffusion model shape steps model_kwargs device clip_denoised sampler sigma_min sigma_max "
    "s_churn s_tmin s_tmax s_noise generator ts"
)
GPT_FAST = "model prompt max_new_tokens batch_size draft_model speculate_k interactive callback temperature top_k"
DEEPSEEK = "model prompt_tokens max_new_tokens eos_id temperature"
BENCHMARK = "model prompt max_new_tokens temperature top_k"
# Script: the sites as interface and parameters, in order; the output variables; the scenario.
ORIGINALS = {
    "gpt-fast/generate.py": ([("generate", GPT_FAST)], [], Scenario()),
    "FlexLLMGen/flexllmgen/apps/completion.py": (
        [("OptLM", "config env path policy"), ("OptLM.generate", "inputs do_sample temperature max_new_tokens stop")],
        [],
        Scenario(),
    ),
    "consistency_models/scripts/image_sample.py": ([("karras_sample", KARRAS)], ["out_path"], Scenario()),
    "DeepSeek-V3/inference/generate.py": (
        [("generate", DEEPSEEK)] * 3,
        [],
        Scenario(argv=["--ckpt-path", "weights", "--config", "config.json", "--interactive"], answers=["hi", "/exit"]),
    ),
    "pytorch/benchmarks/gpt_fast/generate.py": (
        [("generate", BENCHMARK)],
        [],
        Scenario(entry="run_llama2_7b_bf16()"),
    ),
}


def original(name: str) -> Rewrite:
    script = HOME / name
    repository = Repository(script.parent if name.startswith("pytorch") else Repository.around(script).root)
    manifest = draft_for_script(repository, script, repository.source(script))
    return rewrite(script, manifest, ORIGINALS[name][2], repository)


@pytest.mark.parametrize("name", ORIGINALS)
def test_an_original_is_rewritten(name: str) -> None:
    sites, variables, _ = ORIGINALS[name]
    made = original(name)
    located = made.analysis.location.sites
    found = [(s.interface.name, " ".join(a.parameter or "?" for a in s.binding.arguments)) for s in located]
    # PyTorch's file had two more calls, of the same form, while it measured autoquant.
    assert found in (sites, sites * 3 if name.startswith("pytorch") else sites)
    assert output_variables(made.analysis.outputs) == variables
    assert not made.missing and made.untouched > 0.9
    assert calls(original, name) < 5_000_000


STUBBED = """
import argparse, importlib.abc, importlib.machinery, json, os, runpy, sys, types
from unittest import mock
script, *folders = sys.argv[1:]
own = {name.partition(".")[0] for folder in folders for name in os.listdir(folder)} | set(sys.stdlib_module_names)
class Stub(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        return type(name, (), {"__init__": lambda *a, **k: None}) if name[:1].isupper() else Stub(name)
    def __repr__(self):
        return self.__name__
    def __call__(self, *arguments, **keywords):
        return mock.MagicMock()
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        known = name.partition(".")[0] in own
        return None if known else importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Stub(spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Finder())
def parse_args(self, *a, **k):
    print(json.dumps({x.dest: str(self.get_default(x.dest)) for x in self._actions if x.dest != "help"}))
    sys.exit()
argparse.ArgumentParser.parse_args = parse_args
sys.argv, sys.path[:0] = [script], folders
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize("name", [n for n in ORIGINALS if not n.startswith("pytorch")])
def test_defaults_equal_what_argparse_gives(name: str) -> None:
    """The script itself builds its parser, with stubs for every library but argparse and its own modules."""
    script, root = HOME / name, HOME / name.partition("/")[0]
    command = [sys.executable, "-c", STUBBED, str(script), str(script.parent), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads(done.stdout.splitlines()[-1])
    options = {o.name: o.default for o in original(name).analysis.unattended.command_line.options}
    assert set(options) == set(real)
    for option, default in options.items():
        # What only the machine decides is told by its source.
        assert str(default) == real[option] or (isinstance(default, Unknown) and "cuda" in default.text), option


# The dataset: how many sites each script of a project has, what is not resolved, and which values it asks for.
DATASET = {
    "gpt_fast": [1],
    "FlexLLMGen": [2],
    "consistency_models": [1],
    "DemoAIProject": [6],
    "bark": [1],
    "BasicSR": [2],
    "CLIP": [4],
    "face_alignment": [2],
    "chatTTS": [4, 3, 4],
    "insightface": [3, 3],
    "mem0": [3],
    "DragGAN": [1],
    "cogvideo": [1],
    "Vallex": [5],
    "cognee": [2],
    "deep_searcher": [1],
    "Wav2Lip": [2],
    "csm": [2],
    "Synonyms": [10],
    "deep_live_cam": [0],
}
UNRESOLVED = {"insightface": 2, "deep_live_cam": 4}
ASKS = {
    "DemoAIProject": ["entry"],
    "CLIP": ["entry"],
    "DragGAN": ["--network", "--seeds", "--outdir"],
    "cogvideo": ["--prompt"],
    "Vallex": ["ui.handler"],
    "Wav2Lip": ["--face", "--audio"],
}


COMPILE = "import sys\nfor path in sys.argv[1:]: compile(open(path, encoding='utf-8').read(), path, 'exec')"


def dataset(project: str, folder: Path) -> list[Rewrite]:
    path = HOME / "Inspection_release" / "DataSet" / "InterfaceInfo" / f"{project}.json"
    manifest, data = load_manifest(path), json.loads(path.read_text())
    made = []
    for number, call in enumerate(data["API_Calls"]):
        root = data["Project_Root"].rstrip("/") + "/"
        place = call.get("Path", "").removeprefix(root)
        script = folder / project / (place if place.endswith(".py") and not place.startswith("/") else f"{number}.py")
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(call["Code"])
        made.append(rewrite(script, manifest, Scenario(), Repository(folder / project)))
    return made


def test_dataset(tmp_path: Path) -> None:
    untouched = []
    for project, counts in DATASET.items():
        made = dataset(project, tmp_path)
        assert [len(m.analysis.location.sites) for m in made] == counts, project
        assert sum(len(m.analysis.location.unresolved) for m in made) == UNRESOLVED.get(project, 0), project
        asked = [text.split()[0] for m in made for text in m.missing]
        assert asked == ASKS.get(project, []), project
        for number, one in enumerate(made):
            untouched.append(one.untouched)
            ast.parse(one.text, feature_version=(3, 10))
            (tmp_path / f"{project}_{number}.txt").write_text(one.text)
    assert statistics.median(untouched) >= 0.9
    texts = [str(path) for path in tmp_path.glob("*.txt")]
    # Every Python of these that is at hand compiles every rewrite.
    for python in [sys.executable, *(shutil.which(f"python3.{minor}") for minor in (10, 12, 13))]:
        if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            subprocess.run([python, "-W", "ignore", "-c", COMPILE, *texts], check=True, timeout=120)
