"""Debian's chromium, for tests and for docs/race.gif: `apt install chromium chromium-driver`."""

from contextlib import contextmanager
from pathlib import Path
from shutil import which

from selenium import webdriver


@contextmanager
def browser_on(page: Path, width: int = 900, height: int = 620, **preferences: str):
    """A headless browser that shows a file.

    Args:
        page (`Path`): The file.
        width (`int`, *optional*, defaults to 900): The width of the page in pixels.
        height (`int`, *optional*, defaults to 620): Its height.
        preferences (`str`): Wishes of the user, such as `color_scheme="dark"` and `reduced_motion="reduce"`.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(which("chromedriver")))
    try:
        # (A window has a least width, a page has none.)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": f"prefers-{name.replace('_', '-')}", "value": preferences[name]} for name in preferences]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get(page.resolve().as_uri())
        yield driver
    finally:
        driver.quit()
