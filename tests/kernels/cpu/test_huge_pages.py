"""Tensors of an arena are apart, aligned and in as few chunks as possible."""

import torch

from genwright.kernels.cpu.huge_pages import ALIGNMENT, CHUNK, HUGE, Arena


def test_tensors_do_not_overlap() -> None:
    arena = Arena()
    shapes = [(3, 5), (0, 7), (1000, 333), (CHUNK // 4 + 1,), (17,), (HUGE,)]
    tensors = [arena.copy(torch.full(shape, float(i))) for i, shape in enumerate(shapes)]
    for i, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        assert tensor.shape == shape and tensor.is_contiguous() and tensor.eq(i).all()
        assert tensor.data_ptr() % ALIGNMENT == 0
    assert tensors[0].untyped_storage().data_ptr() == tensors[2].untyped_storage().data_ptr()
    assert arena.empty((2, 3), torch.int8).dtype == torch.int8
