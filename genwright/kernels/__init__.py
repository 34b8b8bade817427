"""What plain PyTorch does not do fast enough, or not safely enough."""
