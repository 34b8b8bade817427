"""Checkpoints: one file per format, found by content; all speak of tensors by their Hugging Face names."""
