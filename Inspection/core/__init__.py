"""`from Inspection.core.executor import Executor`."""
