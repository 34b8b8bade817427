"""On the PYTHONPATH of the processes that a recorded script starts."""
