"""Triton kernels for NVIDIA GPUs; import these modules only where triton is installed."""
