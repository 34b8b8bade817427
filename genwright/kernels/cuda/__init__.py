"""CUDA C++, compiled when it is first needed by the NVRTC that comes with PyTorch: no toolkit has to be installed."""
