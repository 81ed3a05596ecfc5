from pathlib import Path

DEMO_FOLDER = Path(__file__).parent.parent / "wedlm-demo"  # the checkpoint, as it is on the Hub
