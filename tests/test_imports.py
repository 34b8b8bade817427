"""The order of imports: dependencies point downwards, and nothing hides one that does not."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

# From the top down: a module imports from its own folder and from the levels below its own.
HOUSE = (
    ("__main__",),
    ("cli",),
    ("dropin", "serve"),
    ("bench", "inspect"),
    ("text", "images"),
    ("placement", "parallel"),
    ("kernels",),
    ("quant",),
    ("arguments", "device", "home", "rng"),
    ("errors",),
)
TEXT = (
    ("batch", "conversation"),
    ("llm",),
    ("worker", "tool_chat"),
    ("build", "generation_config"),
    ("placed_model",),
    ("memory",),
    ("planning",),
    ("engine+drafts", "export"),
    ("loader",),
    ("checkpoints",),
    ("catalogue",),
    ("architectures", "tokenizer", "hub"),
    ("ops",),
    ("cache",),
    ("config", "settings", "prompts", "tool_calls"),
    ("config_file",),
)
IMAGES = (("training",), ("metrics",), ("sampling",), ("data",), ("model",))
INSPECT = (
    ("executor+run", "report"),
    ("replay",),
    ("wrappers",),
    ("surroundings", "isolation"),
    ("records",),
    ("analysis+rewrite",),
    ("media",),
)
ROOMS = {"text": TEXT, "images": IMAGES, "inspect": INSPECT}
# The engine steps with a draft, and a draft model is run by an executor: one level, without a cycle of modules.
# Intercepting imports the executor, and the executor what it calls by name; analysis and rewriting share `Source`.
TOGETHER = {
    "engine": "engine+drafts",
    "drafts": "engine+drafts",
    "executor": "executor+run",
    "run": "executor+run",
    "analysis": "analysis+rewrite",
    "rewrite": "analysis+rewrite",
}

# The library's own dependencies, and what one place alone may import.
CORE = {
    "text",
    "images",
    "quant",
    "placement",
    "parallel",
    "kernels",
    "bench",
    "arguments",
    "device",
    "home",
    "rng",
    "errors",
}
LIBRARIES = {
    "torch", "numpy", "psutil", "safetensors", "tokenizers", "sentencepiece", "jinja2", "scipy", "triton"
}  # fmt: skip
EXTRAS = {
    "genwright.text.hub": {"huggingface_hub"},  # the extra `hub`
    "genwright.text.engine.grammar": {"llguidance"},  # the extra `serve`
    "genwright.bench.peers": {"transformers", "llama_cpp"},  # what we are compared with, where it is installed
    "genwright.bench.llama_cpp_slots": {"llama_cpp"},
    "genwright.bench.random_gguf": {"gguf"},  # for llama.cpp
    "genwright.bench.harness": {"lm_eval"},  # the extra `eval`
    "genwright.bench.plot": {"matplotlib"},
    "genwright.images": {"PIL", "matplotlib"},  # image files and the picture of a training run
}

# Imports inside functions that are there for what they cost, and never to hide a cycle.
LAZY = {
    "genwright.cli": "a verb imports what it runs, so that --help and completion do not wait for torch",
    "genwright.bench.peers": "a peer may not be installed",
    "genwright.bench.run": "the parent of the experiments' processes does without torch and the peers",
    "genwright.images": "triton is missing on machines without a GPU",
    "genwright.text.engine.resident_executor": "triton is missing on machines without a GPU",
    "genwright.text.engine.sampler": "triton is missing on machines without a GPU",
    "genwright.text.ops.backends": "triton is missing on machines without a GPU",
    "genwright.text.ops.step": "triton is missing on machines without a GPU",
    "genwright.placement.planner": "importing scipy's solver takes 0.3 s, and most models are not planned",
    "genwright.text.tokenizer.chat_template": "importing Jinja takes 0.02 s, and a completion has no chat template",
    "genwright.text.catalogue": "help and `pull` list models without torch, which named shapes need",
    "genwright.dropin.gpt_fast.eval": "lm-eval may not be installed",
    "genwright.inspect.report.commentator": "a report without a commentator does without torch",
    "genwright.inspect.executor": "generated scripts import it, and most have no manifest",
}


@dataclass(frozen=True)
class Import:
    module: str  # as it is written, down to a module of ours
    name: str  # what is taken of it; empty for the module itself
    line: int
    lazy: bool  # inside a function
    for_types: bool  # under TYPE_CHECKING


def package() -> dict[str, str]:
    """The text of every module, by its name."""
    found = {}
    for path in sorted((ROOT / "genwright").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


@cache
def imports(text: str, modules: frozenset[str]) -> list[Import]:
    """What a text imports, given the names of all modules."""

    def visit(node: ast.AST, lazy: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, "", node.lineno, lazy, for_types) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                found = (whole, "") if whole in modules else (module, alias.name)
                yield Import(*found, node.lineno, lazy, for_types)
        lazy |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy, for_types)

    return list(visit(ast.parse(text), False, False))


def level(part: str, order: tuple[tuple[str, ...], ...]) -> int | None:
    return next((number for number, names in enumerate(order) if TOGETHER.get(part, part) in names), None)


def wrong_direction(importer: str, imported: str) -> str | None:
    """Why one module of ours may not import another."""
    ours, theirs = importer.split("."), imported.split(".")
    if importer == "genwright":
        return None  # the public names
    if imported == "genwright":
        return "the public names are for users"
    for depth, order in ((1, HOUSE), (2, ROOMS.get(ours[1], ()))):
        if depth == 2 and (not order or len(ours) < 3 or len(theirs) < 3):
            return None
        if ours[depth] == theirs[depth]:
            if depth == 1:
                continue
            return None
        above, below = level(ours[depth], order), level(theirs[depth], order)
        for part, number in ((ours[depth], above), (theirs[depth], below)):
            if number is None:
                return f"{part} has no place in the order of tests/test_imports.py"
        same = TOGETHER.get(ours[depth], ours[depth]) == TOGETHER.get(theirs[depth], theirs[depth])
        if not same and above >= below:  # type: ignore[operator]
            return f"{theirs[depth]} is not below {ours[depth]}"
        return None
    return None


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """The modules of one cycle, or none."""
    done, path = set[str](), list[str]()

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        for following in sorted(graph.get(node, ())):
            if found := visit(following):
                return found
        path.pop()
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node))), [])


def problems(modules: Mapping[str, str]) -> list[str]:
    found, graph, names = list[str](), dict[str, set[str]](), frozenset(modules)
    for importer, text in modules.items():
        top = importer.split(".")[1] if "." in importer else ""
        for each in imports(text, names):
            where, library = f"{importer}:{each.line} imports {each.module}", each.module.split(".")[0]
            if library == "genwright":
                if not each.for_types:
                    graph.setdefault(importer, set()).add(each.module)
                if reason := wrong_direction(importer, each.module):
                    found.append(f"{where}: {reason}")
                if each.name.startswith("_") and not each.name.startswith("__"):
                    found.append(f"{where}: {each.name} is private")
                if each.lazy and importer != "genwright" and not any(_under(importer, name) for name in LAZY):
                    found.append(f"{where}: inside a function")
            elif not library:
                found.append(f"{where}: write the whole name")
            elif top in CORE and library not in sys.stdlib_module_names and library not in LIBRARIES:
                extra = {name for place, names in EXTRAS.items() if _under(importer, place) for name in names}
                if library not in extra:
                    found.append(f"{where}: the compute core does without {library}")
    if around := cycle(graph):
        found.append(f"a cycle: {' -> '.join(around)}")
    return found


def _under(module: str, place: str) -> bool:
    return module == place or module.startswith(f"{place}.")


def test_imports_point_downwards() -> None:
    assert not (found := problems(package())), "\n".join(found)


def test_every_lazy_import_and_extra_that_is_allowed_exists() -> None:
    modules = package()
    lazy = {name for name, text in modules.items() for each in imports(text, frozenset(modules)) if each.lazy}
    assert all(any(_under(name, place) for name in lazy) for place in LAZY), "an entry of LAZY that nothing needs"
    assert all(any(_under(name, place) for name in modules) for place in EXTRAS)


BROKEN = {
    "from genwright.text.llm import LLM": ("genwright.kernels.cpu.threads", "text is not below kernels"),
    "from genwright.images.model.unet import UNet": ("genwright.text.llm", "images is not below text"),
    "from genwright.images.data.dataset import Batches": ("genwright.images.model.unet", "data is not below model"),
    "from genwright.kernels import PAGE": ("genwright.quant.int8", "kernels is not below quant"),
    "from genwright.text.ops.step import Step": ("genwright.text.cache.pages", "ops is not below cache"),
    "from genwright.text.engine.engine import Engine": ("genwright.text.loader", "is not below loader"),
    "from genwright.text.cache.pages import _present": ("genwright.text.ops.step", "_present is private"),
    "def f():\n    from genwright.text.cache.pages import LEAF": ("genwright.text.ops.rope", "inside a function"),
    "import requests": ("genwright.text.batch", "does without requests"),
    "from . import layout": ("genwright.text.cache.pages", "write the whole name"),
    "from genwright.text.cache.pages import LEAF": ("genwright.text.cache.layout", "a cycle"),
    "from genwright import LLM": ("genwright.bench.run", "the public names are for users"),
}


def test_every_kind_of_wrong_import_is_found() -> None:
    modules, before = package(), problems(package())
    for line, (module, words) in BROKEN.items():
        found = problems({**modules, module: f"{line}\n{modules[module]}"})
        assert any(words in each for each in found if each not in before), (line, found)
