"""Runs without their model: recorded or made-up results, and slices of the script."""
