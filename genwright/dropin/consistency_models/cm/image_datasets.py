"""Batches of a folder of images, endlessly, for training; each rank reads its share of the files."""

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cm.dist_util import launched_ranks
from genwright.errors import UserError
from genwright.images.data.dataset import center_crop, open_image, resize_shorter_side

_SUFFIXES = {".jpg", ".jpeg", ".png", ".gif"}
center_crop_arr = center_crop


def load_data(
    *,
    data_dir: str,
    batch_size: int,
    image_size: int,
    class_cond: bool = False,
    deterministic: bool = False,
    random_crop: bool = False,
    random_flip: bool = True,
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Images [N, 3, H, W] in [-1, 1], and with `class_cond` their labels as "y".

    A file's class is its name up to the first underscore; classes are numbered in the order of their names.
    """
    if not data_dir or not Path(data_dir).is_dir():
        raise UserError(f"--data_dir must be a folder of images, not {data_dir!r}.")
    files = _list_images(Path(data_dir))
    classes = None
    if class_cond:
        names = [path.name.split("_")[0] for path in files]
        numbers = {name: number for number, name in enumerate(sorted(set(names)))}
        classes = [numbers[name] for name in names]
    rank, world, _ = launched_ranks()
    dataset = ImageDataset(image_size, files, classes, rank, world, random_crop, random_flip)
    if len(dataset) < batch_size:
        share = "" if world == 1 else f" for each of {world} ranks"
        raise UserError(f"{data_dir} has {len(dataset)} images{share}, fewer than a batch of {batch_size}.")
    loader = DataLoader(dataset, batch_size, shuffle=not deterministic, num_workers=1, drop_last=True)
    return _repeat(loader)


def _repeat(loader: Any) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    while True:
        yield from loader


def _list_images(folder: Path) -> list[Path]:
    """The image files of a folder and of those in it, in the order of their names."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.suffix.lower() in _SUFFIXES:
            found.append(path)
        elif path.is_dir():
            found += _list_images(path)
    return found


class ImageDataset(Dataset[tuple[np.ndarray, dict[str, np.ndarray]]]):
    """Every `num_shards`-th of the files, from `shard` on."""

    def __init__(
        self,
        resolution: int,
        image_paths: Sequence[str | Path],
        classes: Sequence[int] | None = None,
        shard: int = 0,
        num_shards: int = 1,
        random_crop: bool = False,
        random_flip: bool = True,
    ):
        self.resolution, self.random_crop, self.random_flip = resolution, random_crop, random_flip
        self.local_images = image_paths[shard::num_shards]
        self.local_classes = None if classes is None else classes[shard::num_shards]

    def __len__(self) -> int:
        return len(self.local_images)

    def __getitem__(self, idx: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        crop = random_crop_arr if self.random_crop else center_crop_arr
        array = crop(open_image(Path(self.local_images[idx]), "RGB"), self.resolution)
        if self.random_flip and random.random() < 0.5:
            array = array[:, ::-1]
        label = {} if self.local_classes is None else {"y": np.array(self.local_classes[idx], np.int64)}
        return (array.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1), label


def random_crop_arr(
    pil_image: Any, image_size: int, min_crop_frac: float = 0.8, max_crop_frac: float = 1.0
) -> np.ndarray:
    """A random square of the image, between these shares of its shorter side, resized: [size, size, 3] uint8."""
    smallest, largest = (math.ceil(image_size / share) for share in (max_crop_frac, min_crop_frac))
    array = resize_shorter_side(pil_image, random.randrange(smallest, largest + 1))
    top, left = (random.randrange(side - image_size + 1) for side in array.shape[:2])
    return array[top : top + image_size, left : left + image_size]
