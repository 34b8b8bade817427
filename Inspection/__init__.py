"""The import names that generated scripts use."""
