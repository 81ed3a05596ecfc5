"""Which tokens of a conversation have loss."""

import json

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from tiers import property_settings
from tiny_tokenizer import COLON, INSTRUCT, MARKED, QWEN3, QWEN25, THINKING, make_tokenizer
from tokenizers import normalizers
from training_data import CHAT, answers, assistant, prepare, user

from wedlm.training.data_options import DataOptions
from wedlm.training.run_errors import TrainingError
from wedlm.training.target_loss import NO_TARGET
from wedlm.training.tokenization import tokenize_record

pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (QWEN25, ["sat<|im_end|>", "on the mat<|im_end|>"]),
        (QWEN3, ["sat<|im_end|>", "<think>\n\n</think>\n\non the mat<|im_end|>"]),
        (INSTRUCT, [" sat<|endoftext|>", " on the mat<|endoftext|>"]),
        (COLON, [" sat<|im_end|>", " on the mat<|im_end|>"]),
        (MARKED, ["sat<|im_end|>", "on the mat<|im_end|>"]),
    ],
    ids=["qwen2.5", "qwen3", "instruct", "colon", "marked"],
)
def test_loss_is_on_what_the_assistant_writes(template, expected):
    tokenizer = make_tokenizer(template, trim_offsets=True)
    whole = tokenizer.apply_chat_template(CHAT)["input_ids"]
    for loss_on, shown in (("all", expected), ("last", expected[-1:])):
        (sample,), _ = prepare([{"messages": CHAT}], tokenizer, loss_on=loss_on)
        assert answers(sample, tokenizer) == shown
        assert sample["input_ids"] == whole[: len(sample["input_ids"])]
        pairs = zip(sample["labels"], sample["input_ids"], strict=True)
        assert all(label in (NO_TARGET, token) for label, token in pairs)
        assert sample["labels"][-1] != NO_TARGET  # nothing follows the last answer


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


def test_normalized_text_keeps_its_answers():
    """The normalizer shortens the text in front of the answer; offsets speak of the text before."""
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    (sample,), _ = prepare([{"messages": [user("e\u0301" * 9), assistant("e\u0301a"), user("a")]}], tokenizer)
    assert answers(sample, tokenizer) == ["\u00e9a<|im_end|>"]


def test_private_characters_in_a_conversation_do_not_move_its_ends():
    """The end of a turn that Qwen3's template rewrites is found by a mark that the text does not hold."""
    tokenizer = make_tokenizer(QWEN3)
    chat = [user("\ue000\ue001"), assistant("<think>\na\n</think>\n\nb\ue000c"), user("d"), assistant("e")]
    (sample,), summary = prepare([{"messages": chat}], tokenizer)
    assert answers(sample, tokenizer) == ["b\ue000c<|im_end|>", "<think>\n\n</think>\n\ne<|im_end|>"]
    assert summary.num_rewritten == 1


def test_templates_that_are_refused():
    double = [user("a"), assistant("b"), assistant("c")]
    marks = "put {% generation %} marks into the chat template, or use loss_on='last'"
    for template, chat, sentence in (
        (THINKING, CHAT,
         "the chat template does not write messages[1] after the generation prompt that a model would answer "
         f"there; {marks}."),
        (QWEN3, double,
         "the chat template does not write messages[2] after the generation prompt that a model would answer "
         f"there; {marks}."),
        ("{% for message in messages %}{{ message.content[:1 if loop.last else 9] ~ loop.last }}{% endfor %}",
         [user("ab"), assistant("cde"), user("f"), assistant("gh")],
         "the chat template does not write messages[1] after the generation prompt that a model would answer "
         f"there; {marks}."),
        ("{% for message in messages %}{{ message.content }}{% endfor %}{{ '<|endoftext|>' if messages[-1].role == "
         "'assistant' }}", CHAT, f"the chat template does not show where messages[1] ends; {marks}."),
        ("{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}", CHAT,
         f"the chat template writes nothing for messages[1]; {marks}."),
        ("{{ raise_exception('Roles must alternate.') }}", CHAT,
         "the chat template refuses the messages (Roles must alternate); change the one or the other."),
        ("{{ messages[0].content + 3 }}", CHAT,
         "the chat template refuses the messages (can only concatenate str (not \"int\") to str); change the "
         "one or the other."),
        ("{% generation %}{% endgeneration %}{{ messages[0].content }}", CHAT,
         "the chat template marks nothing as written by the assistant; put its {% generation %} marks around "
         "the assistant's content, or remove them."),
    ):  # fmt: skip
        with pytest.raises(TrainingError) as error:
            prepare([{"messages": chat}], make_tokenizer(template))
        assert str(error.value) == f"record 0: {sentence}"
    (sample,), _ = prepare([{"messages": CHAT}], make_tokenizer(THINKING), loss_on="last")
    assert answers(sample) == ["\n</think>\n\non the mat<|im_end|>"]
    # With marks, the text before the last turn must not depend on it.
    template = "{{ messages | length }}" + MARKED
    with pytest.raises(TrainingError) as error:
        prepare([{"messages": CHAT}], make_tokenizer(template), loss_on="last")
    assert str(error.value) == (
        "record 0: the chat template writes the text before messages[3] differently when no message follows; use "
        "a template in which later messages do not change earlier ones."
    )
