"""generate() inside existing code: pipelines, chats, adapters, offloading, contexts, threads, copies."""

import copy
import pickle
import warnings

import pytest
import torch
from accelerate import cpu_offload
from helpers import EOS, MASK, PAD, PROMPTS, left_padded, load
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Seq2SeqTrainer, Seq2SeqTrainingArguments, pipeline

from wedlm.generation.transformers_internals import CACHE

SETTINGS = {"max_new_tokens": 24, "entropy_threshold": 1.0}  # several tokens per forward
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}
TEXTS = ["Fill in the window.", "So", "In the order of certainty, commit"]


@pytest.fixture(scope="module")
def tokenizer():
    """A token per character."""
    special = {"<pad>": PAD, "<bos>": 1, "<eos>": EOS, "<mask>": MASK}
    characters = ["\n", *map(chr, range(32, 127)), *map(chr, range(192, 252))]
    vocabulary = special | {character: 3 + i for i, character in enumerate(characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="\n"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    template = (
        "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", chat_template=template, **names)


@pytest.fixture
def generator(checkpoint, tokenizer):
    return pipeline("text-generation", model=load(checkpoint), tokenizer=tokenizer)


def counted(model):
    """The rows of every forward from now on."""
    rows = []
    model.get_decoder().register_forward_hook(
        lambda module, args, kwargs, out: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return rows


# --- Pipelines ---


def test_pipeline_of_a_ragged_batch(model, generator, tokenizer):
    arguments = {**SETTINGS, "do_sample": False, "repetition_penalty": 1.3}
    rows, forwards, expected = counted(generator.model), [], []
    got = generator(TEXTS, batch_size=2, return_full_text=False, **arguments)
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        output = model.generate(**inputs, **arguments, return_dict_in_generate=True)
        new = output.sequences[0, inputs["input_ids"].shape[1] :]
        expected.append([{"generated_text": tokenizer.decode(new, skip_special_tokens=True)}])
        forwards.append(output.forwards.item())
    assert got == expected
    assert rows[0] == 2 and len(rows) == max(forwards[:2]) + forwards[2], "no batches of two"


def test_pipeline_of_a_chat(model, generator, tokenizer):
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "How warm is it in Oslo?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    text = tokenizer.decode(model.generate(**inputs, **SETTINGS)[0, inputs["input_ids"].shape[1] :])
    (record,) = generator(chat, do_sample=False, return_dict_in_generate=True, **SETTINGS)
    assert record["generated_text"] == [*chat, {"role": "assistant", "content": text}]
    assert torch.tensor(record["forwards"]).item() < SETTINGS["max_new_tokens"]


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
    forwards = counted(other)
    assert texts_of(other) == texts_of(model)
    assert len(forwards) < SETTINGS["max_new_tokens"]
    for more in ({"repetition_penalty": 1.2}, {"do_sample": True, "top_k": 1}, {"use_cache": False}):
        assert texts_of(other, **more) == texts_of(model, **more), more


# --- Contexts ---

MODES = {"inference": torch.inference_mode, "grad": torch.enable_grad}


@pytest.mark.parametrize("before, after", [("inference", "grad"), ("grad", "inference")])
def test_a_pickled_cache_of_one_gradient_mode_is_continued_in_another(model, before, after):
    inputs, arguments = left_padded(PROMPTS[:3]), {**SETTINGS, "eos_token_id": None, "pad_token_id": PAD}
    with MODES[before]():
        output = model.generate(**inputs, **arguments, return_dict_in_generate=True)
    copied = pickle.loads(pickle.dumps(output))
    assert type(copied) is type(output) and torch.equal(copied.forwards, output.forwards)
    assert output[CACHE].layers[0].keys.is_inference() == (before == "inference")
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, SETTINGS["max_new_tokens"]), value=1)
    given = {"inputs": output.sequences, "attention_mask": mask, **arguments}
    for decoding in ("streaming", "autoregressive"):
        expected = model.generate(**given, decoding=decoding)
        with MODES[after]():
            for cache in (output[CACHE], copied[CACHE]):
                more = {"decoding": decoding, CACHE: copy.deepcopy(cache)}
                assert torch.equal(model.generate(**given, **more), expected)


# --- Ways to call ---


@pytest.mark.parametrize(
    "arguments",
    [
        {"do_sample": True, "top_p": 0.9, "repetition_penalty": 1.2},
        {"return_dict_in_generate": True, "output_scores": True},
        {"decoding": "verified"},
        {"decoding": "autoregressive"},
    ],
    ids=str,
)
def test_a_plain_call_warns_of_nothing(model, caplog, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(torch.tensor([PROMPTS[2]]), max_new_tokens=8, **arguments)
        model.generate(**left_padded(PROMPTS), max_new_tokens=8, **arguments)
    assert caplog.text == ""
    model.generate(torch.tensor([PROMPTS[2]]), max_new_tokens=8, max_length=30, **arguments)
    assert "max_length" in caplog.text, "a warning would not be noticed"


def test_a_trainer_that_predicts_with_generate(checkpoint, model, tmp_path):
    rows = torch.tensor([prompt[:6] for prompt in PROMPTS if len(prompt) >= 6])
    settings = Seq2SeqTrainingArguments(
        tmp_path, predict_with_generate=True, report_to=[], per_device_eval_batch_size=len(rows), use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(load(checkpoint), settings)
    data = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in rows]
    forwards = counted(trainer.model)
    predictions = torch.tensor(trainer.predict(data, **SETTINGS).predictions)
    expected = model.generate(rows, attention_mask=torch.ones_like(rows), **SETTINGS)
    assert torch.equal(predictions[:, : expected.shape[1]], expected)
    assert len(forwards) < 24 + 1, "a forward for each token, and one for the loss"
