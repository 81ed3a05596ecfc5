"""The page that `wedlm trace --html` writes, in a browser."""

import re
import time

import pytest
from command_line import ids_of, run, user

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.trace import Slot, Step, page

pytestmark = pytest.mark.browser
QUESTION = "Count by 4 from 12 to 60."


@pytest.fixture(scope="module", params=["streaming", "verified"])
def traced(request, tmp_path_factory):
    """The page of a decoding, its text and the number of its forwards."""
    file = tmp_path_factory.mktemp("page") / "trace.html"
    result = run("trace", QUESTION, "--decoding", request.param, "--html", file)
    assert result.exit_code == 0, result.stderr
    model, tokenizer = load_checkpoint(DEMO_FOLDER)
    inputs = ids_of(tokenizer, user(QUESTION))
    output = model.generate(**inputs, max_new_tokens=256, decoding=request.param, return_dict_in_generate=True)
    new = output.sequences[0, inputs["input_ids"].shape[1] :]
    return file, tokenizer.decode(new, skip_special_tokens=True), output.forwards.item()


@pytest.fixture
def driver(traced):
    from browser import browser_on

    with browser_on(traced[0]) as driver:
        yield driver
        assert driver.get_log("browser") == [], "the console stays empty"


def shown(driver, name="text"):
    return driver.find_element("id", name).get_property("textContent")


def place(driver):
    return int(re.match(r"Forward (\d+) of", shown(driver, "counts"))[1])


def click(driver, name):
    driver.find_element("id", name).click()


def choose_speed(driver, speed):
    driver.find_element("css selector", f"#speed option[value='{speed}']").click()


def wait_until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_it_plays_to_the_end(traced, driver):
    _, text, forwards = traced
    assert (shown(driver), place(driver), shown(driver, "prompt")) == ("", 0, QUESTION)
    choose_speed(driver, 16)
    click(driver, "play")
    assert shown(driver, "play") == "Pause"
    wait_until(lambda: place(driver) == forwards)
    assert (shown(driver), shown(driver, "window"), shown(driver, "play")) == (text, "", "Play")
    assert not driver.find_element("id", "step").is_enabled()
    click(driver, "play")  # from the start again
    wait_until(lambda: place(driver) < forwards)


def test_steps_forth_and_back(traced, driver):
    _, text, forwards = traced
    texts = [shown(driver)]
    for number in range(1, forwards + 1):
        click(driver, "step")
        assert place(driver) == number
        texts.append(shown(driver))
    assert texts[-1] == text
    assert all(after.startswith(before) for before, after in zip(texts, texts[1:], strict=False))
    for number in reversed(range(forwards)):
        click(driver, "back")
        assert (place(driver), shown(driver)) == (number, texts[number])
    driver.find_element("css selector", "body").send_keys("\ue014")  # the right arrow
    assert place(driver) == 1
    driver.find_element("id", "back").send_keys("\ue014")  # also on a button
    assert place(driver) == 2


def test_pause_stays_where_it_is_and_speed_counts(traced, driver):
    choose_speed(driver, 1)
    click(driver, "play")
    time.sleep(0.5)
    assert place(driver) == 0, "a forward a second"
    wait_until(lambda: place(driver) == 1)
    click(driver, "play")
    assert shown(driver, "play") == "Play"
    time.sleep(1.5)
    assert place(driver) == 1
    driver.execute_script("const to = arguments[0]; to.value = 2; to.oninput()", driver.find_element("id", "place"))
    assert place(driver) == 2


def test_generated_markup_stays_text(tmp_path):
    from browser import browser_on

    class Got:
        tokens, forwards = 2, 2

    text = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
    file = tmp_path / "trace.html"
    steps = [Step([Slot(text, 1)], [Slot(text, None)], 0, None), Step([Slot("", 2)], [], 0, text)]
    file.write_text(page(text, "verified", steps, Got), encoding="utf-8")
    with browser_on(file) as driver:
        click(driver, "step")
        assert [shown(driver, name) for name in ("prompt", "text", "window")] == [text] * 3
        click(driver, "step")
        assert shown(driver, "counts").endswith(f"refuted: {text}")
        assert driver.title == "WeDLM decoding"
        assert driver.find_elements("tag name", "img") == []
        assert driver.get_log("browser") == []
