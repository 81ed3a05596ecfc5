"""The pictures of the documentation show the steps that the demo checkpoint takes."""

import re
import runpy

import pytest
from helpers import REPOSITORY

IMAGES = REPOSITORY / "docs" / "images"
ENTROPY = re.compile(r">\d\.\d\d<")  # Its last digit may differ from machine to machine.


@pytest.mark.full
def test_the_pictures_are_those_that_the_script_draws(tmp_path):
    runpy.run_path(str(IMAGES / "draw_steps.py"))["draw"](tmp_path)
    drawn = {picture.name: picture.read_text(encoding="utf-8") for picture in tmp_path.iterdir()}
    kept = {name: (IMAGES / name).read_text(encoding="utf-8") for name in drawn}
    for name, picture in drawn.items():
        assert ENTROPY.sub("><", picture) == ENTROPY.sub("><", kept[name]), f"run docs/images/draw_steps.py for {name}"


def test_a_page_shows_every_picture_and_they_are_no_wider_than_the_site():
    pages = "".join(page.read_text(encoding="utf-8") for page in (REPOSITORY / "docs").glob("*.md"))
    assert sorted(re.findall(r"\(images/([\w-]+\.svg)\)", pages)) == sorted(svg.name for svg in IMAGES.glob("*.svg"))
    for svg in IMAGES.glob("*.svg"):
        assert int(re.search(r' width="(\d+)"', svg.read_text(encoding="utf-8"))[1]) <= 900
