"""Weight and cache formats: how values are stored and dequantized."""
