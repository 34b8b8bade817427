"""Run GPTQ on a text model: layer by layer, with the hidden states of a calibration text."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import torch
from torch.nn.functional import silu

from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.quant.formats import Format
from genwright.quant.gptq import Observe, calibrate
from genwright.quant.packed import Packed, Weight
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Sources
from genwright.text.cache.layout import Cache, CacheSpec, LayerCache
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.config import ModelConfig
from genwright.text.export.convert import Progress
from genwright.text.loader import Loader, rope_tables
from genwright.text.ops.protocol import Weights
from genwright.text.ops.step import Chunk, Step, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

WINDOW = 512  # tokens of a window
WINDOWS = 64  # maximum number of windows
MIN_TOKENS = 2048
DOWN = "experts.down"


def calibration_windows(checkpoint: Checkpoint, text: str) -> list[list[int]]:
    """A calibration text in windows of equally many token ids."""
    tokenizer = checkpoint.tokenizer()
    if tokenizer is None:
        raise UserError(f"{checkpoint.path} has no tokenizer, which a calibration text needs.")
    ids = tokenizer.encode(text)
    if len(ids) < MIN_TOKENS:
        raise UserError(f"The calibration text has {len(ids)} tokens; GPTQ needs at least {MIN_TOKENS}.")
    size = min(WINDOW, checkpoint.config.max_context)
    windows = [ids[first : first + size] for first in range(0, len(ids) - size + 1, size)]
    # Take windows from the whole of a long text.
    return [windows[i * len(windows) // WINDOWS] for i in range(WINDOWS)] if len(windows) > WINDOWS else windows


@torch.inference_mode()
def calibrated(
    checkpoint: Checkpoint,
    form: Format,
    windows: list[list[int]],
    device: torch.device,
    progress: Progress = lambda done, total: None,
) -> Iterator[dict[str, Packed]]:
    """For each layer, its matrices packed by GPTQ, by the checkpoint's names; one layer is in memory at a time.

    `progress` counts the runs of windows through layers, because they take most of the time.
    """
    cfg, arch = checkpoint.config, architecture(checkpoint.config)
    load = Loader(checkpoint, torch.float32, device, packed=False)
    plan = Loader(checkpoint, torch.float32, device, quant=form)
    size = len(windows[0])
    outer = load.load({name: sources for name, sources in load.weights.outer.items() if name != "head"})
    spec, pages = CacheSpec(arch.cache_layers(cfg)[:1], torch.float32), -(-size // PAGE)
    tables = rope_tables(cfg, size, device)
    ops, buffers, hidden = TorchOps(), StepBuffers(size, 1, pages, device, rope_tables=tables), []
    for window in windows:
        step = buffers.fill([Chunk(window, 0, [range(pages)])])
        hidden.append(arch.embed(ops, cfg, outer, step))
    del outer
    rows = Cache(spec, pages, device).layers[0].rows  # shared by all layers
    # All windows use the last one's step: they are equally long, and blocks do not read its tokens.
    sources = [load.weights.block(layer) for layer in range(cfg.layers)]
    runs, total = count(1), cfg.layers * len(windows) * 2  # before and after a layer's matrices are packed
    blocks = (
        _Layer(cfg, block, load, plan, LayerCache(i, 0, rows, spec), step, lambda: progress(next(runs), total))
        for i, block in enumerate(sources)
    )
    yield from calibrate(hidden, blocks, form)


class _Layer:
    """A layer's weights; `matrices` has views of fused weights by the checkpoint's names."""

    def __init__(
        self,
        cfg: ModelConfig,
        block: Mapping[str, Sources],
        load: Loader,
        plan: Loader,
        cache: LayerCache,
        step: Step,
        advance: Callable[[], None],  # called after each run
    ):
        self.cfg, self.cache, self.step, self.advance = cfg, cache, step, advance
        self.weights = load.load(block)
        self.matrices: dict[str, dict[str, torch.Tensor]] = {}
        for name, sources in block.items():
            if plan.forms(name, sources) is None:
                continue
            rows = self.weights[name].split([source.shape[0] for source in sources])
            for i, (source, matrix) in enumerate(zip(sources, rows, strict=True)):
                self.matrices.setdefault(_key(name, i), {})[source.name] = matrix

    def run(self, x: torch.Tensor, observe: Observe | None = None) -> torch.Tensor:
        ops = TorchOps() if observe is None else _Observing(observe)
        y: torch.Tensor = architecture(self.cfg).block(ops, self.cfg, self.weights, self.cache, x, self.step)
        self.advance()
        return y


class _Observing(TorchOps):
    """The torch backend, which passes the inputs of each matrix to `observe`."""

    def __init__(self, observe: Observe):
        super().__init__()
        self.observe = observe

    def linear(self, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        self.observe(name, x)
        return super().linear(x, weights, name)

    def add_linear(
        self, residual: torch.Tensor, x: torch.Tensor, weights: Weights, name: str, post_norm: str = "", eps: float = 0
    ) -> torch.Tensor:
        self.observe(name, x)
        return super().add_linear(residual, x, weights, name, post_norm, eps)

    def experts(self, x: torch.Tensor, ids: torch.Tensor, gate_up: Weight, down: Weight) -> torch.Tensor:
        assert isinstance(gate_up, torch.Tensor)
        self.observe("experts.gate_up", x)  # one Hessian for all experts, to save memory
        for expert in ids.unique().tolist():
            gate, up = (x[(ids == expert).any(dim=1)] @ gate_up[expert].T).chunk(2, dim=-1)
            self.observe(_key(DOWN, expert), silu(gate) * up)
        return super().experts(x, ids, gate_up, down)


def _key(name: str, expert: int) -> str:
    """The key of a matrix's Hessian; the second matrix of each expert has its own."""
    return f"{name}.{expert}" if name == DOWN else name
