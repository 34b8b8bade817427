"""How much work something is, on any machine: the number of calls."""

import cProfile
from collections.abc import Callable
from typing import Any


def calls(function: Callable[..., Any], *args: Any) -> int:
    profile = cProfile.Profile()
    profile.runcall(function, *args)
    return sum(entry.callcount for entry in profile.getstats())
