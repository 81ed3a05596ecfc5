"""Evaluation and tuning of checkpoints, and the provenance of measured numbers."""
