"""Writing checkpoints: in another format, or with packed weights."""
