"""FlexLLMGen's package: its module, class and flag names, translated to settings of the engine."""
