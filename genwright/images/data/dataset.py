"""ImageDataset: labelled images of an .npz, an .npy or a folder, in memory or streamed; and random batches of it."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.images.data import streaming
from genwright.images.data.streaming import StreamedImages

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

UNREADABLE = (OSError, ValueError, TypeError, BadZipFile, EOFError, KeyError)  # raised by np.load
SUFFIXES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"}


@dataclass(frozen=True)
class ImageDataset:
    """Images [N, H, W, 3] uint8, labels [N] or None, the names of the labels, and names [N] of the images.

    Variants of one image share a name, so that `split` keeps them together.
    """

    images: np.ndarray | StreamedImages
    labels: np.ndarray | None
    label_names: tuple[str, ...]
    names: np.ndarray

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: np.ndarray) -> "ImageDataset":
        labels = None if self.labels is None else self.labels[rows]
        streamed = isinstance(self.images, StreamedImages)
        images = self.images.take(rows) if streamed else self.images[rows]
        return ImageDataset(images, labels, self.label_names, self.names[rows])

    def in_memory(self, most: int) -> "ImageDataset":
        """This data set, or at most `most` images of it, drawn with a fixed seed, if it is streamed."""
        if not isinstance(self.images, StreamedImages):
            return self
        some = self[np.sort(np.random.default_rng(0).permutation(len(self))[:most])]
        return replace(some, images=some.images[:])

    @property
    def num_classes(self) -> int | None:
        return None if self.labels is None else len(self.label_names)

    def split(self, share: float) -> tuple["ImageDataset", "ImageDataset"]:
        """Training and held-out images; `share` of the names of every class is held out, drawn with a fixed seed."""
        held: list[str] = []
        rng = np.random.default_rng(0)
        labels = np.zeros(len(self), np.int64) if self.labels is None else self.labels
        for label in np.unique(labels):
            names = np.unique(self.names[labels == label])
            held.extend(rng.permutation(names)[: round(share * len(names))])
        out = np.isin(self.names, held)
        if out.all() or not out.any():
            raise UserError(
                f"Holding out {share:g} of {len(np.unique(self.names))} images leaves one side empty; pass another "
                "--hold-out (0 holds out none) or more images."
            )
        return self[~out], self[out]


class Batches:
    """Random batches on a device: a class of n images is drawn with weight n ** (1 - balance).

    Images of the classes in `mirrored` are mirrored at random. Labels are classes, or `clusters` [N] if given.
    """

    def __init__(
        self,
        data: ImageDataset,
        device: torch.device,
        balance: float = 0.0,
        mirrored: tuple[str, ...] = (),
        clusters: np.ndarray | None = None,
    ):
        self.device = device
        self.images = data.images if isinstance(data.images, StreamedImages) else _channels_first(data.images, device)
        self._reader = ThreadPoolExecutor(1, "read")
        self._ahead: tuple[np.ndarray, Future[np.ndarray]] | None = None
        labels = data.labels if clusters is None else clusters
        self.labels = None if labels is None else torch.from_numpy(labels).to(device)
        weights = np.ones(len(data))
        if data.labels is not None:
            weights = np.bincount(data.labels)[data.labels] ** -float(balance)
        self.weights = torch.from_numpy(weights / weights.sum()).float().to(device)
        flips = np.isin([data.label_names[i] for i in data.labels], mirrored) if data.labels is not None else None
        if mirrored == ("all",):
            flips = np.ones(len(data), bool)
        elif unknown := set(mirrored) - set(data.label_names):
            raise UserError(f"There is no class {unknown.pop()!r} to mirror; choose from {_listed(data.label_names)}.")
        self.flips = torch.from_numpy(flips).to(device) if mirrored and flips is not None else None

    def draw(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Images [count, 3, H, W] in [-1, 1] and their labels, drawn with torch's global generator."""
        rows = self._draw_rows(count)
        x = self._pixels(rows).float() / 127.5 - 1
        if self.flips is not None:
            mirror = self.flips[rows] & (torch.rand(count, device=x.device) < 0.5)
            x = torch.where(mirror[:, None, None, None], x.flip(3), x)
        return x, None if self.labels is None else self.labels[rows]

    def read_ahead(self, seed: int, count: int) -> None:
        """Start to read the streamed images that `draw` will need after torch.manual_seed(seed)."""
        if isinstance(self.images, Tensor):
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed)
            rows = self._draw_rows(count).cpu().numpy()
        self._ahead = rows, self._reader.submit(self.images.__getitem__, rows)

    def _draw_rows(self, count: int) -> Tensor:
        return torch.multinomial(self.weights, count, replacement=True)

    def _pixels(self, rows: Tensor) -> Tensor:
        if isinstance(self.images, Tensor):
            return self.images[rows]
        wanted = rows.cpu().numpy()
        if self._ahead is not None and np.array_equal(self._ahead[0], wanted):
            return _channels_first(self._ahead[1].result(), self.device)
        return _channels_first(self.images[wanted], self.device)


def _channels_first(images: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(images).to(device).permute(0, 3, 1, 2).contiguous()


def read_data(path: Path, image_size: int | None = None) -> ImageDataset:
    """Read an .npz, an .npy or a folder; a folder's images are cropped to `image_size`, a file's must have it."""
    if path.is_dir():
        if image_size is None:
            raise UserError(f"{path} is a folder of images; give the size to crop them to with --image-size.")
        return _read_folder(path, image_size)
    if not path.is_file():
        raise UserError(f"There is no file or folder {path}.")
    data = read_file(path)
    height, width = data.images.shape[1:3]
    if height != width or image_size not in (None, height):
        raise UserError(f"{path} holds images of {width} x {height}, but they must be square and of --image-size.")
    return data


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    # Pixels are mapped where possible, because they may not fit into memory.
    file = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(file, np.ndarray):
        return {"images": file}
    with file:
        mapped = {name: streaming.map_member(path, name) for name in {"images", "arr_0"} & set(file.files)}
        arrays = {name: array for name, array in mapped.items() if array is not None}
        return arrays | {name: file[name] for name in file.files if name not in arrays}


def are_images(array: np.ndarray) -> bool:
    """Whether an array is uint8 [N, H, W, 3] and not empty."""
    return array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] == 3 and array.size > 0


def block_means(images: np.ndarray, size: int) -> np.ndarray:
    """Shrink images by averaging blocks of size x size pixels; pixels left over at the edges are cut off."""
    height, width = (side // size for side in images.shape[1:3])
    blocks = images[:, : height * size, : width * size].reshape(len(images), height, size, width, size, 3)
    return blocks.mean(axis=(2, 4))


def read_file(path: Path) -> ImageDataset:
    """Read an .npz or .npy."""
    try:
        arrays = _read_arrays(path)
    except UNREADABLE as error:
        raise UserError(f"{path} is not a readable .npz or .npy file of numbers.") from error
    images = arrays.get("images", arrays.get("arr_0"))
    if images is None or not are_images(images):
        raise UserError(f"{path} must hold uint8 images [N, H, W, 3], as `images` or `arr_0`.")
    labels = arrays.get("labels", arrays.get("arr_1"))
    if labels is not None:
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu" or labels.min() < 0:
            raise UserError(f"Labels in {path} must be {len(images)} whole numbers, 0 or more.")
        labels = labels.astype(np.int64)
    count = 0 if labels is None else int(labels.max()) + 1
    label_names = [str(name) for name in arrays.get("label_names", np.arange(count))]
    names = arrays.get("names", np.arange(len(images))).astype(str)
    if len(label_names) < count or names.shape != (len(images),):
        raise UserError(f"{path} must have a label_name for every label and a name for every image.")
    held = streaming.hold_or_stream(images)
    return ImageDataset(held, labels, tuple(label_names) if labels is not None else (), names)


def _read_folder(folder: Path, image_size: int) -> ImageDataset:
    # Classes as in the original: the subfolder, else the file name up to its first underscore.
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise UserError(f"{folder} holds no images ({_listed(sorted(SUFFIXES))}).")
    parts = [path.relative_to(folder).parts for path in files]
    if all(len(part) > 1 for part in parts):
        classes = [part[0] for part in parts]
    else:
        classes = [path.stem.split("_")[0] if "_" in path.stem else "" for path in files]
    label_names = sorted(set(classes))
    images: np.ndarray | StreamedImages
    images = streaming.stream_files(files, partial(_read_image, size=image_size), image_size)
    if len(files) * image_size**2 * 3 <= streaming.HELD:
        images = images[:]
    names = np.array(["/".join(part) for part in parts])
    if len(label_names) == 1 or "" in label_names:
        return ImageDataset(images, None, (), names)
    return ImageDataset(images, np.array([label_names.index(name) for name in classes]), tuple(label_names), names)


def _read_image(path: Path, size: int) -> np.ndarray:
    return center_crop(open_image(path, "RGB"), size)


def open_image(path: Path, mode: str) -> "PILImage":
    """Read an image file, in Pillow's mode RGB or L."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            if file.mode.startswith("I;16"):  # grey of 16 bits, which `convert` would clip at 255
                return Image.fromarray((np.asarray(file) >> 8).astype(np.uint8)).convert(mode)
            return file.convert(mode)
    except FileNotFoundError as error:
        raise UserError(f"There is no image file {path}.") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not an image file that Pillow can read.") from error


def center_crop(image: "PILImage", size: int) -> np.ndarray:
    """The square in the middle, resized: [size, size, 3] uint8."""
    array = resize_shorter_side(image, size)
    top, left = ((side - size) // 2 for side in array.shape[:2])
    return array[top : top + size, left : left + size]


def resize_shorter_side(image: "PILImage", size: int) -> np.ndarray:
    """As in the original: halve with a box filter while at least twice too large, then resize bicubically."""
    from PIL import Image

    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = size / min(image.size)
    return np.asarray(image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC))


def _listed(words: "tuple[str, ...] | list[str]") -> str:
    return ", ".join(words) or "none"
