"""The operations that a block is written in: the protocol, its backends, and the formulas that they share."""
