"""What this processor can do, and what it must be kept from."""
