"""docs/race.gif: the page of `wedlm trace`, from its start to its result.

python tests/make_race.py
"""

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
from browser import browser_on
from PIL import Image
from typer.testing import CliRunner

from wedlm.commands import cli

REPOSITORY = Path(__file__).parents[1]
WIDTH, HEIGHT = 800, 640
FRAMES_PER_SECOND = 10
LAST_SECONDS = 3  # for which the result is held
NUM_COLOURS = 128

# Most of the answer stands in the prompt, which suits drafts, and where a word is corrected a draft is rejected.
PROMPT = (
    "Correct the spelling mistakes in this text and write the whole text again.\n\nThe libary opens at nine on Monday "
    "and closes at five on Friday. Books can be borowed for three weeks. Please bring them back in time. Evry "
    "Saturday there is a reeding for children."
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("prompt", nargs="?", default=PROMPT)
parser.add_argument("--model", default=str(REPOSITORY / "build" / "smollm2-135m"))
parser.add_argument("--max-new-tokens", default="100")
parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "race.gif")
given = parser.parse_args()


def picture(driver) -> Image.Image:
    shown = driver.find_element("tag name", "main").screenshot_as_png
    return Image.open(io.BytesIO(shown)).convert("RGB")


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "trace.html"
    options = ["--decoding", "verified", "--max-new-tokens", given.max_new_tokens]
    result = CliRunner().invoke(cli.app, ["trace", given.model, given.prompt, *options, "--html", str(file)])
    assert result.exit_code == 0, result.stderr
    print(result.stderr, end="")
    # (The page waits at its end for one who wants no motion, so only show() moves it.)
    with browser_on(file, WIDTH, HEIGHT, reduced_motion="reduce") as driver:
        end = float(driver.find_element("id", "place").get_attribute("max"))
        speed = float(driver.find_element("id", "speed").get_property("value"))  # measured seconds per second
        pictures = []
        for number in range(int(end / speed * FRAMES_PER_SECOND) + 1):
            driver.execute_script("show(arguments[0])", number / FRAMES_PER_SECOND * speed)
            pictures.append(picture(driver))
        driver.execute_script("show(arguments[0])", end)
        pictures.append(picture(driver))

# One palette for all frames, so that what stays the same takes no space; a few of them together show every colour.
some = np.concatenate([np.asarray(one) for one in [*pictures[:: len(pictures) // 8 + 1], pictures[-1]]])
palette = Image.fromarray(some).quantize(NUM_COLOURS)
frames = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
durations = [1000 // FRAMES_PER_SECOND] * (len(frames) - 1) + [1000 * LAST_SECONDS]
frames[0].save(given.out, save_all=True, append_images=frames[1:], duration=durations, loop=0)
print(f"Written to {given.out}: {len(frames)} frames, {given.out.stat().st_size / 1e6:.2f} MB.")
