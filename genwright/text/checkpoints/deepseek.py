"""DeepSeek's own shards: model{rank}-mp{N}.safetensors, written by its inference/convert.py for N ranks."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.text.architectures.class_defaults import read_config_json
from genwright.text.architectures.registry import architecture, find_shape, read_config
from genwright.text.architectures.weight_map import Part, Source
from genwright.text.checkpoints.protocol import SCALES, Checkpoint, convert_dtype, narrow
from genwright.text.checkpoints.safetensors_file import open_safetensors
from genwright.text.config import ModelConfig
from genwright.text.config_file import FieldReader

# Hugging Face's names of modules -> DeepSeek's.
MODULES = {
    "embed_tokens": "embed",
    "lm_head": "head",
    "norm": "norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "wq",
    "q_a_proj": "wq_a",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "wq_b",
    "kv_a_proj_with_mqa": "wkv_a",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "wkv_b",
    "o_proj": "wo",
    "gate": "gate",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    # The multi-token-prediction layer, which DeepSeek's script leaves out.
    "enorm": "enorm",
    "hnorm": "hnorm",
    "eh_proj": "eh_proj",
    "head": "head",
}
SUBLAYERS = {"self_attn": "attn", "mlp": "ffn"}
PARAMETERS = {"weight": "weight", "weight_scale_inv": "scale", "e_score_correction_bias": "bias"}
_MODULES_BACK, _SUBLAYERS_BACK, _PARAMETERS_BACK = (
    {theirs: ours for ours, theirs in names.items()} for names in (MODULES, SUBLAYERS, PARAMETERS)
)
_SHARD = re.compile(r"model([0-9]{1,4})-mp([0-9]{1,4})\.safetensors")
_EXPERT = re.compile(r"\.experts\.([0-9]{1,6})\.")

# DeepSeek's ModelArgs -> Hugging Face's key and DeepSeek's default.
ARGS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 102400),
    "dim": ("hidden_size", 2048),
    "inter_dim": ("intermediate_size", 10944),
    "moe_inter_dim": ("moe_intermediate_size", 1408),
    "n_layers": ("num_hidden_layers", 27),
    "n_dense_layers": ("first_k_dense_replace", 1),
    "n_heads": ("num_attention_heads", 16),
    "n_routed_experts": ("n_routed_experts", 64),
    "n_shared_experts": ("n_shared_experts", 2),
    "n_activated_experts": ("num_experts_per_tok", 6),
    "n_expert_groups": ("n_group", 1),
    "n_limited_groups": ("topk_group", 1),
    "route_scale": ("routed_scaling_factor", 1.0),
    "q_lora_rank": ("q_lora_rank", 0),
    "kv_lora_rank": ("kv_lora_rank", 512),
    "qk_nope_head_dim": ("qk_nope_head_dim", 128),
    "qk_rope_head_dim": ("qk_rope_head_dim", 64),
    "v_head_dim": ("v_head_dim", 128),
    "rope_theta": ("rope_theta", 10000.0),
}
YARN: dict[str, tuple[str, Any]] = {
    "original_seq_len": ("original_max_position_embeddings", 4096),
    "rope_factor": ("factor", 40),
    "beta_fast": ("beta_fast", 32),
    "beta_slow": ("beta_slow", 1),
    "mscale": ("mscale_all_dim", 1.0),
}


def shard_name(rank: int, ranks: int) -> str:
    return f"model{rank}-mp{ranks}.safetensors"


def deepseek_name(name: str) -> str:
    """DeepSeek's name of a tensor, from Hugging Face's."""
    *path, module, parameter = name.removeprefix("model.").split(".")
    if module not in MODULES or parameter not in PARAMETERS:
        raise UserError(f"{name!r:.80} is not a tensor of a DeepSeek model.")
    return ".".join([*(SUBLAYERS.get(part, part) for part in path), MODULES[module], PARAMETERS[parameter]])


def hugging_face_name(name: str) -> str:
    """The inverse; a name that is not DeepSeek's is returned unchanged."""
    *path, module, parameter = ("", *name.split("."))
    if module not in _MODULES_BACK or parameter not in _PARAMETERS_BACK or (parameter == "bias" and module != "gate"):
        return name
    if module == "head" and not any(path):
        return f"lm_head.{_PARAMETERS_BACK[parameter]}"
    parents = [_SUBLAYERS_BACK.get(part, part) for part in path if part]
    return ".".join(["model", *parents, _MODULES_BACK[module], _PARAMETERS_BACK[parameter]])


def cuts(cfg: ModelConfig) -> dict[str, Source]:
    """Each tensor's source by name, which tells how it is cut; DeepSeek always cuts the vocabulary."""
    weights = architecture(cfg).weight_map(cfg)
    every = (*weights.tensors(draft=True), *weights.copies)
    return {s.name: s._replace(may_stay_whole=False) if s.may_stay_whole else s for s in every}


class DeepSeekShards(Checkpoint):
    """The shards of all ranks as one checkpoint; tensors that were cut are joined on request."""

    def __init__(self, folder: Path, arch: str | None = None):
        self.path, self.folder = str(folder), folder
        self.ranks = _count_shards(folder)
        self._files = [open_safetensors(folder / shard_name(rank, self.ranks)) for rank in range(self.ranks)]
        self._holders: dict[str, list[int]] = {}  # the ranks that have each tensor, by DeepSeek's name
        for rank, file in enumerate(self._files):
            for name in file.keys():  # noqa: SIM118 (not a dictionary)
                self._holders.setdefault(name, []).append(rank)
        self._names = {hugging_face_name(name): name for name in self._holders}
        self.hf_config: dict[str, Any] = self._find_config(arch)
        self.config = read_config(self.hf_config, self.config_path)
        self._cuts = cuts(self.config)
        self._views: dict[str, list[torch.Tensor]] = {}
        for name, ranks in self._holders.items():
            missing = set(range(self.ranks)) - set(ranks)
            if missing and not _EXPERT.search(name):
                lacking, having = (shard_name(rank, self.ranks) for rank in (min(missing), ranks[0]))
                raise UserError(f"{folder / lacking} has no tensor {name!r:.80}, which {having} has.")

    @staticmethod
    def recognises(folder: Path) -> bool:
        return any(_SHARD.fullmatch(file.name) for file in folder.iterdir())

    def names(self) -> Sequence[str]:
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        shapes, cut = [list(piece.shape) for piece in self._pieces(name)], self._cut(name)
        if cut is not None and all(len(shape) > cut for shape in shapes):
            shapes[0][cut] = sum(shape[cut] for shape in shapes)
        return tuple(shapes[0])

    def dtype(self, name: str) -> torch.dtype:
        return self._pieces(name)[0].dtype

    def where(self, name: str) -> str:
        source, rank = self._cuts.get(name.removesuffix(SCALES)), None
        if name in self._names:
            rank = self._holders[self._names[name]][0]
        elif self.config.moe and source is not None:
            rank = source.owner(self.config.moe.experts, self.ranks)
        return str(self.folder / shard_name(min(rank or 0, self.ranks - 1), self.ranks))

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        if dtype is not None and self.format(name) is not None:
            return self.dequantized(name, dtype, part)
        try:
            stored = self._join(name, part)
        except (RuntimeError, IndexError):
            raise UserError(f"{self.where(name)} has {name!r} of a shape that does not fit the other shards.") from None
        return convert_dtype(self, name, stored, dtype)

    def _cut(self, name: str) -> int | None:
        """The axis along which a tensor is cut; experts are not."""
        source = self._cuts.get(name.removesuffix(SCALES))
        return None if source is None or source.expert is not None else source.axis

    def _pieces(self, name: str) -> list[torch.Tensor]:
        """Views of the files that make up a tensor, in order of rank; they are kept, as new ones take 10 us."""
        if name not in self._views:
            theirs = self._names[name]
            ranks = self._holders[theirs] if self._cut(name) is not None else self._holders[theirs][:1]
            self._views[name] = [self._files[rank].get_tensor(theirs) for rank in ranks]
        return self._views[name]

    def _join(self, name: str, part: Part | None) -> torch.Tensor:
        """A tensor or a part of it; only the pieces that overlap the part are read."""
        cut, pieces = self._cut(name), self._pieces(name)
        if cut is None or len(pieces) == 1:
            return narrow(pieces[0], part)
        if part is None or part.axis != cut:
            return torch.cat([narrow(piece, part) for piece in pieces], dim=cut)
        chosen, first = [], 0
        for piece in pieces:
            size = piece.shape[cut]
            start, end = max(part.start - first, 0), min(part.start + part.length - first, size)
            if start < end:
                chosen.append(piece.narrow(cut, start, end - start))
            first += size
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=cut)

    def _find_config(self, arch: str | None) -> dict[str, Any]:
        """The file or the shape that `arch` names, else config.json, else DeepSeek's config_*.json, else a shape."""
        named = Path(arch) if arch is not None and arch.endswith(".json") else None
        found = [named or self.folder / "config.json"]
        if not found[0].exists() and named is None:
            found = sorted(self.folder.glob("config_*.json"))
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise UserError(f"{self.folder} has several configurations, {names}; keep only that of these shards.")
        by_shape = not found or (arch is not None and named is None)
        self.config_path = self.path if by_shape else str(found[0])
        if by_shape:
            return find_shape(self.folder, arch, self._fits)
        config = read_config_json(found[0])
        if "model_type" in config or "architectures" in config:
            return config
        draft = f"model.layers.{config.get('n_layers', ARGS['n_layers'][1])}.eh_proj.weight" in self._names
        return hf_config(config, self.config_path, draft)

    def _fits(self, cfg: ModelConfig) -> bool:
        last, after = (f"model.layers.{layer}.input_layernorm.weight" for layer in (cfg.layers - 1, cfg.layers))
        layers_fit = last in self._names and (after not in self._names or cfg.draft_layers > 0)
        embedding = "model.embed_tokens.weight"
        if cfg.architecture != "deepseek" or not layers_fit or embedding not in self._names:
            return False
        theirs = self._names[embedding]
        shards = [self._files[rank].get_slice(theirs).get_shape() for rank in self._holders[theirs]]
        return [sum(sum(rows[:1]) for rows in shards), *shards[0][1:]] == [cfg.vocab_size, cfg.dim]


def hf_config(args: Mapping[str, Any], where: str, draft: bool) -> dict[str, Any]:
    """DeepSeek's ModelArgs as a Hugging Face configuration, whose values `read_config` checks."""
    read = FieldReader(args, where)
    known = {*ARGS, *YARN, "score_func", "dtype", "scale_fmt", "max_batch_size", "max_seq_len"}
    for key in args:
        if key not in known:
            raise UserError(f"{where} has {key!r:.60}, which is not a setting of DeepSeek's inference code.")
    score = read.text("score_func", "softmax")
    v3 = score == "sigmoid"
    settings = {theirs: args.get(key, default) for key, (theirs, default) in YARN.items()}
    grouped = args.get("n_expert_groups", 1) != 1
    original = read.integer("original_seq_len", 1, 1 << 30, default=4096)
    context = read.integer("max_seq_len", 1, 1 << 30, default=16384)
    stretched = context > original  # DeepSeek's code applies YaRN only then
    if stretched:
        context = min(int(original * read.number("rope_factor", 40)), 1 << 30)
    return {
        "architectures": ["DeepseekV3ForCausalLM" if v3 else "DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3" if v3 else "deepseek_v2",
        **{theirs: args.get(key, default) for key, (theirs, default) in ARGS.items()},
        "scoring_func": score,
        "topk_method": "noaux_tc" if v3 else "group_limited_greedy" if grouped else "greedy",
        "norm_topk_prob": v3,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": context,
        "rope_scaling": {"type": "yarn", **settings, "mscale": settings["mscale_all_dim"]} if stretched else None,
        "torch_dtype": "bfloat16",
        "num_nextn_predict_layers": int(draft),
    }


def model_args(config: Mapping[str, Any], packed: bool) -> dict[str, Any]:
    """The inverse, for DeepSeek's generate.py; fields that ModelArgs lacks are left out."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    args = {key: config.get(theirs) or default for key, (theirs, default) in ARGS.items() if theirs in config}
    args |= {key: scaling[theirs] for key, (theirs, _) in YARN.items() if theirs in scaling}
    if scaling.get("rope_type", scaling.get("type")) != "yarn":
        args |= dict.fromkeys(("original_seq_len", "max_seq_len"), config.get("max_position_embeddings", 2048))
    quantization = config.get("quantization_config") or {}
    return {
        **args,
        "score_func": "sigmoid" if config.get("model_type") == "deepseek_v3" else "softmax",
        "dtype": "fp8" if packed else "bf16",
        **({"scale_fmt": quantization["scale_fmt"]} if packed and quantization.get("scale_fmt") else {}),
    }


def _count_shards(folder: Path) -> int:
    found = [match for file in folder.iterdir() if (match := _SHARD.fullmatch(file.name))]
    counts = sorted({int(match[2]) for match in found})
    if len(counts) > 1:
        raise UserError(f"{folder} has shards for {' and for '.join(map(str, counts))} ranks; keep one set only.")
    for rank in range(counts[0]):
        if not (folder / shard_name(rank, counts[0])).is_file():
            raise UserError(f"{folder} lacks {shard_name(rank, counts[0])}, one of its {counts[0]} shards.")
    if len(found) > counts[0]:
        extra = max(found, key=lambda match: int(match[1]))[0]
        raise UserError(f"{folder} has {extra}, which is not one of {counts[0]} shards.")
    return counts[0]
