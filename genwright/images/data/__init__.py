"""Data sets of images, in memory or on disk, and the batches drawn from them."""
