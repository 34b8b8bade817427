"""What plain PyTorch does not do fast enough, or not safely enough."""

PAGE = 64  # tokens of a sequence whose cache lies together
