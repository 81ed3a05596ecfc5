"""Debian's chromium, for tests and for the screenshot: `apt install chromium chromium-driver`."""

from contextlib import contextmanager
from pathlib import Path
from shutil import which

from selenium import webdriver


@contextmanager
def browser_on(page: Path, width: int = 900, height: int = 620):
    """A headless browser that shows a file."""
    options = webdriver.ChromeOptions()
    options.binary_location = which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={width},{height}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(which("chromedriver")))
    try:
        driver.get(page.resolve().as_uri())
        yield driver
    finally:
        driver.quit()
