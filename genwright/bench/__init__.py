"""Measuring: how fast a text model runs beside its device's limits, and how well it predicts a text."""
