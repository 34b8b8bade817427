"""Rewrite a script: the scenario's changes, samples, routed calls, and the proof."""
