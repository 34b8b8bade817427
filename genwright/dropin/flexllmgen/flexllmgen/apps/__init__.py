"""FlexLLMGen's applications."""
