"""The executor under the name that generated scripts import it by."""

from genwright.inspect.executor import Executor as Executor
