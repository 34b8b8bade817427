"""consistency_models' package: its module, class and function names, over Genwright's images."""
