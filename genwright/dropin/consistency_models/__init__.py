"""consistency_models' scripts, over its package `cm`."""
