"""SmolLM2-135M-Instruct, a real language model: converted to WeDLM it writes the text of transformers' own class.

`make test-real` makes the checkpoints first, in build/.
"""

import filecmp

import pytest
import torch
from helpers import REPOSITORY, load, run_python
from real_questions import QUESTIONS
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from wedlm.checkpoints.convert import convert_to_autoregressive
from wedlm.commands import cli
from wedlm.generation.transformers_internals import CACHE

STOCK = REPOSITORY / "build" / "smollm2-135m"
CONVERTED = REPOSITORY / "build" / "smollm2-135m-wedlm"
NEW_TOKENS = 32

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def stock():
    return LlamaForCausalLM.from_pretrained(STOCK).eval()


@pytest.fixture(scope="module")
def converted():
    return load(CONVERTED)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(CONVERTED, padding_side="left")


def chat_inputs(tokenizer, *questions):
    """The inputs of generate() for a batch of questions."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    )


def written(model, inputs, **arguments):
    """The new tokens of each row of the batch."""
    arguments = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **arguments}
    return model.generate(**inputs, **arguments)[:, inputs["input_ids"].shape[1] :]


def all_written(model, tokenizer, batch_size, **arguments):
    """The answers to all prompts, as text with its special tokens; padding is the end token, so it is left out."""
    answers = []
    for first in range(0, len(QUESTIONS), batch_size):
        inputs = chat_inputs(tokenizer, *QUESTIONS[first : first + batch_size])
        for row in written(model, inputs, **arguments).tolist():
            answers.append(row[: row.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in row else row)
    return answers


@pytest.fixture(scope="module")
def stock_answers(stock, tokenizer):
    """The answers of transformers' own class, one prompt at a time."""
    return all_written(stock, tokenizer, batch_size=1)


def test_a_text_ends_where_the_tokenizer_says(converted, tokenizer):
    assert converted.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.bos_token == "<|im_start|>"


def test_every_logit_equals_that_of_llama(stock, converted, tokenizer):
    for question in QUESTIONS[::8]:
        inputs = chat_inputs(tokenizer, question)
        with torch.no_grad():
            logits = converted(**inputs).logits
            assert torch.equal(logits[..., : stock.config.vocab_size], stock(**inputs).logits)


@pytest.mark.parametrize("decoding", ["autoregressive", "verified"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_answers_equal_those_of_llama(converted, tokenizer, stock_answers, decoding, batch_size):
    answers = all_written(converted, tokenizer, batch_size, decoding=decoding)
    assert answers == stock_answers
    assert sum(len(answer) for answer in answers) > 800


def test_a_conversation_goes_on_from_one_cache(stock, converted, tokenizer):
    messages, caches, turns = [], {}, []
    for question in ("Name a colour.", "Name an animal of that colour.", "Where does it live?"):
        messages.append({"role": "user", "content": question})
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        texts = []
        for model, arguments in ((stock, {}), (converted, {"decoding": "verified"})):
            output = model.generate(
                **inputs, **arguments, max_new_tokens=24, do_sample=False, return_dict_in_generate=True,
                **{CACHE: caches.get(model)},
            )  # fmt: skip
            caches[model] = output[CACHE]
            texts.append(tokenizer.decode(output.sequences[0, inputs["input_ids"].shape[1] :]))
        assert texts[0] == texts[1]
        turns.append(texts[0])
        messages.append({"role": "assistant", "content": texts[0].removesuffix("<|im_end|>")})
    assert len(set(turns)) == 3


def test_a_prompt_of_6000_tokens_in_chunks(stock, converted, tokenizer):
    text = "\n".join(f"{place}. {question}" for place, question in enumerate(QUESTIONS * 7))
    inputs = chat_inputs(tokenizer, f"{text}\nWhich of these questions is about a train?")
    assert inputs["input_ids"].shape[1] > 6000
    expected = written(stock, inputs, max_new_tokens=12)
    chunked = written(converted, inputs, max_new_tokens=12, decoding="verified", prefill_chunk_size=512)
    assert torch.equal(chunked, expected)


def test_back_conversion_gives_the_same_files(tmp_path):
    back = tmp_path / "back"
    convert_to_autoregressive(CONVERTED, back)
    names = {path.name for path in STOCK.iterdir()} - {"README.md"}  # a card is about one checkpoint
    assert {path.name for path in back.iterdir()} == names
    for name in names - {"config.json", "tokenizer_config.json"}:  # both in a form for older versions too
        assert filecmp.cmp(STOCK / name, back / name, shallow=False), name
    assert LlamaConfig.from_pretrained(back).to_dict() == LlamaConfig.from_pretrained(STOCK).to_dict()


def test_an_export_answers_without_the_package(converted, tokenizer, tmp_path):
    arguments = ["export", str(CONVERTED), str(tmp_path / "exported"), "--license", "apache-2.0"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    inputs = chat_inputs(tokenizer, QUESTIONS[0])
    output = run_python(
        f"""
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("exported", trust_remote_code=True)
ids = torch.tensor({inputs["input_ids"].tolist()})
text = model.generate(ids, max_new_tokens={NEW_TOKENS}, do_sample=False, decoding="verified")
print("answer", text[0, ids.shape[1]:].tolist())
""",
        tmp_path,
        wedlm=False,
    )
    assert f"answer {written(converted, inputs, decoding='verified')[0].tolist()}" in output
