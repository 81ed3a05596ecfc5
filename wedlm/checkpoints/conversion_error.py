class ConversionError(ValueError):
    """A checkpoint that cannot be converted, or a place that it cannot be written to: one sentence with the remedy."""
