"""Where the demo checkpoint lies: the commands take it when nobody names a model."""

from importlib.util import find_spec
from pathlib import Path

DEMO_FOLDER = Path(find_spec("wedlm.hub_card").origin).parent / "wedlm-demo"
