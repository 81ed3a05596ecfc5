"""`python -m wedlm`, for `accelerate launch -m wedlm train ...`."""

from wedlm.commands.cli import app

app(prog_name="wedlm")
