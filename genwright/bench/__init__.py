"""Measure how fast a text model runs, compared with its device's limits, and how well it predicts a text."""
