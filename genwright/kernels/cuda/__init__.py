"""CUDA C++ kernels, compiled at first use by the NVRTC library that comes with PyTorch; no CUDA toolkit is needed."""
