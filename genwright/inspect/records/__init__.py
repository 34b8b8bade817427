"""What a run leaves: its calls, values, files and index, and reading them back."""
