"""The demo model's own answers: to stories only, kept between runs, and only those that are right."""

import pytest

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.demo import own_answers as module
from wedlm.demo.checkers import check
from wedlm.demo.own_answers import own_answers, with_own_answers
from wedlm.demo.tasks import example, messages_of


@pytest.fixture(scope="module")
def demo():
    model, tokenizer = load_checkpoint(DEMO_FOLDER)
    tokenizer.padding_side = "left"
    return model, tokenizer


@pytest.fixture
def examples():
    return [example(kind, "train", index) for index in range(3) for kind in ("counting", "stories")]


def test_right_answers_to_stories_are_kept(demo, examples, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_SIZE", 2)
    answers = own_answers(*demo, examples, tmp_path, "weights")
    stories = [each for each in examples if each.kind == "stories"]
    assert answers and answers.keys() <= {story.prompt for story in stories}
    assert all(check("stories", prompt, text) for prompt, text in answers.items())
    model, tokenizer = demo
    for story in stories:
        inputs = tokenizer.apply_chat_template(
            messages_of([story])[:1], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        ids = model.generate(**inputs, max_new_tokens=160, decoding="autoregressive")
        text = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert answers.get(story.prompt, text) == text

    monkeypatch.setattr(module, "texts_of", None)  # nothing is asked again
    assert own_answers(*demo, examples, tmp_path, "weights") == answers
    asked = []
    monkeypatch.setattr(
        module, "texts_of", lambda model, tokenizer, batch: asked.extend(batch) or ["No."] * len(batch)
    )
    more = [*examples, example("stories", "train", 3)]
    kept = own_answers(*demo, more, tmp_path, "weights")
    assert asked == more[-2:], "kept answers are found by their batch of questions"
    assert kept == {story.prompt: answers[story.prompt] for story in stories[:2] if story.prompt in answers}
    replaced = with_own_answers(examples, answers)
    assert [each.prompt for each in replaced] == [each.prompt for each in examples]
    for old, new in zip(examples, replaced, strict=True):
        assert new.answer == answers.get(old.prompt, old.answer)
    assert replaced != examples


def test_wrong_answers_are_left_out(demo, examples, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "texts_of", lambda model, tokenizer, examples: ["No."] * len(examples))
    assert own_answers(*demo, examples, tmp_path, "weights") == {}
    assert with_own_answers(examples, {}) == examples
