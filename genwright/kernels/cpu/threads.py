"""How long torch's OpenMP threads spin while they wait for each other."""

import os
import sys


def limit_spinning() -> None:
    """Let waiting OpenMP threads sleep after a few microseconds, unless the user has set a policy.

    By default they spin 15 times as long, many times per decoding step. On two cores shared with other busy processes
    that made a model about ten times slower; on idle cores the difference was within the noise.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
