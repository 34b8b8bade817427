"""How good samples are: FID and its relatives, copies, and a classifier's judgement."""
