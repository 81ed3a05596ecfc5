"""docs/trace.png: the page of `wedlm trace`, in the middle of a decoding by the demo checkpoint.

python tests/make_screenshot.py
"""

import tempfile
from pathlib import Path

from browser import browser_on
from typer.testing import CliRunner

from wedlm.commands import cli

QUESTION = "Tom has 24 marbles. He buys 30 more. He gives 12 to Anna. How many marbles does Tom have now?"
NUM_FORWARDS = 3

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "trace.html"
    result = CliRunner().invoke(cli.app, ["trace", QUESTION, "--decoding", "verified", "--html", str(file)])
    assert result.exit_code == 0, result.stderr
    with browser_on(file) as driver:
        for _ in range(NUM_FORWARDS):
            driver.find_element("id", "step").click()
        driver.save_screenshot(str(Path(__file__).parents[1] / "docs" / "trace.png"))
