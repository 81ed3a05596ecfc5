"""The longest group of MASKs in draft training, in a file that imports nothing."""

MAX_WINDOW = 32  # the first MASK of a group is never a draft
