"""Images that stay on disk and are read row by row, because they may not fit into memory."""

import os
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HELD = 2 * 2**30  # bytes of pixels that are held in memory; larger data sets are streamed
LOCAL_HEADER = 30  # bytes, before a zip member's name


class StreamedImages:
    """Images [N, H, W, 3] uint8 on disk; `read` maps rows [n] of the file to images [n, H, W, 3]."""

    def __init__(self, read: Callable[[np.ndarray], np.ndarray], size: tuple[int, ...], rows: np.ndarray):
        self.read, self.rows = read, rows
        self.shape = (len(rows), *size)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """Read these rows."""
        return self.read(self.rows[rows])

    def take(self, rows: np.ndarray) -> "StreamedImages":
        """These rows, without reading them."""
        return StreamedImages(self.read, self.shape[1:], self.rows[rows])


def hold_or_stream(array: np.ndarray) -> np.ndarray | StreamedImages:
    """The images of a mapped array, read into memory unless they are larger than HELD."""
    if array.nbytes <= HELD:
        return np.array(array)
    return StreamedImages(array.__getitem__, array.shape[1:], np.arange(len(array)))


def stream_files(paths: Sequence[Path], read: Callable[[Path], np.ndarray], size: int) -> StreamedImages:
    """Image files, decoded on demand by one thread per processor."""
    pool = ThreadPoolExecutor(os.cpu_count(), "decode")

    def rows_read(rows: np.ndarray) -> np.ndarray:
        return np.stack(list(pool.map(read, [paths[row] for row in rows])))

    return StreamedImages(rows_read, (size, size, 3), np.arange(len(paths)))


def map_member(path: Path, name: str) -> np.ndarray | None:
    """Map an array of an .npz into memory; None if it is compressed or not plain numbers in C order."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            return None
        file.seek(member.header_offset + LOCAL_HEADER - 4)
        lengths = np.frombuffer(file.read(4), "<u2")  # of the name and of the extra field, which follow the header
        file.seek(int(lengths.sum()), os.SEEK_CUR)
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            return None
        shape, in_fortran_order, dtype = readers[version](file)
        if in_fortran_order or dtype.hasobject:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape)
