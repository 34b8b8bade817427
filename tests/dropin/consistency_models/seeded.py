"""Run a script, unmodified, after seeding what it draws from, which the original's scripts do not do."""

import random
import runpy
import sys

import numpy as np
import torch

if __name__ == "__main__":
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
