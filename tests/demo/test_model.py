"""The tokenizer cuts as its pieces say and is the same in every process; the optimizer is restored whole."""

import copy

import pytest
import torch
from helpers import REPOSITORY, run_python

from examples.demo import model
from examples.demo.model import VOCABULARY_SIZE, MuonAndAdamW, demo_tokenizer, random_model
from examples.demo.tasks import KINDS, example, training_example

NUM_EXAMPLES = 60  # of each kind
MOST_TOKENS = 180  # of a question with its answer and the template


@pytest.fixture(scope="module")
def tokenizer():
    return demo_tokenizer()


def pieces(tokenizer, text):
    return [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]


def test_special_tokens(tokenizer):
    assert len(tokenizer) <= VOCABULARY_SIZE
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]) == [0, 1, 2, 3]
    assert all(len(tokenizer(role)["input_ids"]) == 1 for role in ("user", "assistant"))
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id) == (0, 2, 3)


def test_texts_fall_into_words_signs_and_single_digits(tokenizer):
    assert "|".join(pieces(tokenizer, "Count from 12 to 20 in steps of 4.")) == (
        "Count| from| |1|2| to| |2|0| in| steps| of| |4|."
    )
    assert "|".join(pieces(tokenizer, "12, 16, 20")) == "1|2|, |1|6|, |2|0"
    assert "|".join(pieces(tokenizer, "3x = 20 - 5 = 15\n")) == "3|x| = |2|0| - |5| = |1|5|\n"
    assert "|".join(pieces(tokenizer, '[{"name": "Anna", "age": 31}, {"name": "Ben", "age": 4}]')) == (
        '[{"name": "|Anna|", "age": |3|1|}, {"name": "|Ben|", "age": |4|}]'
    )
    assert "|".join(pieces(tokenizer, 'Drop "age".')) == 'Drop| "|age|".'
    assert "|".join(pieces(tokenizer, "def f(n):\n    if n > 3:\n        return n")) == (
        "def| f|(|n|):|\n|   | if| n| > |3|:|\n|       | return| n"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_comes_back_and_is_short(tokenizer, kind):
    for split in ("train", "test"):
        for index in range(NUM_EXAMPLES):
            messages = example(kind, split, index).messages
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            tokens = tokenizer(text)["input_ids"]
            assert tokenizer.decode(tokens) == text
            assert len(tokens) <= MOST_TOKENS


def test_the_template_marks_the_answer_and_its_end(tokenizer):
    for drawn in (training_example(1, position) for position in range(20)):
        rendered = tokenizer.apply_chat_template(
            drawn.messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        prompt = tokenizer.apply_chat_template(
            drawn.messages[:1], tokenize=True, return_dict=True, add_generation_prompt=True
        )["input_ids"]
        tokens, has_loss = rendered["input_ids"], rendered["assistant_masks"]
        assert tokens[: len(prompt)] == prompt
        answer = [token for token, loss in zip(tokens, has_loss, strict=True) if loss]
        assert tokens == [*prompt, *answer, *tokenizer("\n")["input_ids"]]
        assert tokenizer.decode(answer) == drawn.answer + "<|im_end|>"
        text = tokenizer.decode(prompt)
        assert text == f"<|im_start|>user\n{drawn.prompt}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.full
def test_it_is_the_same_to_the_byte_in_another_process(tmp_path, monkeypatch):
    """Made from a part of the texts, and with other hashes and another number of threads."""
    monkeypatch.setattr(model, "NUM_SAMPLES", 500)
    demo_tokenizer().save_pretrained(tmp_path / "here")
    code = (
        "from examples.demo import model\n"
        "model.NUM_SAMPLES = 500\n"
        f"model.demo_tokenizer().save_pretrained({str(tmp_path / 'there')!r})"
    )
    run_python(code, tmp_path, PYTHONPATH=str(REPOSITORY), PYTHONHASHSEED="1", RAYON_NUM_THREADS="2")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


@pytest.mark.full
def test_the_optimizer_goes_on_where_it_stopped(tokenizer):
    """With the schedule, and for every weight."""

    def made():
        network = random_model(tokenizer, 128, 1)
        optimizer = MuonAndAdamW(network, 1e-2)
        return network, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))

    def step(network, optimizer, schedule, ids):
        network(torch.tensor([ids]), labels=torch.tensor([ids])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    first, second = [5, 6, 7], [8, 7, 6]
    network, *rest = made()
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    step(network, *rest, first)
    states = copy.deepcopy([part.state_dict() for part in (network, *rest)])
    step(network, *rest, second)
    after = dict(network.named_parameters())
    # (Of one layer and a text of three tokens every weight has a gradient but the vectors of other words.)
    assert [name for name in after if torch.equal(after[name], before[name])] == []

    resumed, *rest = made()
    for part, state in zip((resumed, *rest), states, strict=True):
        part.load_state_dict(state)
    step(resumed, *rest, second)
    for name, weight in resumed.named_parameters():
        assert torch.equal(weight, after[name]), name
    assert [group["lr"] for group in rest[0].param_groups] == pytest.approx([1e-2 / 3] * 2)
