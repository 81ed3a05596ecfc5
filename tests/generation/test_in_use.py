"""generate() inside existing code: pipelines, chats, adapters, offloading, contexts, threads, copies."""

import copy
import logging as python_logging
import pickle
import warnings
from itertools import pairwise

import pytest
import torch
from accelerate import cpu_offload
from helpers import EOS, MASK, PAD, PROMPTS, left_padded, load
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Seq2SeqTrainer, Seq2SeqTrainingArguments, logging, pipeline

from wedlm.generation.transformers_internals import CACHE

SETTINGS = {"max_new_tokens": 24, "entropy_threshold": 1.0}  # several tokens per forward
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}
TEXTS = ["Fill in the window.", "So", "In the order of certainty, commit"]
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "How warm is it in Oslo?"}]


@pytest.fixture(scope="module")
def tokenizer():
    """A token per character."""
    special = {"<pad>": PAD, "<bos>": 1, "<eos>": EOS, "<mask>": MASK}
    characters = ["\n", *map(chr, range(32, 127)), *map(chr, range(192, 252))]
    vocabulary = {character: 3 + i for i, character in enumerate(characters)}
    assert max(vocabulary.values()) == MASK - 1, "the model may write any"
    core = Tokenizer(models.WordLevel({**special, **vocabulary}, unk_token="\n"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    template = (
        "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, padding_side="left", chat_template=template,
        pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", mask_token="<mask>",
    )  # fmt: skip


@pytest.fixture
def generator(checkpoint, tokenizer):
    return pipeline("text-generation", model=load(checkpoint), tokenizer=tokenizer)


def counted(model):
    """Shapes of the input of every forward from now on."""
    shapes = []
    model.get_decoder().register_forward_hook(
        lambda module, args, kwargs, out: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def new_text(model, tokenizer, inputs, **arguments):
    """The text that generate() puts behind one prompt."""
    if isinstance(inputs, str):
        inputs = tokenizer(inputs, return_tensors="pt")
    output = model.generate(**inputs, **{**SETTINGS, **arguments})
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


# --- Pipelines ---


@pytest.mark.parametrize(
    "arguments",
    [{"decoding": "blockwise", "window_size": 8}, {"repetition_penalty": 1.3}],
    ids=str,
)
def test_pipeline_of_a_ragged_batch(model, generator, tokenizer, arguments):
    arguments = {**SETTINGS, **arguments}
    shapes, own_shapes, ends, expected = counted(generator.model), counted(model), [0], []
    got = generator(TEXTS, batch_size=2, do_sample=False, return_full_text=False, **arguments)
    for text in TEXTS:
        expected.append(new_text(model, tokenizer, text, **arguments))
        ends.append(len(own_shapes))
    assert got == [[{"generated_text": text}] for text in expected]
    forwards = [end - start for start, end in pairwise(ends)]
    assert shapes[0][0] == 2 and len(shapes) == max(forwards[:2]) + forwards[2], "no batches of two"


@pytest.mark.parametrize("prefill", ["", "It is"])
def test_pipeline_of_a_chat(model, generator, tokenizer, prefill):
    """A message of the assistant at the end is gone on with."""
    chat = CHAT + [{"role": "assistant", "content": prefill}] * bool(prefill)
    prompt = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True) + prefill
    answer = {"role": "assistant", "content": prefill + new_text(model, tokenizer, prompt)}
    shapes = counted(generator.model)
    assert generator(chat, do_sample=False, **SETTINGS) == [{"generated_text": [*CHAT, answer]}]
    assert len(shapes) < len(answer["content"]) - len(prefill)


def test_pipeline_tells_the_statistics(model, generator, tokenizer):
    got = generator(TEXTS, do_sample=False, return_dict_in_generate=True, **SETTINGS)
    for text, (record,) in zip(TEXTS, got, strict=True):
        output = model.generate(**tokenizer(text, return_tensors="pt"), **SETTINGS, return_dict_in_generate=True)
        for name in ("forwards", "tokens_per_forward", "prefix_cacheability"):
            assert torch.tensor(record[name]).item() == output[name].item()  # a number or a list of one
    assert max(torch.tensor(record["tokens_per_forward"]).item() for (record,) in got) > 1


# --- Adapters ---


def lora(seed):
    torch.manual_seed(seed)
    return LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)


def texts_of(model, **arguments):
    return model.generate(**left_padded(PROMPTS[:3]), **SPECIAL, **{**SETTINGS, **arguments}).tolist()


def test_an_adapter_per_row(model):
    base = model.generate(**left_padded(PROMPTS), **SPECIAL, **SETTINGS)
    adapted = get_peft_model(model, lora(0), "first").eval()
    adapted.add_adapter("second", lora(1))
    adapted.eval()
    names = ["second", "__base__", "first", "second", "first"]
    arguments = {**SPECIAL, **SETTINGS, "eos_token_id": list(range(2, 40))}  # rows end at different times
    batch = adapted.generate(**left_padded(PROMPTS), **arguments, adapter_names=names)
    rows = [
        adapted.generate(**left_padded([prompt]), **arguments, adapter_names=[name])[0, len(prompt) :].tolist()
        for prompt, name in zip(PROMPTS, names, strict=True)
    ]
    longest = max(map(len, rows))
    assert batch[:, 40:].tolist() == [row + [PAD] * (longest - len(row)) for row in rows]
    assert min(map(len, rows)) < longest and batch.tolist() != base.tolist()


# --- Offloading ---


def offloaded(checkpoint, kind, folder):
    if kind == "cpu_offload":
        return cpu_offload(load(checkpoint), execution_device=torch.device("cpu"))
    layers = {f"model.layers.{i}": "disk" if i else "cpu" for i in range(3)}
    others = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    return load(checkpoint, device_map={**layers, **others}, offload_folder=folder)


@pytest.mark.parametrize("kind", ["cpu_offload", "disk"])
def test_an_offloaded_model(checkpoint, model, kind, tmp_path):
    other = offloaded(checkpoint, kind, tmp_path)
    assert any(weight.device.type == "meta" for weight in other.parameters())
    assert (other.device.type == "meta") == (kind == "cpu_offload")
    shapes = counted(other)
    assert texts_of(other) == texts_of(model)
    assert len(shapes) < SETTINGS["max_new_tokens"]
    for more in ({"repetition_penalty": 1.2}, {"do_sample": True, "top_k": 1}, {"use_cache": False}):
        assert texts_of(other, **more) == texts_of(model, **more), more


# --- Contexts ---


def continued(model, output, mode=torch.no_grad, **arguments):
    """The text behind an earlier output of a batch with PROMPTS[:3], read from its cache."""
    mask = left_padded(PROMPTS[:3])["attention_mask"]
    mask = torch.cat([mask, torch.ones_like(output.sequences[:, mask.shape[1] :])], dim=-1)
    arguments = {**SPECIAL, **SETTINGS, CACHE: copy.deepcopy(output[CACHE]), **arguments}
    with mode():
        return model.generate(output.sequences, attention_mask=mask, **arguments)


MODES = {"inference": torch.inference_mode, "no grad": torch.no_grad, "grad": torch.enable_grad}


def test_gradient_modes_change_nothing(model):
    texts = {}
    for name, mode in MODES.items():
        with mode():
            texts[name] = texts_of(model)
            output = model.generate(**left_padded(PROMPTS[:3]), **SPECIAL, **SETTINGS, output_scores=True,
                                    return_dict_in_generate=True)  # fmt: skip
            assert not any(column.requires_grad for column in output.scores)
    assert texts["inference"] == texts["no grad"] == texts["grad"]
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("before, after", [("inference", "grad"), ("grad", "inference")])
def test_a_cache_of_one_gradient_mode_is_continued_in_another(model, before, after):
    arguments = {**SPECIAL, **SETTINGS, "eos_token_id": None}  # so that no padding is in the text
    with MODES[before]():
        output = model.generate(**left_padded(PROMPTS[:3]), **arguments, return_dict_in_generate=True)
    cache = output[CACHE]
    assert cache.layers[0].keys.is_inference() == (before == "inference")
    emptied = copy.deepcopy(cache)
    for layer in emptied.layers:
        layer.keys, layer.values = torch.zeros_like(layer.keys), torch.zeros_like(layer.values)
    for decoding in ("streaming", "autoregressive"):
        more = {"decoding": decoding, "eos_token_id": None}
        expected = continued(model, output, **more, **{CACHE: None})
        assert not torch.equal(continued(model, output, **more, **{CACHE: emptied}), expected), "is not read"
        given = cache if decoding == "autoregressive" else copy.deepcopy(cache)
        assert torch.equal(continued(model, output, MODES[after], **more, **{CACHE: given}), expected)


# --- Ways to call ---


def test_end_tokens_of_any_type(model):
    prompt = torch.tensor([PROMPTS[2]])
    arguments = {**SETTINGS, "pad_token_id": PAD}
    free = model.generate(prompt, **arguments, eos_token_id=None)[0, prompt.shape[1] :].tolist()
    end, later = list(dict.fromkeys(free))[2:4]
    expected = PROMPTS[2] + free[: free.index(end) + 1]
    assert len(expected) < len(PROMPTS[2]) + len(free)
    for end_tokens in (end, [end], torch.tensor(end), torch.tensor([end]), [end, 158], torch.tensor([end, end])):
        assert model.generate(prompt, **arguments, eos_token_id=end_tokens).tolist() == [expected]
    assert model.generate(prompt, **arguments, eos_token_id=[later, end]).tolist() == [expected]
    assert model.generate(prompt, **arguments, eos_token_id=later).tolist() != [expected]
    model.generation_config.eos_token_id = [end]
    assert model.generate(prompt, **arguments).tolist() == [expected]


class Records(python_logging.Handler):
    def __init__(self):
        super().__init__(python_logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def logged():
    """Yields the messages of transformers' loggers."""
    handler, before = Records(), logging.get_verbosity()
    logging.set_verbosity_warning()
    logging.add_handler(handler)
    yield handler.messages
    logging.remove_handler(handler)
    logging.set_verbosity(before)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"do_sample": True, "top_p": 0.9, "repetition_penalty": 1.2},
        {"return_dict_in_generate": True, "output_scores": True},
        {"decoding": "verified"},
        {"decoding": "autoregressive"},
    ],
    ids=str,
)
def test_a_plain_call_warns_of_nothing(model, logged, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(torch.tensor([PROMPTS[2]]), max_new_tokens=8, **arguments)
        model.generate(**left_padded(PROMPTS), max_new_tokens=8, **arguments)
    assert logged == []
    model.generate(torch.tensor([PROMPTS[2]]), max_new_tokens=8, max_length=30, **arguments)
    assert any("max_length" in message for message in logged), "a warning would not be noticed"


def test_a_custom_loop_that_calls_the_own_one(model):
    given = []

    def loop(model, input_ids, **arguments):
        given.append(arguments["generation_config"].window_size)
        return model._sample(input_ids, **arguments)

    arguments = {**left_padded(PROMPTS), **SPECIAL, **SETTINGS}
    expected = model.generate(**arguments, window_size=5)
    shapes = counted(model)
    assert torch.equal(model.generate(**arguments, window_size=5, custom_generate=loop), expected)
    assert given == [5] and len(shapes) < SETTINGS["max_new_tokens"]


def test_a_copy_of_the_output(model):
    """With the cache: the copy is gone on with."""
    arguments = {**SPECIAL, **SETTINGS, "eos_token_id": None, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(**left_padded(PROMPTS[:3]), **arguments)
    other = pickle.loads(pickle.dumps(output))
    assert type(other) is type(output) and other.keys() == output.keys()
    assert torch.equal(other.sequences, output.sequences) and torch.equal(other.forwards, output.forwards)
    torch.testing.assert_close(other.scores, output.scores, rtol=0, atol=0)
    expected = continued(model, output, eos_token_id=None)
    assert torch.equal(continued(model, other, eos_token_id=None), expected)
    other[CACHE].layers[0].values.neg_()
    assert not torch.equal(continued(model, other, eos_token_id=None), expected), "the cache is not read"
    assert torch.equal(continued(model, output, eos_token_id=None), expected), "they share their memory"


def test_a_trainer_that_predicts_with_generate(checkpoint, model, tmp_path):
    rows = torch.stack([torch.tensor(prompt[:6]) for prompt in PROMPTS if len(prompt) >= 6])
    settings = Seq2SeqTrainingArguments(
        tmp_path, predict_with_generate=True, report_to=[], per_device_eval_batch_size=len(rows), use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(load(checkpoint), settings)
    data = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in rows]
    shapes = counted(trainer.model)
    predictions = torch.tensor(trainer.predict(data, **SETTINGS).predictions)
    expected = model.generate(rows, attention_mask=torch.ones_like(rows), **SETTINGS)
    assert torch.equal(predictions[:, : expected.shape[1]], expected)
    assert len(shapes) < 24 + 1, "a forward for each token, and one for the loss"
