"""The folders of the checkpoints that the repository makes or holds."""

from importlib.util import find_spec
from pathlib import Path

# The commands take it when no model is named.
DEMO_FOLDER = Path(find_spec("wedlm.hub_card").origin).parent / "wedlm-demo"
# What `make real-model` makes, in a clone of the repository. With its dot the path is not a name on the Hub.
REAL_MODEL = "./build/smollm2-135m-wedlm"
