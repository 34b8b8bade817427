"""Python imports this module first in each process that a recorded script starts."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

from genwright.inspect.run.children import enter

# The sitecustomize that this one stands in front of.
_here = str(Path(__file__).parent)
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [p for p in sys.path if p != _here])
if _spec is not None and _spec.loader is not None:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
enter()
