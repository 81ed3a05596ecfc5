"""The type of draft adapters in adapter_config.json, in a file that imports nothing."""

DRAFT_TYPE = "WEDLM_DRAFT"
