"""DiskCache: pages of a key-value cache in files, one for each of the spec's tensors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.placement.disk import DiskFile
from genwright.text.cache.layout import CacheSpec, PagedCache


class DiskCache(PagedCache):
    """Each file is [layers of a group, pages, PAGE, *shape], and zero at first."""

    def __init__(self, spec: CacheSpec, pages: int, new_file: Callable[[str, int], DiskFile]):
        self.spec, self.pages = spec, pages
        self._page_bytes = {name: PAGE * size for name, size in spec.row_sizes.items()}
        self._size = max(map(len, spec.stored))
        self._files = {
            name: new_file(f"cache-{name}", self._size * pages * size) for name, size in self._page_bytes.items()
        }
        self._index = {layer: index for group in spec.stored for index, layer in enumerate(group)}

    def read(self, layer: int, page: int, rows: Mapping[str, Tensor]) -> list[Future[None]]:
        """Start to read consecutive pages of a layer into CPU tensors [pages, PAGE, *shape]."""
        index = self._index[layer]
        return [self._files[name].read_into(part, self._offset(name, index, page)) for name, part in rows.items()]

    def write(self, layer: int, page: int, rows: Mapping[str, Tensor]) -> list[Future[None]]:
        """Start to write consecutive pages of a layer from CPU tensors, which must not change until that is done."""
        index = self._index[layer]
        return [self._files[name].write_from(part, self._offset(name, index, page)) for name, part in rows.items()]

    def copy(self, source: int, target: int, count: int) -> None:
        for name, (shape, dtype) in self.spec.tensors().items():
            file, pages = self._files[name], torch.empty(2, self._size, PAGE, *shape, dtype=dtype)
            places = [
                (part[index], self._offset(name, index, page))
                for part, page in zip(pages, (source, target), strict=True)
                for index in range(self._size)
            ]
            wait(file.read_into(*place) for place in places)
            pages[1, :, :count] = pages[0, :, :count]
            wait(file.write_from(*place) for place in places[self._size :])

    def clear(self, pages: Sequence[int]) -> None:
        for name, file in self._files.items():
            zeros = torch.zeros(self._page_bytes[name], dtype=torch.uint8)
            wait(file.write_from(zeros, self._offset(name, i, page)) for i in range(self._size) for page in pages)

    def _offset(self, name: str, index: int, page: int) -> int:
        return (index * self.pages + page) * self._page_bytes[name]


def wait(transfers: Iterable[Future[None]]) -> None:
    """Wait until all transfers are done; the first error is raised then."""
    for transfer in list(transfers):
        transfer.result()
