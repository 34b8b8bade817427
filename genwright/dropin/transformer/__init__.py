"""gpt-fast's Transformer as PyTorch modules: the original's names and parameters over the engine's block functions."""
