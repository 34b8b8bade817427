"""Adapters under the name that generated adapters import them by."""

from genwright.inspect.run.adapters import BaseAdapter as BaseAdapter
from genwright.inspect.run.adapters import ExecutionResult as ExecutionResult
