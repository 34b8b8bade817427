"""The processes of a run: planned, started, intercepted, and what the executor calls by name."""
