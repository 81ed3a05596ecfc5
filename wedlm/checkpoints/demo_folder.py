"""The folder of the demo checkpoint, which the commands take when no model is named."""

from importlib.util import find_spec
from pathlib import Path

DEMO_FOLDER = Path(find_spec("wedlm.hub_card").origin).parent / "wedlm-demo"
