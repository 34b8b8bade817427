"""Kernels for what plain PyTorch computes too slowly, and workarounds for where it would crash."""

PAGE = 64  # tokens in a page of the KV cache
