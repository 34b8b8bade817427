"""Read RoPE from config.json: `rope_parameters` since transformers 5, `rope_scaling` before."""

import warnings
from typing import Any

from genwright.errors import GenwrightWarning, UserError
from genwright.text.config import Rope
from genwright.text.config_file import FieldReader

_ORIGINAL = "original_max_position_embeddings"
# Kind of scaling: required numbers and optional numbers.
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": ((), ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")),
    "longrope": ((), ("factor", "attention_factor")),
    "proportional": ((), ("factor",)),
    "factors": ((), ()),
}
_LISTS = {"longrope": ("short_factor", "long_factor"), "factors": ("factors",)}
_KNOWN = {"type", "rope_type", "rope_theta", "truncate", "partial_rotary_factor", "finetuned", _ORIGINAL}
_KNOWN |= {key for keys in (*_LISTS.values(), *(sum(groups, ()) for groups in _KINDS.values())) for key in keys}


def read_rope(read: FieldReader, head_dim: int) -> Rope:
    """RoPE of a model with `head_dim` rotary channels per head."""
    if head_dim % 2:
        raise UserError(f"{read.where} has heads of {head_dim} channels; rotary embeddings need an even number.")
    new, old = read.table("rope_parameters"), read.table("rope_scaling")
    scaling = old if old.config else new
    base = next((table for table in (scaling, new) if table.config.get("rope_theta") is not None), read)
    if (theta := base.number("rope_theta", 10000.0)) <= 1:
        raise base.wrong("rope_theta", "a number above 1")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    kind = "longrope" if kind == "su" else kind  # the old name
    if kind not in _KINDS:
        raise UserError(f"{read.where} has the unknown RoPE scaling {kind!r:.60}; known are {', '.join(_KINDS)}.")
    _check_known(scaling)
    required, optional = _KINDS[kind]
    given = [key for key in optional if scaling.config.get(key)]  # 0 is none in DeepSeek's files
    settings: dict[str, Any] = {key: scaling.number(key) for key in (*required, *given)}
    settings |= {key: _numbers(scaling, key, head_dim // 2) for key in _LISTS.get(kind, ())}
    if kind == "llama3" and settings["low_freq_factor"] >= settings["high_freq_factor"]:
        raise scaling.wrong("low_freq_factor", "a number below its high_freq_factor")
    if kind in ("llama3", "yarn", "longrope"):
        # Phi's files have it at the top level; the default is the context.
        within = scaling if read.config.get(_ORIGINAL) is None else read
        settings[_ORIGINAL] = within.number(_ORIGINAL, _positions(read))
        settings.setdefault("factor", _positions(read) / settings[_ORIGINAL])
    if kind == "longrope" and settings[_ORIGINAL] <= 1:
        raise read.wrong(_ORIGINAL, "a number above 1")
    if kind == "yarn":
        settings["truncate"] = scaling.flag("truncate", True)
    if kind == "dynamic":
        settings[_ORIGINAL] = _positions(read)
        if head_dim < 4:
            raise UserError(f"{read.where} has heads of {head_dim} channels; dynamic RoPE scaling needs at least 4.")
    _read_partial_factor(read, scaling, kind, settings)
    return Rope(theta, kind, settings)


def _read_partial_factor(read: FieldReader, scaling: FieldReader, kind: str, settings: dict[str, Any]) -> None:
    """The fraction of a head's channels that rotates; only proportional scaling allows less than 1."""
    key = "partial_rotary_factor"
    within = scaling if scaling.config.get(key) is not None else read
    factor = 1.0 if within.config.get(key) is None else within.number(key)
    if kind == "proportional":
        if factor > 1:
            raise within.wrong(key, "a number of at most 1")
        settings[key] = factor
    elif factor != 1:
        raise within.wrong(key, "1, because all channels of a head rotate in this architecture")


def _check_known(scaling: FieldReader) -> None:
    """Warn of unknown settings, because they may change the results."""
    for key, value in scaling.config.items():
        if isinstance(value, dict):
            raise scaling.wrong(key, "a single value, because RoPE that differs by layer is not supported")
        if key not in _KNOWN and value is not None:
            warnings.warn(
                f"{scaling.where} has the unknown setting {key!r:.60}, which is ignored.", GenwrightWarning, 2
            )


def _numbers(scaling: FieldReader, key: str, count: int) -> list[float]:
    values = scaling.config.get(key)
    good = isinstance(values, list) and [type(v) in (int, float) and 1e-30 < v < 1e30 for v in values] == [True] * count
    if not good or values is None:
        raise scaling.wrong(key, f"{count} positive numbers, one for every two channels of a head")
    return [float(value) for value in values]


def _positions(read: FieldReader) -> float:
    return read.number("max_position_embeddings", 2048)
