"""The modules of PyTorch's benchmarks/gpt_fast, under their own names when this folder is on the path."""
