"""Placement: which part of a model lives in GPU memory, CPU memory and on disk, and what that costs."""
