"""How torch's threads wait for each other."""

import os
import sys


def keep_waiting_short() -> None:
    """Let OpenMP's threads sleep after a few microseconds of waiting, unless the user says otherwise.

    By default they spin for about a millisecond, many times in a decoding step. On two cores with one other busy
    process that made a model ten times slower; sleeping early costs nothing that could be measured on an idle machine.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
