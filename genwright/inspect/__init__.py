"""Turn a model repository's own script into a recorded, repeatable, unattended run."""
