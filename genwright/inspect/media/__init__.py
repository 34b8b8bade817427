"""Sample media files for placeholder paths."""
