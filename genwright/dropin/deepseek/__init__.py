"""DeepSeek-V3's inference modules and commands, under their own names when this folder is on the path."""
