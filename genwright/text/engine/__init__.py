"""The engine: requests in, steps on pages, tokens out."""
