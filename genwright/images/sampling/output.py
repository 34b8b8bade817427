"""SampleFolder: parts during a run, then one .npz, PNG files and a grid.

Parts hold whole batches, and run.json holds the settings, so that a stopped run can continue.
"""

import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from genwright.errors import UserError
from genwright.images.sampling.pipeline import ImageBatch, SampleRun

GRID = 100  # images in a grid at most
PART = "[0-9]*_[0-9]*.npz"  # FIRST_COUNT: the number of the first image, and how many there are
SIDE = 128  # a grid enlarges smaller images to at most this many pixels


class SampleFolder:
    def __init__(self, folder: Path):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out must be a folder, but {folder} is a file.")
        self.folder, self.parts, self.manifest = folder, folder / "parts", folder / "run.json"

    @classmethod
    def fresh(cls, parent: Path) -> "SampleFolder":
        """A new folder, numbered after the last one of `parent`: 0001, 0002, ..."""
        folder = cls(parent)
        with folder._writing():
            parent.mkdir(parents=True, exist_ok=True)
            last = max((int(path.name) for path in parent.iterdir() if path.name.isdecimal()), default=0)
            while True:  # another run may take the number first
                last += 1
                with suppress(FileExistsError):
                    folder = cls(parent / f"{last:04d}")
                    folder.folder.mkdir()
                    return folder

    def settings(self) -> dict[str, Any] | None:
        """The settings of the folder's run, or None if there is no run."""
        if not self.manifest.is_file():
            return None
        try:
            return dict(json.loads(self.manifest.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{self.manifest} is damaged; delete it or choose another --out.") from error

    @staticmethod
    def plain(settings: dict[str, Any]) -> dict[str, Any]:
        """Settings as they are read back from run.json."""
        return dict(json.loads(json.dumps(settings)))

    def check(self, settings: dict[str, Any]) -> None:
        """Raise an error if the folder holds a run with other settings."""
        found = self.settings()
        for key in settings:
            if found is not None and found.get(key) != settings[key]:
                raise UserError(
                    f"{self.folder} holds samples of another run, whose {key} is {found.get(key)!r} and not "
                    f"{settings[key]!r}; choose another --out."
                )

    def open(self, settings: dict[str, Any], resume: bool = True) -> None:
        """Begin a run, or continue the folder's run if it has the same settings."""
        self.check(settings)
        with self._writing():
            if not resume:
                shutil.rmtree(self.parts, ignore_errors=True)
            self.parts.mkdir(parents=True, exist_ok=True)
            write_whole(self.manifest, lambda path: path.write_text(json.dumps(settings, indent=1) + "\n"))

    def done(self) -> set[int]:
        """The numbers of the images in parts; a damaged part is deleted and so sampled again."""
        found: set[int] = set()
        for path in self.parts.glob(PART):
            try:
                first, count = int(path.stem.partition("_")[0]), len(_load(path)[0])
            except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
                path.unlink(missing_ok=True)
                continue
            found.update(range(first, first + count))
        return found

    def add(self, first: int, batch: ImageBatch) -> None:
        """Write images first, first + 1, ... as a part."""
        path = self.parts / f"{first:08d}_{len(batch.array)}.npz"
        with self._writing():
            write_whole(path, lambda part: _save(part, batch.array, batch.labels))

    def collect(
        self, run: SampleRun, num_samples: int, size: int, rank: int, world: int, progress: Callable[[int, int], None]
    ) -> int:
        """Sample every world-th of the missing batches; returns the number of images sampled.

        `progress` is called with the number of images so far and of all.
        """
        done, made = self.done(), 0
        progress(0, num_samples)
        for first in range(rank * size, num_samples, world * size):
            count = min(size, num_samples - first)
            if not done.issuperset(range(first, first + count)):
                self.add(first, run(first, count))
                made += count
            progress(min(first + count * world, num_samples), num_samples)
        return made

    def merge(self, num_samples: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The images and labels of all parts."""
        array: np.ndarray | None = None
        labels: np.ndarray | None = None
        for path in sorted(self.parts.glob(PART)):
            images, part_labels = _load(path)
            first = int(path.stem.partition("_")[0])
            if array is None:
                array = np.empty((num_samples, *images.shape[1:]), np.uint8)
                labels = None if part_labels is None else np.empty(num_samples, np.int64)
            array[first : first + len(images)] = images
            if labels is not None:
                labels[first : first + len(images)] = part_labels
        assert array is not None
        return array, labels

    def finish(self, array: np.ndarray, labels: np.ndarray | None, png: bool) -> Path:
        """Write the run's files, delete its parts, and return the path of the .npz."""
        from PIL import Image

        path = self.result(array.shape)
        with self._writing():
            for i, image in enumerate(array if png else []):
                Image.fromarray(image).save(self.folder / f"{i:06d}.png")
            picture = Image.fromarray(grid(array[:GRID]))
            write_whole(self.grid, lambda part: picture.save(part, format="png"))
            write_whole(path, lambda part: _save(part, array, labels))
            shutil.rmtree(self.parts, ignore_errors=True)
        return path

    @property
    def grid(self) -> Path:
        """The path of the grid of the first images."""
        return self.folder / "grid.png"

    def result(self, shape: tuple[int, ...]) -> Path:
        """The path of samples of that shape, named as evaluators expect."""
        return self.folder / f"samples_{'x'.join(map(str, shape))}.npz"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{self.folder} cannot be written: {error.strerror or error}.") from error


def grid(images: np.ndarray) -> np.ndarray:
    """Arrange images [N, H, W, 3] in rows of about sqrt(N) on black; small ones are enlarged by a whole factor."""
    scale = max(1, SIDE // max(images.shape[1:3]))
    images = images.repeat(scale, axis=1).repeat(scale, axis=2)
    n, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    canvas = np.zeros((rows * columns, height, width, channels), np.uint8)
    canvas[:n] = images
    return canvas.reshape(rows, columns, height, width, channels).swapaxes(1, 2).reshape(rows * height, -1, channels)


def _load(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    with np.load(path, allow_pickle=False) as part:
        return part["arr_0"], part.get("arr_1")


def _save(path: Path, array: np.ndarray, labels: np.ndarray | None) -> None:
    with path.open("wb") as file:
        np.savez(file, *(a for a in (array, labels) if a is not None))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` write a temporary file and rename it, so that after a crash all of the file is there or nothing."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
