"""The demo checkpoint: its tasks and checkers, tokenizer, recipe, report and card."""
