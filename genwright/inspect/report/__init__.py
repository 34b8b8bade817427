"""What analysis and runs found, told to people."""
