"""Time 64 samples of the bundled emoji model, and compute its model card's metrics if noto_emoji_32.npz is given."""

import json
import sys
import time
from pathlib import Path

import torch

from genwright import ImageModel
from genwright.images.data.dataset import read_data
from genwright.images.training.training_run import measure
from genwright.images.training.training_settings import ONE_STEP, TWO_STEPS

HELD_OUT = 0.15  # as in training


def main() -> None:
    model = ImageModel("emoji")
    where = torch.cuda.get_device_name() if model.device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    for name, way in (("one step", ONE_STEP), ("two steps", TWO_STEPS)):
        model.sample(4, seed=0, **way)
        started = time.perf_counter()
        model.sample(64, seed=0, **way)
        print(f"64 samples, {name}: {time.perf_counter() - started:.2f} s on {where}")
    if len(sys.argv) > 1:
        train, held = read_data(Path(sys.argv[1])).split(HELD_OUT)
        print(f"{len(train)} training and {len(held)} held-out images")
        print(json.dumps(measure(model, train, held, consistency_model=True), indent=1))


if __name__ == "__main__":
    main()
