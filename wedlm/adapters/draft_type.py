"""The type of draft adapters for PEFT, and the longest group of MASKs, in a file that imports nothing."""

DRAFT_TYPE = "WEDLM_DRAFT"
MAX_WINDOW = 32  # the longest group of MASKs in training; its first MASK is never a draft
