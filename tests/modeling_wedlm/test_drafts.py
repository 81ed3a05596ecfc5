"""A draft adapter acts where the input is MASK and nowhere else, in every form of the forward."""

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch
from accelerate import cpu_offload
from draft_models import drafted, tiny_model, with_adapter
from helpers import EOS, MASK, PAD, left_padded, random_tokens
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from wedlm.generation.transformers_internals import CACHE
from wedlm.modeling_wedlm.drafts import MASKED
from wedlm.training.draft_collator import DraftCollator

FORMS = {"native": drafted, "PEFT": lambda *args, **fields: with_adapter(tiny_model(*args, **fields))}
TEXT, MASKS = 7, 4
IDS = torch.cat([random_tokens(3, TEXT), torch.full((3, MASKS), MASK)], dim=1)


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@torch.no_grad()
def plain(model):
    return model(input_ids=IDS).logits


@torch.no_grad()
def cached(model):
    cache = DynamicCache()
    parts = [model(input_ids=ids, **{CACHE: cache}).logits for ids in IDS.split([3, TEXT + MASKS - 3], dim=1)]
    return torch.cat(parts, dim=1)


@torch.no_grad()
def packed(model):
    """Two samples in a row, each of which ends in MASKs."""
    rows = torch.cat([IDS, IDS.roll(1, 0)], dim=1)
    positions = torch.arange(TEXT + MASKS).repeat(2)[None].expand(3, -1)
    return model(input_ids=rows, position_ids=positions).logits


@torch.no_grad()
def streams(model):
    """A batch of training: the memory stream is text."""
    sequence = {
        "input_ids": IDS[0, :TEXT].tolist(), "labels": IDS[0, :TEXT].tolist(), "sample_lengths": [TEXT],
        "sample_indices": [0],
    }  # fmt: skip
    batch = DraftCollator(MASK, window_size=3)([sequence])
    names = ("input_ids", "position_ids", "sample_ids", "stream_ids", "block_ids")
    return model(**{name: batch[name] for name in names}).logits


@torch.no_grad()
def reordered(model):
    """With a MASK in front of the text."""
    positions = torch.tensor([[TEXT + MASKS - 1, *range(TEXT + MASKS - 1)]]).expand(3, -1)
    mask = (positions[:, None] <= positions[..., None])[:, None]
    return model(input_ids=IDS.roll(1, 1), position_ids=positions, attention_mask=mask).logits


ROW = (IDS == MASK).tolist()[0]
IS_MASK = {plain: ROW, cached: ROW, packed: ROW * 2, reordered: [True, *ROW[:-1]]}


@pytest.mark.parametrize("flavour", ["qwen2 tied", "qwen3", "llama"])
@pytest.mark.parametrize("call", [plain, cached, packed, reordered, streams])
def test_logits_of_text_are_those_of_the_base(form, flavour, call):
    got, base = call(form(flavour)), call(tiny_model(flavour))
    masked = torch.arange(got.shape[1]) >= TEXT if call is streams else torch.tensor(IS_MASK[call])
    masked = masked.expand(got.shape[:2])
    assert torch.equal(got[~masked], base[~masked])
    assert (got[masked] - base[masked]).abs().max() > 0.3
    assert MASKED.is_text is None


def test_without_masks_nothing_changes(form):
    ids = random_tokens(2, 9)
    embeddings = tiny_model().get_input_embeddings()(ids)
    with torch.no_grad():
        assert torch.equal(form()(input_ids=ids).logits, tiny_model()(input_ids=ids).logits)
        # Embeddings do not say where MASK stands, so the adapter acts nowhere.
        given = form()(inputs_embeds=embeddings).logits
    assert torch.equal(given, tiny_model()(inputs_embeds=embeddings).logits)


@pytest.mark.full
def test_compiled_whole():
    torch.compiler.reset()
    model = FORMS["PEFT"]()
    expected = plain(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(plain(compiled), expected)
    base = torch.compile(tiny_model(), backend="eager", fullgraph=True)
    assert torch.equal(plain(compiled)[:, :TEXT], plain(base)[:, :TEXT])


def test_offloaded_weights(form):
    expected = plain(form())
    assert torch.equal(plain(cpu_offload(form(), execution_device="cpu")), expected)


def test_threads_on_one_model_do_not_disturb_each_other(form):
    model = form()
    inputs = [IDS.roll(shift, dims) for shift in range(4) for dims in (0, 1)]

    @torch.no_grad()
    def forward(input_ids):
        return model(input_ids=input_ids).logits

    expected = [forward(input_ids) for input_ids in inputs]
    with ThreadPoolExecutor(len(inputs)) as threads:
        for got, wanted in zip(threads.map(forward, inputs * 5), expected * 5, strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_with_checkpointing_are_those_without(form, use_reentrant):
    gradients = []
    for is_checkpointed in (False, True):
        model = form().train()
        if is_checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        model(input_ids=IDS, use_cache=False).logits.pow(2).sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and any("lora_B" in n or ".up" in n for n in gradients[0])
    for name, gradient in gradients[0].items():
        assert gradient.any() and torch.allclose(gradient, gradients[1][name], rtol=1e-4, atol=1e-4), name


# --- Decoding ---

PROMPTS = [[5, 6, 7], [9, 10, 11, 12, 13, 14], [20]]


def text(model, decoding, **settings):
    inputs = left_padded(PROMPTS) | {"max_new_tokens": 24, "eos_token_id": EOS, "pad_token_id": PAD}
    return model.double().generate(**inputs, decoding=decoding, **settings).tolist()


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.5}, {"cache_implementation": "static"}], ids=str)
def test_verified_text_is_that_of_the_base(form, settings):
    model, own_loop = form("llama"), {} if "cache_implementation" in settings else settings
    got = text(model, "verified", **settings)
    assert got == text(model, "autoregressive", **own_loop) == text(tiny_model("llama"), "autoregressive", **own_loop)


def test_streaming_decoding_uses_the_adapter(form):
    assert text(form(), "streaming") != text(tiny_model(), "streaming")


def test_draft_weights_that_a_checkpoint_lacks_are_zeros(tmp_path):
    """They are made on the meta device, where only the initialisation that transformers calls gives them values."""
    model = drafted()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    base = {name: weight for name, weight in weights.items() if "drafts" not in name and "mask_embedding" not in name}
    save_file(base, tmp_path / "model.safetensors", {"format": "pt"})
    with patch("torch.empty_like", lambda like, **kwargs: torch.full_like(like, float("nan"), **kwargs)):
        loaded = type(model).from_pretrained(tmp_path)
    drafts = {name: weight for name, weight in loaded.named_parameters() if name not in base}
    assert drafts.keys() == weights.keys() - base.keys() and not any(weight.any() for weight in drafts.values())
