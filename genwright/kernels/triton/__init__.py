"""Triton kernels: what PyTorch leaves time on the table for on a GPU; import a module of it where triton is there."""
