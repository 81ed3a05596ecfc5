"""The page that `wedlm trace --html` writes, in a browser."""

import re
import time

import pytest
import torch
from command_line import ids_of, run, user

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.commands.trace import Run, Slot, Step, page
from wedlm.evaluation.provenance import device_name

pytestmark = pytest.mark.browser
QUESTION = "Count by 4 from 12 to 60."
RIGHT_ARROW = "\ue014"


@pytest.fixture(scope="module", params=["streaming", "verified"])
def traced(request, tmp_path_factory):
    """The page of a decoding, its name, and text and forwards of both answers."""
    file = tmp_path_factory.mktemp("page") / "trace.html"
    result = run("trace", QUESTION, "--decoding", request.param, "--html", file)
    assert result.exit_code == 0, result.stderr
    model, tokenizer = load_checkpoint(DEMO_FOLDER)
    inputs = ids_of(tokenizer, user(QUESTION))
    answers = []
    for decoding in ("autoregressive", request.param):
        output = model.generate(**inputs, max_new_tokens=256, decoding=decoding, return_dict_in_generate=True)
        new = output.sequences[0, inputs["input_ids"].shape[1] :]
        answers.append((tokenizer.decode(new, skip_special_tokens=True), len(new), output.forwards.item()))
    return file, request.param, answers


@pytest.fixture
def opened():
    """Opens a page with what its user prefers; the console must stay empty."""
    from contextlib import ExitStack

    from browser import browser_on

    with ExitStack() as stack:
        drivers = []

        def open_page(file, **preferences):
            drivers.append(stack.enter_context(browser_on(file, **preferences)))
            return drivers[-1]

        yield open_page
        for driver in drivers:
            assert driver.get_log("browser") == []


@pytest.fixture
def still(opened, traced):
    """The page at its start, where nothing moves by itself."""
    driver = opened(traced[0], reduced_motion="reduce")
    show(driver, 0)
    return driver


def shown(driver, name):
    """The text of the element with this id, or of those that match this selector."""
    found = driver.find_elements("css selector", name if name.startswith(".") else f"#{name}")
    texts = [element.get_property("textContent") for element in found]
    return texts if name.startswith(".") else texts[0]


def show(driver, seconds):
    driver.execute_script("show(arguments[0])", seconds)


def end_of(driver):
    return float(driver.find_element("id", "place").get_attribute("max"))


def clock(driver):
    return float(driver.find_element("id", "place").get_property("value"))


def click(driver, name):
    driver.find_element("id", name).click()


def test_it_plays_by_itself_to_the_result(traced, opened):
    file, decoding, ((text, tokens, forwards), (traced_text, traced_tokens, traced_forwards)) = traced
    driver = opened(file)
    assert shown(driver, "play") == "Pause"
    about = shown(driver, "about")
    assert about.startswith(f"wedlm-demo answers twice, fused each time: token by token, and {decoding}, which ")
    assert f"times measured on {device_name('cpu')}, {torch.get_num_threads()} thread" in about
    assert shown(driver, "prompt") == QUESTION
    seen = []
    started = time.monotonic()
    while shown(driver, "play") == "Pause":
        assert time.monotonic() - started < 30
        seen.append((clock(driver), *map(len, shown(driver, ".text"))))
    assert seen == sorted(seen) and len(set(seen)) > 10, "the clock and both texts only grow"
    assert 6 < time.monotonic() - started < 16, "it takes about 8 seconds"

    assert (shown(driver, "play"), shown(driver, ".text")) == ("Replay", [text, traced_text])
    assert [shown(driver, name) for name in (".verdict", ".window", ".judged")] == 3 * [["", ""]]
    end, times = end_of(driver), [float(words.removesuffix(" s")) for words in shown(driver, ".time")]
    assert clock(driver) == end and max(times) == pytest.approx(end, abs=0.01)
    ratio, equality = re.fullmatch(r"([\d.]+)× as fast · (same|another) text", shown(driver, "headline")).groups()
    assert float(ratio) == pytest.approx(times[0] / times[1], rel=0.1)
    assert (equality == "same") == (text == traced_text)
    instead = f"{forwards}" if tokens == traced_tokens else f"{tokens} tokens in {forwards} forwards"
    assert shown(driver, "detail") == f"{traced_tokens} tokens in {traced_forwards} forwards instead of {instead}"
    assert shown(driver, "result") == f"{shown(driver, 'headline')}. {shown(driver, 'detail')}."
    time.sleep(0.5)
    assert shown(driver, "play") == "Replay", "once"
    click(driver, "play")
    assert clock(driver) < end and shown(driver, "result") == ""


def test_steps_forth_and_back(traced, still):
    _, _, answers = traced
    texts, clocks = [shown(still, ".text")], [clock(still)]
    assert texts == [["", ""]] and not still.find_element("id", "back").is_enabled()
    while still.find_element("id", "step").is_enabled():
        click(still, "step")
        forwards = [int(re.search(r"(\d+) forward", counts)[1]) for counts in shown(still, ".so-far")]
        assert sum(forwards) == len(texts), "each step shows one forward more"
        texts.append(shown(still, ".text"))
        clocks.append(clock(still))
    assert len(texts) == 1 + sum(forwards for *_, forwards in answers), "two forwards never end at the same time"
    assert clocks == sorted(set(clocks)) and texts[-1] == [text for text, *_ in answers]
    for before, after in zip(texts, texts[1:], strict=False):
        assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
    for seconds, expected in reversed(list(zip(clocks[:-1], texts[:-1], strict=True))):
        click(still, "back")
        assert (clock(still), shown(still, ".text")) == (seconds, expected)
    still.find_element("css selector", "body").send_keys(RIGHT_ARROW)
    assert clock(still) == clocks[1]
    still.find_element("id", "back").send_keys(RIGHT_ARROW)  # also on a button
    assert clock(still) == clocks[2]


def test_a_forward_shows_its_slots_and_its_verdict(tmp_path, opened):
    """Slots of special tokens have no text, and then no element."""
    steps = [
        Step([], [Slot("a", None), Slot("b", None), Slot("", None)], 0, None),
        Step([Slot("a", 2), Slot("x", 2)], [Slot("c", None), Slot("", 2), Slot("d", 2)], 1, "b"),
        Step([Slot("", 3)], [], 0, ""),
        Step([Slot("e", 4)], [], 0, None),
    ]
    baseline = Run("autoregressive", [Step([Slot("e", 1)], [], 0, None)], [5.0])
    for decoding in ("verified", "streaming"):
        file = tmp_path / "trace.html"
        runs = [baseline, Run(decoding, steps, [1.0, 2.0, 3.0, 4.0])]
        file.write_text(page("", "x", torch.device("cpu"), runs), encoding="utf-8")
        driver = opened(file, reduced_motion="reduce")

        def parts(seconds, driver=driver):
            show(driver, seconds)
            return [
                (element.get_property("textContent"), element.get_attribute("class"))
                for element in driver.find_elements("css selector", ".run:last-child .answer span span")
            ]

        is_verified = decoding == "verified"
        drafts = [("a", "draft"), ("b", "draft")]
        assert parts(1) == (drafts if is_verified else 3 * [("·", "open")])
        assert parts(2) == [
            ("a", "written accepted"), ("x", "written"), ("b", "rejected"),
            ("c", "draft") if is_verified else ("·", "open"), ("d", "written ahead"),
        ]  # fmt: skip
        assert shown(driver, ".judged") == ["", "last: 1 accepted"]
        assert parts(3) == [("a", "written"), ("x", "written")]
        assert parts(5) == []
        legend = driver.find_elements("css selector", "#legend span")
        assert {"draft" in element.get_attribute("class") for element in legend} == {False, is_verified} | {False}
