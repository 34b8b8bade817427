"""A run kept apart from the machine: what it sees, what it may use, and what it wrote."""
