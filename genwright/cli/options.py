"""Flags that several verbs share, read from the dataclasses that they fill."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

import typer

from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.text.pull import DEFAULT

if TYPE_CHECKING:
    from genwright.text.llm import LLM


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it is held."""

    device: str = "auto"
    dtype: str = "auto"
    quant: str | None = None
    kv: str = "auto"
    deterministic: bool = False
    max_context: int | None = None
    arch: str | None = None
    chat_template: str | None = None
    draft: str | None = None
    speculate_k: int = 5
    backend: str = "auto"
    no_graph: bool = False
    gpu_mem: float | None = None
    cpu_mem: float | None = None

    def load(self, model: str) -> "LLM":
        from genwright.text.llm import LLM

        with bar("Loading") as progress:
            return LLM(model, progress=progress, **self.settings())

    def settings(self, changed: bool = False) -> dict[str, Any]:
        """LLM's keyword arguments, or those alone that are not the defaults."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if changed:
            given = {field.name: given[field.name] for field in fields(self) if given[field.name] != field.default}
        if "no_graph" in given:
            given["graph"] = not given.pop("no_graph")
        return given


Model = Annotated[str, typer.Option(help="A checkpoint's path, a name from `genwright pull`, or random:NAME.")]
DEFAULT_MODEL = DEFAULT
_HELP = {
    "device": "auto, cpu or cuda.",
    "dtype": "auto, float32, float16 or bfloat16.",
    "quant": "Pack weights: int8, int4, int4:g64, int4:g64:asym, fp8, fp8:channel; keep leaves GGUF's as they are.",
    "kv": "The cache's format: auto (the model's own type), int8 or int4.",
    "deterministic": "The same bits alone, in any batch and under any chunking; slower.",
    "max_context": "Tokens that a prompt and its answer may have together.",
    "arch": "The named shape of a checkpoint that has no configuration.",
    "chat_template": "Chat not by the checkpoint's template but by llama-2, llama-3, mistral, chatml or a Jinja file.",
    "draft": "What guesses tokens for the model to check: another, prompt-lookup, mtp, or self:int4, its own copy.",
    "speculate_k": "Tokens that a draft guesses at the most.",
    "backend": "auto, torch (plain PyTorch), cpu (our C++), triton (NVIDIA GPUs) or inductor (torch.compile there).",
    "no_graph": "On a GPU, no CUDA graphs: slower, for debugging.",
    "gpu_mem": "GB of GPU memory that may be used.",
    "cpu_mem": "GB of memory that may be used.",
    "temperature": "0 is greedy.",
    "top_k": "Keep the k likeliest tokens; 0 keeps all.",
    "top_p": "Keep the likeliest tokens that together have this probability.",
    "min_p": "Drop tokens below this share of the likeliest one's probability.",
    "repetition_penalty": "Divides the logits of tokens seen before.",
    "presence_penalty": "Subtracted once for every token in the answer.",
    "frequency_penalty": "Subtracted for each occurrence in the answer.",
    "logit_bias": "ID=BIAS, added to a token's logit; may be repeated.",
    "seed": "The same seed gives the same tokens; drawn and reported if not given.",
    "n": "Answers per prompt.",
    "max_new_tokens": "Tokens of an answer at the most.",
    "min_new_tokens": "Tokens before an answer may end.",
    "stop": "Text that ends an answer; may be repeated.",
    "stop_ids": "Token id that ends an answer; may be repeated.",
    "ignore_eos": "Go on past the model's own end.",
    "logprobs": "Show each token's log-probability, with so many alternatives.",
    "prompt_logprobs": "Show log-probabilities of the prompt's tokens too.",
}
_FLAGS = {"n": ["-n", "--n", "--num-samples"], "stop_ids": ["--stop-id"]}
_TYPES: dict[str, Any] = {"stop": list[str], "stop_ids": list[int], "logit_bias": list[str]}


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter that is a dataclass into one flag per field.

    A parameter `Annotated[dict, DATACLASS]` has the same flags without defaults, and gets those that were given.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, bool]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        optional = get_origin(kind) is Annotated and is_dataclass(kind.__metadata__[0])
        source = kind.__metadata__[0] if optional else kind
        if not is_dataclass(source):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = (source, optional)
        types = get_type_hints(source)
        parameters += [_flag(field, types[field.name], optional) for field in fields(source)]

    @wraps(function)
    def command(**values: Any) -> None:
        for name, (kind, optional) in groups.items():
            flags = {field.name: values.pop(field.name) for field in fields(kind)}
            given = {key: _value(key, value) for key, value in flags.items() if not optional or value not in (None, [])}
            values[name] = given if optional else kind(**given)
        function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _flag(field: Any, kind: Any, optional: bool = False) -> inspect.Parameter:
    names = _FLAGS.get(field.name, [])
    if kind is bool:
        names = [f"--{field.name.replace('_', '-')}"]  # without typer's --no- twin
    option = typer.Option(*names, help=_HELP[field.name])
    annotation: Any = Annotated[_TYPES.get(field.name, kind | None if optional else kind), option]
    default = [] if field.name in _TYPES else None if optional else field.default
    assert default is not MISSING
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(name: str, value: Any) -> Any:
    if name != "logit_bias":
        return tuple(value) if name in _TYPES else value
    try:
        return {int(token): float(bias) for token, bias in (pair.split("=") for pair in value)}
    except ValueError:
        raise UserError(f"--logit-bias should be ID=BIAS, as in 42=-5, and is {' '.join(value)!r}.") from None
