"""The originals' own commands and module names, as thin layers over the engine."""
