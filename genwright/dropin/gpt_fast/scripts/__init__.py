"""gpt-fast's scripts."""
