"""Write checkpoints: converted to another format or quantized."""
