"""How long torch's OpenMP threads spin while they wait for each other, and whose threads they are."""

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache

_PAUSE_SOFT = 1  # of OpenMP 5.0: settings are kept


def limit_spinning() -> None:
    """Let waiting OpenMP threads sleep after a few microseconds, unless the user has set a policy.

    By default they spin 15 times as long, many times per decoding step. On two cores shared with other busy processes
    that made a model about ten times slower; on idle cores the difference was within the noise.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def release_threads() -> None:
    """End the OpenMP threads of the calling thread; its next parallel operation starts them again.

    Every thread that computes has OpenMP threads of its own. If there are more of them than processors, even idle ones,
    libgomp lets waiting threads sleep at once, which made decoding on two idle cores a third slower.
    """
    if (pause := _omp_pause()) is not None:
        pause(_PAUSE_SOFT)


@cache
def _omp_pause() -> Callable[[int], int] | None:
    """The function of the OpenMP runtime that torch has loaded; None if that is older than OpenMP 5.0."""
    return getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
