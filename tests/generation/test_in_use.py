"""generate() inside existing code: pipelines, chats, adapters, offloading, contexts, threads, copies."""

import copy
import logging as python_logging
import math
import pickle
import threading
import warnings

import pytest
import torch
from accelerate import cpu_offload
from helpers import CHECKPOINTS, EOS, MASK, NAMES, PAD, PROMPTS, left_padded, load, logits_of
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    StoppingCriteria,
    TextStreamer,
    logging,
    pipeline,
)
from transformers.integrations.peft import MIN_PEFT_VERSION
from transformers.utils.peft_utils import check_peft_version

from wedlm.generation.transformers_internals import CACHE

BOS = 1
SETTINGS = {"max_new_tokens": 24, "entropy_threshold": 1.0}  # several tokens per forward
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}
TEXTS = ["Fill in the window.", "So", "In the order of certainty, commit"]
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "How warm is it in Oslo?"}]
OTHER_CHAT = [{"role": "user", "content": "Hi"}]
TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def tokenizer_of(vocabulary, pre_tokenizer, decoder):
    special = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS, "<mask>": MASK}
    core = Tokenizer(models.WordLevel({**special, **vocabulary}, unk_token=next(iter(vocabulary))))
    core.pre_tokenizer, core.decoder = pre_tokenizer, decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=core, padding_side="left", chat_template=TEMPLATE,
        pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", mask_token="<mask>",
    )  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    """A token per character."""
    characters = ["\n", *map(chr, range(32, 127)), *map(chr, range(192, 252))]
    vocabulary = {character: 3 + i for i, character in enumerate(characters)}
    assert max(vocabulary.values()) == MASK - 1, "the model may write any"
    return tokenizer_of(vocabulary, pre_tokenizers.Split("", "isolated"), decoders.Fuse())


@pytest.fixture(scope="module")
def words():
    """A token per word: n3 to n158, many of which begin with another."""
    return tokenizer_of({f"n{i}": i for i in range(3, MASK)}, pre_tokenizers.WhitespaceSplit(), None)


@pytest.fixture(params=NAMES)
def checkpoint(request):
    return CHECKPOINTS / request.param


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


def chat_inputs(tokenizer, chat, **arguments):
    given = {"tokenize": True, "add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    return tokenizer.apply_chat_template(chat, **{**given, **arguments})


def same_rows(batch, width, rows):
    """Says if the new text of a batch is that of each row alone, padded on the right."""
    new = batch[:, width:].tolist()
    return new == [row + [PAD] * (len(new[0]) - len(row)) for row in rows] and len(new[0]) == max(map(len, rows))


# --- Pipelines ---


def test_pipeline_of_a_string(model, generator, tokenizer):
    shapes = counted(generator.model)
    expected = new_text(model, tokenizer, TEXTS[0])
    assert generator(TEXTS[0], do_sample=False, **SETTINGS) == [{"generated_text": TEXTS[0] + expected}]
    assert len(shapes) < len(expected)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "arguments",
    [
        {"window_size": 4},
        {"entropy_threshold": None},
        {"entropy_threshold": 3.0},
        {"decoding": "blockwise", "window_size": 8},
        {"decoding": "autoregressive"},
        {"repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_pipeline_hands_arguments_to_generate(model, generator, tokenizer, arguments):
    shapes, own_shapes = counted(generator.model), counted(model)
    got = generator(TEXTS[0], do_sample=False, return_full_text=False, **{**SETTINGS, **arguments})
    assert got == [{"generated_text": new_text(model, tokenizer, TEXTS[0], **arguments)}]
    assert shapes == own_shapes
    shapes.clear()
    generator(TEXTS[0], do_sample=False, **SETTINGS)
    assert shapes != own_shapes, "the arguments change nothing"


def test_pipeline_of_a_ragged_batch(model, generator, tokenizer):
    shapes, own_shapes, ends, expected = counted(generator.model), counted(model), [0], []
    got = generator(TEXTS, batch_size=2, do_sample=False, return_full_text=False, **SETTINGS)
    for text in TEXTS:
        expected.append(new_text(model, tokenizer, text))
        ends.append(len(own_shapes))
    assert got == [[{"generated_text": text}] for text in expected]
    forwards = [end - start for start, end in zip(ends, ends[1:], strict=False)]
    assert shapes[0][0] == 2 and len(shapes) == max(forwards[:2]) + forwards[2], "no batches of two"
    assert len(set(expected)) == 3 and sum(forwards) < sum(map(len, expected))


@pytest.mark.parametrize("prefill", ["", "It is"])
def test_pipeline_of_a_chat(model, generator, tokenizer, prefill):
    """A message of the assistant at the end is gone on with."""
    chat = CHAT + [{"role": "assistant", "content": prefill}] * bool(prefill)
    prompt = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True) + prefill
    answer = {"role": "assistant", "content": prefill + new_text(model, tokenizer, prompt)}
    shapes = counted(generator.model)
    assert generator(chat, do_sample=False, **SETTINGS) == [{"generated_text": [*CHAT, answer]}]
    assert len(shapes) < len(answer["content"]) - len(prefill)


def test_pipeline_of_several_chats(model, generator, tokenizer):
    got = generator([CHAT, OTHER_CHAT], batch_size=2, do_sample=False, return_full_text=False, **SETTINGS)
    expected = [new_text(model, tokenizer, chat_inputs(tokenizer, chat)) for chat in (CHAT, OTHER_CHAT)]
    assert got == [[{"generated_text": text}] for text in expected]
    assert expected[0] != expected[1]


def test_pipeline_of_several_samples(model, generator, tokenizer):
    arguments = {**SETTINGS, "do_sample": True, "temperature": 3.0, "top_k": 0, "num_return_sequences": 2}
    torch.manual_seed(0)
    got = generator(TEXTS[0], **arguments)
    torch.manual_seed(0)
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    output = model.generate(**inputs, **arguments)[:, inputs["input_ids"].shape[1] :]
    expected = [TEXTS[0] + text for text in tokenizer.decode(output, skip_special_tokens=True)]
    assert got == [{"generated_text": text} for text in expected]
    assert expected[0] != expected[1]


def test_pipeline_tells_the_statistics(model, generator, tokenizer):
    got = generator(TEXTS, do_sample=False, return_dict_in_generate=True, **SETTINGS)
    for text, (record,) in zip(TEXTS, got, strict=True):
        output = model.generate(**tokenizer(text, return_tensors="pt"), **SETTINGS, return_dict_in_generate=True)
        for name in ("forwards", "tokens_per_forward", "prefix_cacheability"):
            assert torch.tensor(record[name]).item() == output[name].item()  # a number or a list of one
    assert max(torch.tensor(record["tokens_per_forward"]).item() for (record,) in got) > 1


def test_pipeline_ends_at_a_sequence(model, generator, tokenizer):
    full = new_text(model, tokenizer, TEXTS[1])
    stop = next(character for character in full if character != full[0])
    expected = full[: full.index(stop) + 1]
    assert 1 < len(expected) < len(full)
    got = generator(TEXTS[1], do_sample=False, return_full_text=False, stop_sequence=stop, **SETTINGS)
    assert got == [{"generated_text": expected}]


def test_pipeline_ends_at_a_string(model, generator, tokenizer):
    full = [new_text(model, tokenizer, text) for text in TEXTS]
    stop = next(full[1][i : i + 2] for i in range(2, 20) if full[1][i : i + 2] not in full[0])
    expected = [text[: text.index(stop) + 2] if stop in text else text for text in full]
    assert expected != full and expected[0] == full[0]
    arguments = {**SETTINGS, "stop_strings": [stop], "tokenizer": tokenizer}
    got = generator(TEXTS, batch_size=3, do_sample=False, return_full_text=False, **arguments)
    assert got == [[{"generated_text": text}] for text in expected]


def test_pipeline_with_a_streamer(generator, tokenizer, capsys):
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    (got,) = generator(TEXTS[0], do_sample=False, return_full_text=False, streamer=streamer, **SETTINGS)
    assert capsys.readouterr().out == got["generated_text"] + "\n"
    assert len(got["generated_text"]) > 2


# --- Chat templates ---


def temperature_in(place: str) -> str:
    """
    The temperature.

    Args:
        place: A town.
    """
    return "12"


def test_a_chat_with_tools(model, tokenizer):
    inputs = chat_inputs(tokenizer, CHAT, tools=[temperature_in])
    prompt = tokenizer.decode(inputs["input_ids"][0])
    assert '"name": "temperature_in"' in prompt and prompt.endswith("in Oslo?\n[assistant]")
    shapes = counted(model)
    output = model.generate(**inputs, **SETTINGS)
    assert len(shapes) < output.shape[1] - inputs["input_ids"].shape[1]
    assert torch.equal(output, model.generate(tokenizer(prompt, return_tensors="pt")["input_ids"], **SETTINGS))
    text = tokenizer.decode(output[0], skip_special_tokens=True)
    assert text.removeprefix(prompt) != new_text(model, tokenizer, chat_inputs(tokenizer, CHAT))


def test_a_padded_batch_of_chats(model, tokenizer):
    chats = [CHAT, OTHER_CHAT, OTHER_CHAT + CHAT]
    inputs = chat_inputs(tokenizer, chats, padding=True)
    assert inputs["attention_mask"].sum(-1).unique().numel() == 3
    shapes = counted(model)
    output = model.generate(**inputs, **SETTINGS)
    assert len(shapes) < output.shape[1] - inputs["input_ids"].shape[1]
    rows = []
    for chat in chats:
        own = chat_inputs(tokenizer, chat)
        rows.append(model.generate(**own, **SETTINGS)[0, own["input_ids"].shape[1] :].tolist())
    assert same_rows(output, inputs["input_ids"].shape[1], rows)


def test_a_second_turn_goes_on_with_the_cache_of_the_first(model, tokenizer):
    inputs = chat_inputs(tokenizer, CHAT)
    first = model.generate(**inputs, **SETTINGS, return_dict_in_generate=True)
    num_cached = first[CACHE].get_seq_length()
    answer = tokenizer.decode(first.sequences[0, inputs["input_ids"].shape[1] :]).removesuffix("<eos>")
    turns = [*CHAT, {"role": "assistant", "content": answer}, {"role": "user", "content": "And in Rome?"}]
    inputs = chat_inputs(tokenizer, turns)
    same = inputs["input_ids"][:, :num_cached].eq(first.sequences[:, :num_cached])
    assert same.all() and num_cached > len(answer)
    expected = model.generate(**inputs, **SETTINGS)
    shapes = counted(model)
    got = model.generate(**inputs, **SETTINGS, **{CACHE: first[CACHE]})
    assert torch.equal(got, expected)
    assert shapes[0][1] == inputs["input_ids"].shape[1] - num_cached + 8, "the first turn is read again"


# --- Adapters ---


def lora(seed):
    torch.manual_seed(seed)
    return LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)


def texts_of(model, **arguments):
    return model.generate(**left_padded(PROMPTS[:3]), **SPECIAL, **{**SETTINGS, **arguments}).tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.2}, {"decoding": "blockwise"}], ids=str)
def test_an_adapted_model_writes_what_the_merged_one_writes(model, more):
    base = texts_of(model, **more)
    adapted = get_peft_model(model.double(), lora(0)).eval()
    shapes = counted(model)
    text = texts_of(adapted, **more)
    assert len(shapes) < len(text[0]) - max(map(len, PROMPTS[:3]))
    assert text != base
    assert texts_of(adapted.merge_and_unload(), **more) == text


@pytest.mark.full
def test_switching_adapters(model):
    base = texts_of(model)
    adapted = get_peft_model(model, lora(0), "first").eval()
    adapted.add_adapter("second", lora(1))
    adapted.eval()
    first = texts_of(adapted)
    adapted.set_adapter("second")
    second = texts_of(adapted)
    assert base != first != second != base
    adapted.set_adapter("first")
    assert texts_of(adapted) == first
    with adapted.disable_adapter():
        assert texts_of(adapted) == base
    assert texts_of(adapted) == first
    assert texts_of(adapted.unload()) == base


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning")
def test_adapters_without_a_peft_model(model):
    """transformers' own add_adapter."""
    try:
        check_peft_version(min_version=MIN_PEFT_VERSION)
    except ValueError as error:
        pytest.skip(str(error))
    base = texts_of(model)
    config = LoraConfig(target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    model.add_adapter(config, "first")
    first = texts_of(model)
    model.add_adapter(config, "second")
    model.set_adapter("second")
    second = texts_of(model)
    assert base != first != second != base
    model.set_adapter("first")
    assert texts_of(model) == first
    model.disable_adapters()
    assert texts_of(model) == base
    model.enable_adapters()
    assert texts_of(model) == first


def adapter_per_row(model, **arguments):
    adapted = get_peft_model(model, lora(0), "first").eval()
    adapted.add_adapter("second", lora(1))
    adapted.eval()
    names = ["second", "__base__", "first", "second", "first"]
    arguments = {**SPECIAL, **SETTINGS, **arguments}
    batch = adapted.generate(**left_padded(PROMPTS), **arguments, adapter_names=names)
    rows = [
        adapted.generate(**left_padded([prompt]), **arguments, adapter_names=[name])[0, len(prompt) :].tolist()
        for prompt, name in zip(PROMPTS, names, strict=True)
    ]
    assert same_rows(batch, max(map(len, PROMPTS)), rows)
    return rows


def test_an_adapter_per_row(model):
    arguments = {"eos_token_id": None, "entropy_threshold": 100.0, "window_size": 4}  # all rows end at once
    base = model.generate(**left_padded(PROMPTS), **{**SPECIAL, **SETTINGS, **arguments})
    base = base[:, max(map(len, PROMPTS)) :].tolist()
    rows = adapter_per_row(model, **arguments)
    assert [a == b for a, b in zip(rows, base, strict=True)] == [False, True, False, False, False]


def test_an_adapter_per_row_where_rows_end_at_different_times(model):
    rows = adapter_per_row(model, eos_token_id=list(range(2, 40)))
    assert len(set(map(len, rows))) > 1


# --- Offloading ---


def offloaded(checkpoint, kind, folder):
    if kind == "cpu_offload":
        return cpu_offload(load(checkpoint), execution_device=torch.device("cpu"))
    layers = {f"model.layers.{i}": "disk" if i else "cpu" for i in range(3)}
    others = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    return load(checkpoint, device_map={**layers, **others}, offload_folder=folder)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["cpu_offload", "disk"])
def test_an_offloaded_model(checkpoint, model, kind, tmp_path):
    other = offloaded(checkpoint, kind, tmp_path)
    assert any(weight.device.type == "meta" for weight in other.parameters())
    assert (other.device.type == "meta") == (kind == "cpu_offload")
    shapes = counted(other)
    assert texts_of(other) == texts_of(model)
    assert len(shapes) < SETTINGS["max_new_tokens"]
    for more in (
        {"repetition_penalty": 1.2, "min_new_tokens": 5},
        {"do_sample": True, "top_k": 1},
        {"use_cache": False},
        {"prefill_chunk_size": 4},
    ):
        assert texts_of(other, **more) == texts_of(model, **more), more


@pytest.mark.full
@pytest.mark.parametrize("kind", ["cpu_offload", "disk"])
def test_cache_and_scores_of_an_offloaded_model(checkpoint, model, kind, tmp_path):
    inputs = {**left_padded(PROMPTS[:3]), **SPECIAL, **SETTINGS, "return_dict_in_generate": True}
    other = offloaded(checkpoint, kind, tmp_path)
    got, expected = (m.generate(**inputs, output_scores=True) for m in (other, model))
    torch.testing.assert_close(got.scores, expected.scores)
    for layer, own in zip(got[CACHE].layers, expected[CACHE].layers, strict=True):
        torch.testing.assert_close((layer.keys, layer.values), (own.keys, own.values))
    assert torch.equal(*(continued(m, output) for m, output in ((other, got), (model, expected))))


# --- Contexts ---


def continued(model, output, mode=torch.no_grad, **arguments):
    """The text behind an earlier output of a batch with PROMPTS[:3], read from its cache."""
    mask = left_padded(PROMPTS[:3])["attention_mask"]
    mask = torch.cat([mask, torch.ones_like(output.sequences[:, mask.shape[1] :])], dim=-1)
    arguments = {**SPECIAL, **SETTINGS, CACHE: copy.deepcopy(output[CACHE]), **arguments}
    with mode():
        return model.generate(output.sequences, attention_mask=mask, **arguments)


MODES = {"inference": torch.inference_mode, "no grad": torch.no_grad, "grad": torch.enable_grad}


@pytest.mark.few(1)
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.2}], ids=str)
def test_gradient_modes_change_nothing(model, more):
    texts = {}
    for name, mode in MODES.items():
        with mode():
            texts[name] = texts_of(model, **more)
            output = model.generate(**left_padded(PROMPTS[:3]), **SPECIAL, **SETTINGS, **more, output_scores=True,
                                    return_dict_in_generate=True)  # fmt: skip
            assert not any(column.requires_grad for column in output.scores)
    assert texts["inference"] == texts["no grad"] == texts["grad"]
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


@pytest.mark.few(1)
@pytest.mark.parametrize("before, after", [("inference", "grad"), ("inference", "no grad"), ("grad", "inference")])
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


# --- Half precision ---


TOLERANCE = {torch.bfloat16: 0.15, torch.float16: 0.03}  # of the greatest score


def generated(model, **arguments):
    """The output for PROMPTS, the new text and its scores, `[batch, tokens, vocabulary]`."""
    arguments = {**SPECIAL, **SETTINGS, **arguments, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(**left_padded(PROMPTS), **arguments)
    return output, output.sequences[:, max(map(len, PROMPTS)) :], torch.stack(output.scores, dim=1)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.2}], ids=str)
def test_half_precision(model, dtype, more):
    output, text, scores = generated(model.to(dtype), **more)
    assert max(output.forwards) < text.shape[1]
    assert scores.dtype == torch.float32
    num_tokens = (output.tokens_per_forward * output.forwards).round()
    written = torch.arange(text.shape[1]) < num_tokens[:, None]
    assert scores.gather(-1, text[..., None])[..., 0][written].isfinite().all()
    assert scores[..., MASK][written].eq(-math.inf).all()
    for layer in output[CACHE].layers:
        assert layer.keys.dtype == layer.values.dtype == dtype


# Where a choice decides about no other, or only about those behind it.
@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [{"entropy_threshold": 100.0, "max_new_tokens": 8}, {"window_size": 1}], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_eager_and_sdpa_differ_at_near_ties_only(checkpoint, dtype, settings):
    settings = {**settings, "eos_token_id": None}
    (a, text, scores), (b, other_text, other_scores) = (
        generated(load(checkpoint, attn_implementation=attention).to(dtype), **settings)
        for attention in ("eager", "sdpa")
    )
    assert a.forwards.tolist() == b.forwards.tolist() == [1 if "max_new_tokens" in settings else 24] * len(PROMPTS)
    num_compared = 0
    for i, j in torch.cartesian_prod(torch.arange(len(text)), torch.arange(text.shape[1])).tolist():
        if "window_size" in settings and not torch.equal(text[i, :j], other_text[i, :j]):
            continue
        num_compared += 1
        difference = (scores[i, j] - other_scores[i, j]).nan_to_num().abs().max()
        assert difference < TOLERANCE[dtype] * scores[i, j, :MASK].abs().max()
        tie = scores[i, j, text[i, j]] - scores[i, j, other_text[i, j]]
        assert 0 <= tie <= 2 * difference
    assert num_compared > text.numel() / 3


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_cache_in_half_precision_is_continued(model, dtype):
    model.to(dtype)
    output = model.generate(**left_padded(PROMPTS[:3]), **SPECIAL | {"eos_token_id": None}, **SETTINGS,
                            return_dict_in_generate=True)  # fmt: skip
    again = continued(model, output, return_dict_in_generate=True, eos_token_id=None)
    assert {layer.values.dtype for layer in again[CACHE].layers} == {dtype}
    width = output.sequences.shape[1]
    fresh = continued(model, output, eos_token_id=None, **{CACHE: None}, return_dict_in_generate=True,
                      output_logits=True)  # fmt: skip
    logits = fresh.logits[0]
    best = logits.index_fill(-1, torch.tensor([MASK]), -torch.inf).max(-1).values
    chosen = logits.gather(1, again.sequences[:, width : width + 1])[:, 0]
    assert (best - chosen < TOLERANCE[dtype] * logits.abs().amax(-1)).all(), "another first token, and no near tie"


# --- Threads ---


class EndsWithAMultipleOfFive(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 5 == 0


class Listener:
    """A streamer that keeps what it is given."""

    def __init__(self):
        self.parts = []

    def put(self, value):
        self.parts.append(value.tolist())

    def end(self):
        self.parts.append("end")


@pytest.mark.full
def test_threads_with_different_arguments(model, tokenizer):
    cached = model.generate(**left_padded(PROMPTS[:3]), **SPECIAL | {"eos_token_id": None}, **SETTINGS,
                            return_dict_in_generate=True)  # fmt: skip
    plain = {**left_padded(PROMPTS), **SPECIAL, **SETTINGS}
    free = model.generate(**plain)[0, max(map(len, PROMPTS)) :]

    def streamed():
        listener = Listener()
        output = model.generate(torch.tensor([PROMPTS[2]]), **SETTINGS, streamer=listener)
        return [*output.tolist(), listener.parts]

    def with_scores():
        output = model.generate(**plain, output_scores=True, return_dict_in_generate=True)
        return output.sequences.tolist() + [[column.tolist() for column in output.scores]]

    calls = [
        lambda: model.generate(**plain, repetition_penalty=1.3).tolist(),
        lambda: model.generate(**plain, tokenizer=tokenizer, stop_strings=[tokenizer.decode(free[4:6])]).tolist(),
        streamed,
        lambda: model.generate(**plain, do_sample=True, top_k=1, repetition_penalty=1.1).tolist(),
        lambda: continued(model, cached, eos_token_id=None).tolist(),
        lambda: model.generate(**plain, stopping_criteria=[EndsWithAMultipleOfFive()], decoding="blockwise").tolist(),
        lambda: model.generate(**plain, decoding="autoregressive").tolist(),
        with_scores,
    ]
    alone = [call() for call in calls]
    assert all(alone[i] != alone[j] for i in range(8) for j in range(i))
    together = [None] * 8
    start = threading.Barrier(8)

    def work(k):
        start.wait()
        together[k] = [calls[(k + j) % 8]() for j in (0, 3)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [[alone[k], alone[(k + 3) % 8]] for k in range(8)]


# --- Ways to call ---


@pytest.mark.parametrize("num_rows", [1, 2])
def test_without_a_prompt_the_text_begins_with_the_bos_token(model, num_rows):
    shapes = counted(model)
    got = model.generate(**SETTINGS, num_return_sequences=num_rows, do_sample=num_rows > 1, top_k=1)
    assert len(shapes) < got.shape[1] - 1
    expected = model.generate(torch.tensor([[BOS]]), **SETTINGS)
    assert got.tolist() == expected.tolist() * num_rows
    other = model.generate(bos_token_id=7, **SETTINGS)
    assert other[0, 0] == 7 and other[0, 1:].tolist() != expected[0, 1:].tolist()


def test_input_ids_by_any_name(model):
    prompt = torch.tensor([PROMPTS[2]])
    expected = model.generate(prompt, **SETTINGS)
    assert expected.shape[1] > prompt.shape[1] and torch.equal(expected[:, : prompt.shape[1]], prompt)
    assert torch.equal(model.generate(input_ids=prompt, **SETTINGS), expected)
    assert torch.equal(model.generate(inputs=prompt, **SETTINGS), expected)
    assert torch.equal(model.generate(prompt.int(), **SETTINGS), expected)


@pytest.mark.parametrize("more", [{}, {"no_repeat_ngram_size": 3}], ids=str)
def test_end_tokens_of_any_type(model, more):
    prompt = torch.tensor([PROMPTS[2]])
    arguments = {**SETTINGS, **more, "pad_token_id": PAD}
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


def test_max_length_counts_the_prompt(model):
    inputs = {**left_padded(PROMPTS[:3]), **SPECIAL | {"eos_token_id": None}, "entropy_threshold": 1.0}
    width = inputs["input_ids"].shape[1]
    got = model.generate(**inputs, max_length=width + 7)
    assert got.shape == (3, width + 7)
    assert torch.equal(got, model.generate(**inputs, max_new_tokens=7))
    model.generation_config.max_length = width + 7
    assert torch.equal(model.generate(**inputs), got)


def test_a_generation_config_and_arguments(model):
    """The arguments of the call win, and the config stays as it was."""
    inputs = left_padded(PROMPTS)
    config = GenerationConfig(max_new_tokens=24, repetition_penalty=1.3, window_size=3, **SPECIAL)
    before = copy.deepcopy(vars(config))
    got = model.generate(**inputs, generation_config=config, window_size=5, entropy_threshold=1.0)
    more = {**SPECIAL, **SETTINGS, "repetition_penalty": 1.3}
    assert torch.equal(got, model.generate(**inputs, **more, window_size=5))
    assert vars(config) == before
    shapes = counted(model)
    model.generate(**inputs, generation_config=config)
    assert shapes[0] == (5, max(map(len, PROMPTS)) + 3)


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
        {"do_sample": True, "temperature": 0.7, "top_p": 0.9},
        {"repetition_penalty": 1.2},
        {"return_dict_in_generate": True, "output_scores": True},
        {"decoding": "blockwise", "window_size": 4},
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


def test_a_custom_loop_of_its_own(model):
    """Token by token, with the processors and criteria that it is handed."""

    def loop(model, input_ids, logits_processor, stopping_criteria, generation_config, last=None, **arguments):
        done = torch.zeros(len(input_ids), dtype=torch.bool)
        while not done.all():
            logits = model(input_ids, use_cache=False).logits[:, -1]
            tokens = logits_processor(input_ids, logits).argmax(-1)
            input_ids = torch.cat([input_ids, tokens[:, None]], dim=-1)
            done = stopping_criteria(input_ids, None)
        return input_ids if last is None else input_ids.index_fill(1, torch.tensor([input_ids.shape[1] - 1]), last)

    prompt = torch.tensor([PROMPTS[2]])
    arguments = {"max_new_tokens": 12, "repetition_penalty": 1.3}
    got = model.generate(prompt, **arguments, custom_generate=loop)
    assert torch.equal(got, model.generate(prompt, **arguments, decoding="autoregressive"))
    assert not torch.equal(got, model.generate(prompt, **arguments))
    filled = model.generate(prompt, **arguments, custom_generate=loop, last=7)
    assert filled[0].tolist() == [*got[0, :-1].tolist(), 7], "an argument of its own"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_the_model(model, copied):
    model.generation_config.update(window_size=6, entropy_threshold=1.0)
    arguments = {**left_padded(PROMPTS), **SPECIAL, "max_new_tokens": 24}
    model.generate(**arguments)
    other = copied(model)
    shapes, own_shapes = counted(other), counted(model)
    assert torch.equal(other.generate(**arguments), model.generate(**arguments))
    assert shapes == own_shapes and len(shapes) < 24
    other.generation_config.window_size = 3
    other.model.layers[1].mlp.down_proj.weight.data.neg_()
    assert not torch.equal(other.generate(**arguments, window_size=6), model.generate(**arguments))
    assert model.generation_config.window_size == 6


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda output: pickle.loads(pickle.dumps(output))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_the_output(model, copied):
    """With the cache: the copy is gone on with."""
    arguments = {**SPECIAL, **SETTINGS, "eos_token_id": None, "return_dict_in_generate": True, "output_scores": True}
    output = model.generate(**left_padded(PROMPTS[:3]), **arguments)
    other = copied(output)
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


def test_a_seed_fixes_several_samples(model):
    def run(seed):
        torch.manual_seed(seed)
        prompt = torch.tensor([PROMPTS[2]])
        return model.generate(
            prompt, **SETTINGS, do_sample=True, temperature=2.0, top_k=0, num_return_sequences=3
        ).tolist()

    samples = run(0)
    assert run(0) == samples != run(1)
    assert len({tuple(row) for row in samples}) == 3


# --- Token healing ---


def healed_by_hand(model, ids, words):
    """The last token chosen anew among the words that begin like it: 10 more for each of them, 1 more for itself."""
    *before, last = ids
    scores = logits_of(model)([*before, MASK], list(range(len(ids))))[-1]
    scores[MASK] = -math.inf
    begins = [i for i in range(3, MASK) if words.decode(i).startswith(words.decode(last))]
    scores[begins] += 10.0 * (len(begins) > 1)
    scores[last] += 1.0
    return [*before, scores.argmax().item()] if len(begins) > 1 else ids


def test_token_healing(model, words):
    prompts = [[40, 77, 15], [4, 50, 61, 130, 14], [90, 12], [33, 5], [21, 6, 71, 149]]
    inputs = left_padded(prompts)
    arguments = {**SPECIAL, **SETTINGS}
    healed = [healed_by_hand(model, prompt, words) for prompt in prompts]
    assert healed != prompts and healed[-1] == prompts[-1], "nothing to heal, or healed where no other word fits"
    got = model.generate(**inputs, **arguments, token_healing=True, tokenizer=words)
    assert torch.equal(got, model.generate(**left_padded(healed), **arguments))
    assert not torch.equal(got, model.generate(**inputs, **arguments))


def test_token_healing_refuses_prompts_that_it_makes_shorter(model, words):
    """It drops special tokens, and the mask no longer fits."""
    prompt = torch.tensor([[BOS, 40, 77, 15]])
    with pytest.raises(ValueError, match=r"attention_mask has shape \(1, 4\), input_ids \(1, 3\); pass"):
        model.generate(prompt, attention_mask=torch.ones_like(prompt), token_healing=True, tokenizer=words, **SETTINGS)
    with pytest.raises(ValueError, match="must pass the model's tokenizer"):
        model.generate(prompt, token_healing=True, **SETTINGS)
