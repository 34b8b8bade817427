"""The operations that models are written in: the protocol, its backends, and the formulas that they share."""
