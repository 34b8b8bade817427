"""What a rewritten script runs with: records of its calls."""
