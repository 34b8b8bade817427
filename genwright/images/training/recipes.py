"""Recipes: the settings of scripts/launch.sh in consistency_models, with which its published models were trained.

A recipe changes defaults of `genwright images train`, except for the UNet's shape.
"""

from typing import Any

from genwright.arguments import one_of
from genwright.errors import UserError

# Shared by all: every image is equally likely, half of them are mirrored, none is held out.
_EVERY: dict[str, Any] = {
    "optimizer": "radam",
    "beta2": 0.999,
    "ema": (0.999, 0.9999, 0.9999432189950708),
    "ema_warmup": False,
    "dtype": "float16",
    "balance": 0.0,
    "mirror": ("all",),
    "hold_out": 0.0,
}
_EDM = _EVERY | {"lr": 1e-4, "dropout": 0.1}
_DISTILL = _EVERY | {"loss_norm": "lpips", "start_scales": 40, "start_ema": 0.95, "steps": 600_000}
_CONSISTENCY = _EVERY | {"loss_norm": "lpips", "schedule": "adaptive", "start_scales": 2, "start_ema": 0.95}
_LSUN_EMA = {"ema": (0.9999, 0.99994, 0.9999432189950708), "batch_size": 256}

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "imagenet64": {
        "edm": _EDM | {"batch_size": 4096},
        "distill": _DISTILL | {"batch_size": 2048, "lr": 8e-6},
        "consistency": _CONSISTENCY | {"batch_size": 2048, "lr": 1e-4, "end_scales": 200, "steps": 800_000},
    },
    "lsun256": {
        "edm": _EDM | {"batch_size": 256},
        "distill": _DISTILL | _LSUN_EMA | {"lr": 1e-5},
        "consistency": _CONSISTENCY | _LSUN_EMA | {"lr": 5e-5, "end_scales": 150, "steps": 1_000_000},
    },
}


def find_recipe(name: str, method: str) -> dict[str, Any]:
    """The settings of a recipe for a method."""
    one_of("recipe", name, RECIPES)
    if method not in RECIPES[name]:
        raise UserError(f"The recipe {name} has settings for {', '.join(RECIPES[name])}, not for {method}.")
    return RECIPES[name][method]
