"""The model_type in the config.json of a WeDLM checkpoint, in a file without torch."""

MODEL_TYPE = "wedlm"
