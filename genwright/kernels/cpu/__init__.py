"""C++ kernels for the CPU, and checks of what the processor supports."""
