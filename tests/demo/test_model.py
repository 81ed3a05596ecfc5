"""The tokenizer is that of the checkpoint, and the optimizer is restored whole."""

import copy

import pytest
import torch
from transformers import AutoTokenizer

from examples.demo.model import MuonAndAdamW, demo_tokenizer, random_model
from examples.demo.tasks import KINDS, example
from wedlm.checkpoints.demo_folder import DEMO_FOLDER


@pytest.fixture(scope="module")
def tokenizer():
    return demo_tokenizer()


def test_it_is_the_tokenizer_of_the_checkpoint(tokenizer):
    """In every run, whatever the hashes of Python and the number of threads are."""
    committed = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    assert tokenizer.backend_tokenizer.to_str() == committed.backend_tokenizer.to_str()
    for name in ("chat_template", "special_tokens_map", "padding_side", "model_max_length"):
        assert getattr(tokenizer, name) == getattr(committed, name), name


def test_texts_fall_into_words_signs_and_single_digits(tokenizer):
    for text in (
        "Count| from| |1|2| to| |2|0| in| steps| of| |4|.",
        "3|x| = |2|0| - |5| = |1|5|\n",
        '[{"name": "|Anna|", "age": |3|1|}, {"name": "|Ben|", "age": |4|}]',
        "def| f|(|n|):|\n|   | if| n| > |3|:|\n|       | return| n",
    ):
        pieces = text.split("|")
        assert [tokenizer.decode([token]) for token in tokenizer("".join(pieces))["input_ids"]] == pieces


@pytest.mark.parametrize("kind", KINDS)
def test_the_template_marks_the_answer_and_its_end(tokenizer, kind):
    for drawn in (example(kind, "train", index) for index in range(20)):
        arguments = {"tokenize": True, "return_dict": True}
        whole = tokenizer.apply_chat_template(drawn.messages, return_assistant_tokens_mask=True, **arguments)
        prompt = tokenizer.apply_chat_template(drawn.messages[:1], add_generation_prompt=True, **arguments)
        tokens, prompt = whole["input_ids"], prompt["input_ids"]
        answer = [token for token, loss in zip(tokens, whole["assistant_masks"], strict=True) if loss]
        assert tokens == [*prompt, *answer, *tokenizer("\n")["input_ids"]]
        assert tokenizer.decode(answer) == drawn.answer + "<|im_end|>"
        assert tokenizer.decode(prompt) == f"<|im_start|>user\n{drawn.prompt}<|im_end|>\n<|im_start|>assistant\n"


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

    whole, resumed = made(), made()
    before = copy.deepcopy(whole[0].state_dict())
    step(*whole, [5, 6, 7])
    for part, of_whole in zip(resumed, whole, strict=True):
        part.load_state_dict(copy.deepcopy(of_whole.state_dict()))
    for parts in (whole, resumed):
        step(*parts, [8, 7, 6])
    for name, weight in whole[0].state_dict().items():
        assert torch.equal(resumed[0].state_dict()[name], weight) and not torch.equal(before[name], weight), name
    assert [group["lr"] for group in resumed[1].param_groups] == pytest.approx([1e-2 / 3] * 2)
