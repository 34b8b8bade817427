"""Static analysis of a script: nothing of it runs."""
