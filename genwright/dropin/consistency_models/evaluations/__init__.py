"""consistency_models' evaluation: FID, sFID, Inception Score, precision and recall."""
