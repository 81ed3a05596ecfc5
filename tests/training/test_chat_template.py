"""Which tokens of a conversation have loss."""

import json
import re

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from tiers import property_settings
from tiny_tokenizer import COLON, INSTRUCT, MARKED, QWEN3, QWEN25, THINKING, make_tokenizer
from training_data import CHAT, answers, assistant, prepare, user

from wedlm.training.data_options import DataOptions
from wedlm.training.run_errors import TrainingError
from wedlm.training.target_loss import NO_TARGET
from wedlm.training.tokenization import tokenize_record

pytestmark = pytest.mark.usefixtures("datasets_cache")


def written(template, messages):
    """A conversation as its template writes it, in plain Python: pieces, and whether the assistant writes them."""
    last_user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    pieces = []
    if template == QWEN25 and messages[0]["role"] != "system":
        pieces.append(("<|im_start|>system\nthe dog<|im_end|>\n", False))
    for i, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if template == INSTRUCT:
            pieces.append(
                (f" {content}<|endoftext|>", True) if role == "assistant" else (f"[INST] {content} [/INST]", False)
            )
        elif template == COLON:
            pieces.append((f"{role.upper()}: ", False))
            pieces.append((f"{content}<|im_end|>", True) if role == "assistant" else (f"{content}\n", False))
        else:
            if template == QWEN3 and role == "assistant":
                thought = ""
                if "</think>" in content:
                    thought, content = content.split("</think>")
                    thought, content = thought.removeprefix("<think>").strip("\n"), content.lstrip("\n")
                if i > last_user and (thought or i == len(messages) - 1):
                    content = f"<think>\n{thought}\n</think>\n\n" + content.lstrip("\n")
            pieces += [(f"<|im_start|>{role}\n", False), (f"{content}<|im_end|>", role == "assistant"), ("\n", False)]
    return pieces


CHARACTERS = st.text(st.sampled_from("abcthe dog\n\n  .:é€😀"), min_size=1, max_size=12)
CONTENTS = CHARACTERS.filter(str.strip)
THOUGHTS = st.builds("<think>\n{}\n</think>\n\n{}".format, CONTENTS, CONTENTS)
ROUNDS = st.lists(st.tuples(CHARACTERS, st.one_of(CONTENTS, THOUGHTS)), min_size=1, max_size=4)
TEMPLATES = {template: make_tokenizer(template) for template in (QWEN25, QWEN3, INSTRUCT, COLON, MARKED)}


@pytest.mark.parametrize("template", TEMPLATES, ids=["qwen2.5", "qwen3", "instruct", "colon", "marked"])
@property_settings(30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(has_system=st.booleans(), rounds=ROUNDS, loss_on=st.sampled_from(["all", "last"]))
@example(has_system=False, rounds=[("the cat", "sat"), ("the dog", "on the mat")], loss_on="all")
@example(has_system=False, rounds=[("the cat", "sat"), ("the dog", "on the mat")], loss_on="last")
def test_any_conversation_has_loss_where_the_slow_reference_has_it(template, has_system, rounds, loss_on):
    """The reference counts bytes: a token has loss if one of its bytes belongs to an answer."""
    tokenizer = TEMPLATES[template]
    messages = [message for question, answer in rounds for message in (user(question), assistant(answer))]
    if has_system:
        messages.insert(0, {"role": "system", "content": "the log"})
    owners = []
    pieces = written(template, messages)
    last = max(i for i, (_, is_answer) in enumerate(pieces) if is_answer)
    for i, (piece, is_answer) in enumerate(pieces):
        owners += [is_answer and (loss_on == "all" or i == last)] * len(piece.encode())
    sample = tokenize_record({"messages": messages}, 0, tokenizer, DataOptions(loss_on=loss_on))
    place, expected = 0, []
    for token in sample["input_ids"]:
        num_bytes = len(tokenizer.convert_ids_to_tokens(token))  # a character of its name stands for a byte
        expected.append(token if any(owners[place : place + num_bytes]) else NO_TARGET)
        place += num_bytes
    assert sample["labels"] == expected
    assert not any(owners[place:])
    text = "".join(piece for piece, _ in pieces)
    assert text.startswith(tokenizer.decode(sample["input_ids"], clean_up_tokenization_spaces=False))


def test_turns_that_the_template_changes_are_counted():
    chat = [user("a"), assistant("<think>\nb\n</think>\n\nc"), user("d"), assistant("<think>\ne\n</think>\n\nf")]
    tokenizer = make_tokenizer(QWEN3)
    (sample,), summary = prepare([{"messages": chat}], tokenizer)
    assert answers(sample, tokenizer) == ["c<|im_end|>", "<think>\ne\n</think>\n\nf<|im_end|>"]
    assert summary.num_rewritten == 1
    _, summary = prepare([{"messages": chat}], tokenizer, loss_on="last")
    assert summary.num_rewritten == 0


@pytest.mark.parametrize("content", ["", None, "the cat"])
def test_tool_calls_belong_to_the_turn(content):
    call = [{"name": "log"}]
    chat = [user("a"), assistant(content, tool_calls=call), {"role": "tool", "content": "d"}, assistant("e")]
    tools = [{"name": "log"}]
    tokenizer = make_tokenizer(QWEN3)
    (sample,), _ = prepare([{"messages": chat, "tools": tools}], tokenizer)
    (same,), _ = prepare([{"messages": chat, "tools": json.dumps(tools)}], tokenizer)
    called = f"{content}\n<tool_call>log</tool_call><|im_end|>" if content else "<tool_call>log</tool_call><|im_end|>"
    assert answers(sample, tokenizer) == [called, "<think>\n\n</think>\n\ne<|im_end|>"]
    assert tokenizer.decode(sample["input_ids"]).startswith('<|im_start|>system\n[{"name": "log"}]<|im_end|>')
    assert sample == same


def test_private_characters_in_a_conversation_do_not_move_its_ends():
    """The end of a turn that Qwen3's template rewrites is found by a mark that the text does not hold."""
    tokenizer = make_tokenizer(QWEN3)
    chat = [user("\ue000\ue001"), assistant("<think>\na\n</think>\n\nb\ue000c"), user("d"), assistant("e")]
    (sample,), summary = prepare([{"messages": chat}], tokenizer)
    assert answers(sample, tokenizer) == ["b\ue000c<|im_end|>", "<think>\n\n</think>\n\ne<|im_end|>"]
    assert summary.num_rewritten == 1


CONTENT = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "options", "sentence"),
    [
        (THINKING, {}, "does not write messages[1] after the generation prompt that a model would answer there; put"),
        (CONTENT + "{{ '<|endoftext|>' if messages[-1].role == 'assistant' }}", {},
         "does not show where messages[1] ends; put {% generation %} marks into the chat template, or use"),
        (CONTENT.replace(" %}", " if message.role == 'user' %}", 1), {}, "writes nothing for messages[1]; put"),
        ("{{ raise_exception('Roles must alternate.') }}", {},
         "refuses the messages (TemplateError: Roles must alternate); change the one or the other."),
        ("{% generation %}{% endgeneration %}{{ messages[0].content }}", {},
         "marks nothing as written by the assistant; put its {% generation %} marks around"),
        ("{{ messages | length }}" + MARKED, {"loss_on": "last"},
         "writes the text before messages[3] differently when no message follows; use a template in which"),
    ],
)  # fmt: skip
def test_templates_that_are_refused(template, options, sentence):
    with pytest.raises(TrainingError, match=re.escape(f"record 0: the chat template {sentence}")):
        prepare([{"messages": CHAT}], make_tokenizer(template), **options)


def test_the_last_answer_needs_no_other_answer_to_be_found():
    (sample,), _ = prepare([{"messages": CHAT}], make_tokenizer(THINKING), loss_on="last")
    assert answers(sample) == ["\n</think>\n\non the mat<|im_end|>"]
