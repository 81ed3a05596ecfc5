"""Export of checkpoints as Hub repositories with a model card."""
