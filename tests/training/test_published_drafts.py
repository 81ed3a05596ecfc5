"""Draft adapters that others have trained: LoRAs in PEFT's files, whose MASKs predict the token behind them."""

import json

import pytest
import torch
from decoded import steps_of_rows
from draft_models import fill, tiny_model, with_adapter
from helpers import EOS, PAD, left_padded
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from reference_decoder import decode_verified
from tiers import property_settings
from transformers import Qwen3Config, Qwen3ForCausalLM

import wedlm
from wedlm.checkpoints.load import attach_adapter
from wedlm.training.draft_lora import LAYERS

MASK, ROWS = 151, 160  # a row of the vocabulary, as in Qwen3's
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}


def base(**fields) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(**{**SHAPE, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": ROWS, **SPECIAL, **fields})
    model = Qwen3ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        model.lm_head.weight[MASK] = 0  # never the best token, as a row that no training has seen
    return model.double()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """In PEFT's format, with the scale of the published one."""
    folder = tmp_path_factory.mktemp("lora")
    model = get_peft_model(base(), LoraConfig(r=4, lora_alpha=8, target_modules=list(LAYERS), task_type="CAUSAL_LM"))
    fill(model)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def drafting(adapter):
    return wedlm.load_draft_adapter(base(), adapter, mask_token_id=MASK, shift=True)


PROMPTS = st.lists(st.lists(st.integers(3, 149), min_size=1, max_size=12), min_size=1, max_size=3)


@given(st.data())
@property_settings(60, deadline=None, derandomize=True)
def test_the_text_is_that_of_the_base_and_the_drafts_those_of_shifted_masks(drafting, data):
    """A slow reference makes each draft by a MASK that predicts the token behind it."""
    prompts, limit = data.draw(PROMPTS, "prompts"), data.draw(st.integers(1, 24), "max_new_tokens")
    size, cost = data.draw(st.sampled_from([1, 2, 4, 8])), data.draw(st.sampled_from([0, 0.1]))
    given_ = {**left_padded(prompts), **SPECIAL, "max_new_tokens": limit}
    expected = base().generate(**given_)
    more = {"window_size": size, "query_cost": cost, "return_dict_in_generate": True}
    with steps_of_rows(len(prompts)) as steps:
        got = drafting.generate(**given_, **more, custom_generate=wedlm.verified)
    assert torch.equal(got.sequences, expected)
    width, model = given_["input_ids"].shape[1], drafting.get_base_model()

    def forward(tokens, positions, seen):
        ids = torch.tensor([tokens])
        with torch.no_grad(), model.get_input_embeddings().drafts_at(ids):
            mask = torch.zeros(1, 1, len(tokens), len(tokens), dtype=torch.double)
            mask = mask.masked_fill(~torch.tensor([[seen]]), -torch.inf)
            return model(ids, position_ids=torch.tensor([positions]), attention_mask=mask, use_cache=False).logits[0]

    for row, prompt in enumerate(prompts):
        slow = decode_verified(forward, prompt, limit, MASK, [EOS], steps[row], size, masks_shift=True)
        assert got.sequences[row, width : width + len(slow.ids)].tolist() == slow.ids
        assert (got.forwards[row], got.verified_drafts[row].tolist()) == (slow.forwards, slow.verified)


def test_masks_without_a_shift_make_other_drafts(adapter, drafting):
    """And every MASK of a branch makes a draft where they shift."""
    given_ = {**left_padded([[5, 6, 7, 8]]), "max_new_tokens": 30, "eos_token_id": None, "pad_token_id": PAD}
    given_ |= {"window_size": 2, "query_cost": 0, "prompt_lookup_num_tokens": 0, "return_dict_in_generate": True}
    other = wedlm.load_draft_adapter(base(), adapter, mask_token_id=MASK, shift=False)
    both, sizes = [], []
    for model in (drafting, other):
        with steps_of_rows(1) as (steps,):
            both.append(model.generate(**given_, custom_generate=wedlm.verified))
        sizes.append({size for _, branches in steps for size in branches})
    assert torch.equal(both[0].sequences, both[1].sequences)
    assert 1 in sizes[0] and 1 not in sizes[1]


@pytest.mark.parametrize("more", [{}, {"do_sample": True, "temperature": 1.5}, {"repetition_penalty": 1.2}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_with_seeds_and_processors(adapter, more, dtype):
    """In bfloat16 as the fused base writes it, whose sums do not depend on the number of tokens."""
    own = wedlm.fuse(base().to(dtype))
    model = wedlm.fuse(wedlm.load_draft_adapter(base().to(dtype), adapter, mask_token_id=MASK, shift=True))
    given_ = {**left_padded([[5, 6, 7, 8, 9], [30, 31]]), **SPECIAL, "max_new_tokens": 20, **more}
    torch.manual_seed(1)
    expected = own.generate(**given_, custom_generate=wedlm.verified, window_size=1)
    torch.manual_seed(1)
    assert torch.equal(model.generate(**given_, custom_generate=wedlm.verified, query_cost=0), expected)


def test_without_the_gate_it_would_change_the_text(adapter, drafting):
    given_ = {**left_padded([[5, 6, 7, 8]]), **SPECIAL, "max_new_tokens": 20}
    plain = PeftModel.from_pretrained(base(), adapter).eval()
    assert not torch.equal(plain.generate(**given_), drafting.generate(**given_))
    assert torch.equal(drafting.generate(**given_), base().generate(**given_))


def test_it_is_saved_as_a_draft_adapter(drafting, tmp_path):
    drafting.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (fields["peft_type"], fields["mask_token_id"], fields["mask_shift"]) == ("WEDLM_DRAFT", MASK, True)
    again = PeftModel.from_pretrained(base(), tmp_path).eval()
    given_ = {**left_padded([[5, 6, 7, 8]]), **SPECIAL, "max_new_tokens": 20, "return_dict_in_generate": True}
    one, other = (model.generate(**given_, custom_generate=wedlm.verified) for model in (drafting, again))
    assert torch.equal(one.sequences, other.sequences) and torch.equal(one.verified_drafts, other.verified_drafts)
    batch = [[5, 6, 7, 8], [30, 31], [9] * 5]
    texts = again.generate_batch(batch, decoding="verified", max_new_tokens=12, **SPECIAL, progress_bar=False)
    for tokens, text in zip(batch, (texts[key] for key in sorted(texts)), strict=True):
        alone = base().generate(torch.tensor([tokens]), **SPECIAL, max_new_tokens=12)[0, len(tokens) :]
        assert text.generated_tokens == alone.tolist()


def test_a_wedlm_contains_a_shifted_adapter_too(tmp_path):
    """The model's own form drafts as PEFT's does, and does not stream."""
    trained = with_adapter(tiny_model(), mask_shift=True)
    trained.save_pretrained(tmp_path)
    native = tiny_model()
    attach_adapter(native, tmp_path)
    given_ = {**left_padded([[5, 6, 7, 8]]), **SPECIAL, "max_new_tokens": 20, "return_dict_in_generate": True}
    one, other = (model.generate(**given_, decoding="verified", query_cost=0) for model in (trained, native))
    assert torch.equal(one.sequences, other.sequences) and torch.equal(one.verified_drafts, other.verified_drafts)
    assert native.config.drafts["mask_shift"]
    with pytest.raises(ValueError, match="those of this model predict the token behind them .*; pass decoding="):
        native.generate(**given_, decoding="streaming")


def test_a_scale_of_rslora_is_taken_over(adapter, drafting, tmp_path):
    """lora_alpha / sqrt(r), which is 2 as that of the other."""
    folder = changed(adapter, tmp_path / "other", use_rslora=True, lora_alpha=4)
    other = wedlm.load_draft_adapter(base(), folder, mask_token_id=MASK, shift=True)
    scales = [model.get_base_model().model.layers[0].mlp.up_proj.scaling["default"] for model in (drafting, other)]
    assert scales == [2.0, 2.0]


def changed(adapter, folder, **fields):
    folder.mkdir()
    for file in adapter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "arguments", "sentence"),
    [
        ({}, {"mask_token_id": None}, "mask_token_id=None: the files of a LoRA do not say it, .*; pass it as"),
        ({}, {"shift": None}, "shift=None: the files"),
        ({}, {"mask_token_id": ROWS}, f"mask_token_id={ROWS} of the draft adapter does not fit .* {ROWS} rows"),
        ({"modules_to_save": ["embed_tokens"]}, {}, r"modules_to_save=\['embed_tokens'\] of the adapter .* is more"),
        ({"use_dora": True}, {}, "use_dora=True of the adapter"),
        (
            {"target_modules": ["q_proj", "lm_head"]},
            {},
            r"target_modules=\{'lm_head'\} are not .*; pass .*an adapter of these",
        ),
        ({"r": 8}, {}, "The adapter .* does not fit this model .*; load it into its own base"),
        ({"peft_type": "IA3"}, {}, "is not a LoRA; pass a LoRA"),
    ],
    ids=str,
)
def test_what_cannot_draft_is_refused_and_leaves_the_model(adapter, tmp_path, fields, arguments, sentence):
    if fields.get("peft_type") == "IA3":
        fields = {**fields, "target_modules": ["q_proj"]}
    folder, model = changed(adapter, tmp_path / "other", **fields), base()
    with pytest.raises(ValueError, match=sentence):
        wedlm.load_draft_adapter(model, folder, **{"mask_token_id": MASK, "shift": True, **arguments})
    given_ = {**left_padded([[5, 6, 7, 8]]), **SPECIAL, "max_new_tokens": 8}
    assert torch.equal(model.generate(**given_), base().generate(**given_))


def test_fields_that_say_nothing_are_no_reason_to_refuse(adapter, tmp_path):
    """Other libraries write an empty list, or null, where PEFT writes its default."""
    folder = changed(adapter, tmp_path / "other", modules_to_save=[], loftq_config=None, layers_pattern=[])
    assert wedlm.load_draft_adapter(base(), folder, mask_token_id=MASK, shift=True)


def test_an_adapter_of_another_base_is_refused(adapter):
    with pytest.raises(ValueError, match="does not fit this model .*; load it into its own base"):
        wedlm.load_draft_adapter(base(hidden_size=64), adapter, mask_token_id=MASK, shift=True)
