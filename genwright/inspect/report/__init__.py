"""What the analysis found, told to people."""
