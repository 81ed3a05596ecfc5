class TrainingError(ValueError):
    """Data, an argument or a tokenizer that training cannot work with: one sentence with the remedy."""
