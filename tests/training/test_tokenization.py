"""A record as tokens with labels, and what is cut, dropped or refused."""

import json
import re

import pytest
from stock_tokenizers import FLAVOURS
from tiny_tokenizer import COLON, END, MARKED, make_tokenizer
from training_data import CHAT, TOKENIZER, answers, assistant, prepare
from transformers import AutoTokenizer

from wedlm.training.data_options import DataOptions
from wedlm.training.dataset import prepare_dataset
from wedlm.training.run_errors import TrainingError
from wedlm.training.target_loss import NO_TARGET

pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.mark.parametrize("num_extra", [0, 1])
def test_answers_that_a_template_does_not_end_are_counted(num_extra):
    unmarked_end = MARKED.replace(" + '<|im_end|>' }}{% endgeneration %}", " }}{% endgeneration %}{{ '<|im_end|>' }}")
    for template in (unmarked_end, COLON.replace("'<|im_end|>'", "'\n'")):
        _, summary = prepare([{"messages": CHAT}] * 3, make_tokenizer(template), extra_end_tokens=num_extra)
        assert summary.num_without_end == (0 if num_extra else 3)
    assert prepare([{"messages": CHAT}])[1].num_without_end == 0
    sentence = (
        "Conversations whose last answer has no end token in the chat template: 3; a model learns no end from them "
        "without extra_end_tokens=1."
    )
    assert (sentence in str(summary)) == (num_extra == 0)


@pytest.mark.parametrize("num_extra", [0, 2])
def test_prompt_and_completion(num_extra):
    (sample,), _ = prepare([{"prompt": "the cat", "completion": "sat on"}], extra_end_tokens=num_extra)
    prompt, completion = TOKENIZER("the cat")["input_ids"], TOKENIZER("sat on")["input_ids"]
    end = [END] * (1 + num_extra)
    assert sample["input_ids"] == prompt + completion + end
    assert sample["labels"] == [NO_TARGET] * len(prompt) + completion + end
    assert (sample["sample_lengths"], sample["sample_indices"]) == ([len(sample["input_ids"])], [0])


@pytest.mark.few(3)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_samples_have_the_ids_that_the_tokenizer_gives(tmp_path, flavour):
    """A first token is there once, whether the template or the tokenizer writes it."""
    FLAVOURS[flavour](tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    (sample,), _ = prepare([{"messages": CHAT}], tokenizer)
    ids, length = tokenizer.apply_chat_template(CHAT)["input_ids"], len(sample["input_ids"])
    assert sample["input_ids"] == ids[:length] and tokenizer.decode(ids[length:]).strip() == ""
    assert [answer.strip() for answer in answers(sample, tokenizer)] == [
        turn["content"] + tokenizer.eos_token for turn in CHAT[1::2]
    ]
    (sample,), _ = prepare([{"text": "the cat sat"}], tokenizer)
    assert sample["input_ids"] == tokenizer("the cat sat")["input_ids"] + [tokenizer.eos_token_id]
    for prompt, completion in (("the: ", "cat"), ("the:", " cat"), ("the ca", "t"), ("the\n", "\n\tcat"), ("a", "\n")):
        (sample,), _ = prepare([{"prompt": prompt, "completion": completion + "a"}], tokenizer)
        first = tokenizer(prompt)["input_ids"]
        assert sample["input_ids"][: len(first)] == first
        assert tokenizer.decode(sample["input_ids"], skip_special_tokens=True) == prompt + completion + "a"


@pytest.mark.parametrize(
    "record", [{"messages": CHAT}, {"prompt": "the cat", "completion": "sat on the mat"}, {"text": "the cat sat on"}]
)
def test_what_is_truncated_is_a_beginning_that_ends_with_loss_and_is_counted(record):
    (whole,), _ = prepare([record], extra_end_tokens=1)
    length = len(whole["input_ids"])
    for max_length in (*range(2, length, 3), length):
        seen = [label != NO_TARGET for label in whole["labels"][:max_length]]
        if not any(seen):
            with pytest.raises(TrainingError, match="dropped: 1 for cut before the first token with loss"):
                prepare([record], max_length=max_length, extra_end_tokens=1)
            continue
        (cut,), summary = prepare([record], max_length=max_length, extra_end_tokens=1)
        end = max(i for i, has_loss in enumerate(seen) if has_loss) + 1
        assert (cut["input_ids"], cut["labels"]) == (whole["input_ids"][:end], whole["labels"][:end])
        assert summary.num_truncated == (max_length < length) and not summary.dropped


REFUSED = [
    ({}, " has none of the fields messages, prompt and completion, or text; add one."),
    ({"messages": CHAT, "text": "a"}, " has both messages and text; leave only one kind of field."),
    ({"prompt": "a"}, " has a prompt without a completion; add one, or call the field text."),
    ({"completion": "a"}, " has a completion without a prompt; add one, or call the field text."),
    ({"prompt": "a", "completion": " "}, " has an empty completion; write one, or remove the record."),
    ({"prompt": "a", "completion": 3}, " has a completion of type int; write a text."),
    ({"prompt": CHAT[:2], "completion": CHAT[:1]}, " has no assistant turn in its completion, so nothing to learn"),
    ({"text": ["a"]}, " has a text of type list; write a text."),
    ({"messages": []}, " has no messages; write a list of messages, each with role and content."),
    ({"messages": CHAT[:1]}, " has no assistant turn in its messages, so nothing to learn; add one."),
    ({"messages": [CHAT[0], "a"]}, ": messages[1] is not an object with a role and a content; write one."),
    ({"messages": [{"role": "user"}]}, ": the content of messages[0] is of type NoneType; write a text."),
    ({"messages": [CHAT[0], assistant(" ")]}, ": messages[1] is an assistant turn with empty content; write it, or"),
    ({"messages": CHAT[1:]}, ": messages[0] is an assistant turn with nothing to answer; put a system or user"),
    ({"messages": CHAT, "tools": "{{"}, ": its tools are not JSON (Expecting property name"),
    ({"messages": CHAT, "tools": ["a"]}, ": its tools are not a list of objects; write one."),
]


@pytest.mark.parametrize(("record", "sentence"), REFUSED)
def test_records_that_are_refused(tmp_path, record, sentence):
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"text": "a"}}\n\n{json.dumps(record)}\n')
    with pytest.raises(TrainingError, match=re.escape(f"{file}, line 3{sentence}")):
        prepare_dataset(file, TOKENIZER, DataOptions())
