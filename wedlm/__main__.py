"""`python -m wedlm`, as `accelerate launch -m wedlm train ...` needs it."""

from wedlm.commands.cli import app

app(prog_name="wedlm")
