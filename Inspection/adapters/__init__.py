"""`from Inspection.adapters import BaseAdapter, ExecutionResult`."""

from genwright.inspect.run.adapters import BaseAdapter as BaseAdapter
from genwright.inspect.run.adapters import ExecutionResult as ExecutionResult
