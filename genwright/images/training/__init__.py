"""Training and distilling a UNet."""
