"""Text models: from a checkpoint to an answer."""
