"""The function around an interface's own one; inside what torch compiles it is not there.

It lies apart from `run/`, whose functions torch's compiler leaves out of its graphs.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

MARK = "_genwright_recorded"


def wrap(original: Any, record: Callable[..., Any]) -> Any:
    """`record` in the place of a function; a call that is being compiled is the function's own."""
    torch = sys.modules.get("torch")
    is_compiling = _never
    if torch is not None:  # while torch itself is imported, it has no compiler yet
        is_compiling = torch.compiler.is_compiling if hasattr(torch, "compiler") else _is_compiling

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        return record(*args, **kwargs)

    setattr(recorded, MARK, True)
    return recorded


def _is_compiling() -> bool:
    compiling: bool = sys.modules["torch"].compiler.is_compiling()
    return compiling


def _never() -> bool:
    return False


CODE = wrap(_never, _never).__code__  # of every wrapped function
