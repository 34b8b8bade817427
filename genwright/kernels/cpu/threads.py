"""How torch's threads wait for each other."""

import os
import sys


def limit_spinning() -> None:
    """Let OpenMP's threads sleep after a few microseconds of waiting, unless the user says otherwise.

    By default they spin 15 times as long, many times in a decoding step. On two cores beside other busy processes that
    made a model some ten times slower; on idle cores the difference did not stand out from the noise.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
