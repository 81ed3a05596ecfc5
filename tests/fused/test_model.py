"""A fused model predicts what the model predicts, whatever is done to it, and is given back as it was."""

import pickle
from copy import deepcopy
from functools import partial
from tempfile import TemporaryDirectory

import pytest
import torch
from accelerate import cpu_offload
from draft_models import drafted, fill, tiny_model, with_adapter
from fused_models import MODELS, WITH_MASKS, assert_close, cached, logits, stock
from helpers import CHECKPOINTS, EOS, PAD, PROMPTS, left_padded, load, random_tokens
from peft import LoraConfig, get_peft_model
from recorded_graph import captures_on_cpu
from stock_checkpoints import files_of
from stock_families import stock as of_family
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from transformers import BitsAndBytesConfig, DynamicCache, Gemma2Config, Gemma2ForCausalLM, StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import wedlm
from wedlm import DraftLoraConfig, WeDLMForCausalLM
from wedlm.fused import model as fused_model
from wedlm.fused import product
from wedlm.fused.model import decoder_layers, product_of
from wedlm.fused.native import SET
from wedlm.generation import static_steps
from wedlm.generation.transformers_internals import CACHE

PRODUCT = SET or "torch"
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}
WEDLM = [name for name in MODELS if "stock" not in name]
each_model = pytest.mark.parametrize("name", MODELS)
some_models = pytest.mark.parametrize("name", ["qwen2 tied", "drafted", "PEFT on some layers", "stock mistral"])


FORWARDS = {
    "masks": logits,
    "many": lambda model: logits(model, WITH_MASKS.repeat(2, 3)),
    "long": lambda model: logits(model, WITH_MASKS.repeat(1, 9)),
    "dynamic cache": lambda model: cached(model, DynamicCache(config=model.config)),
    "static cache": lambda model: cached(model, StaticCache(config=model.config, max_cache_len=48)),
    "packed": lambda model: logits(model, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1]]), use_cache=False),
}
each_forward = pytest.mark.parametrize("forward", FORWARDS)


def distance(one, other):
    return (one.double() - other.double()).norm()


# --- The same predictions ---


@each_model
@each_forward
def test_a_fused_model_predicts_the_same(name, forward):
    model = MODELS[name]()
    wanted = FORWARDS[forward](model)
    assert wedlm.fuse(model) is model
    assert_close(FORWARDS[forward](model), wanted)
    assert product_of(model) == PRODUCT, "no layer has fallen back"


@pytest.mark.skipif(SET is None, reason="torch multiplies")
@pytest.mark.parametrize("name", [name for name in MODELS if "sliding" not in name])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_prediction_is_bit_by_bit_the_same_whatever_stands_behind(name, dtype):
    model, cache = wedlm.fuse(MODELS[name]().to(dtype)), DynamicCache()
    one_by_one = [logits(model, token, **{CACHE: cache}) for token in WITH_MASKS[:1].split(1, dim=1)]
    assert torch.equal(torch.cat(one_by_one, dim=1), logits(model, WITH_MASKS[:1]))


@pytest.mark.parametrize("name", ["drafted", "stock mistral"])
def test_an_attention_function_is_called_with_the_same(name, monkeypatch):
    """Flash attention reads the window, and where samples begin."""
    called = []

    def attention(module, query, key, value, attention_mask, position_ids=None, sliding_window=None, **kwargs):
        called.append([query, key, value, attention_mask, position_ids, sliding_window, kwargs["scaling"]])
        return query.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", attention)
    inputs = {"position_ids": torch.arange(9)[None], "use_cache": False}
    for model in (MODELS[name](), wedlm.fuse(MODELS[name]())):
        model.config.sliding_window = 3  # no field of Llama
        logits(model, **inputs)
    middle = len(called) // 2
    for plain, fused in zip(called[:middle], called[middle:], strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


# --- The same texts ---


def texts(model, **arguments):
    torch.manual_seed(7)
    settings = {"max_new_tokens": 24, "window_size": 6, **SPECIAL, **arguments}
    return model.generate(**left_padded(PROMPTS), **settings).tolist()


@pytest.mark.skipif(SET is None, reason="torch multiplies")
@pytest.mark.parametrize("name", WEDLM)
def test_in_bfloat16_a_verified_text_is_that_of_decoding_token_by_token(name):
    """Rounding decides nothing, because each prediction is computed as it is token by token."""
    model = wedlm.fuse(MODELS[name]().bfloat16())
    for prompt in PROMPTS:
        arguments = {"max_new_tokens": 60, "window_size": 8, "query_cost": 0, **SPECIAL}
        wanted, got = (
            model.generate(torch.tensor([prompt]), decoding=decoding, **arguments).tolist()
            for decoding in ("autoregressive", "verified")
        )
        assert got == wanted


@pytest.mark.parametrize("name", ["qwen2 tied", "drafted", "PEFT on some layers"])
@pytest.mark.parametrize(
    "settings",
    [
        {"decoding": "autoregressive", "do_sample": True, "top_k": 20},
        {"decoding": "blockwise", "entropy_threshold": 1.0},
        {"decoding": "verified", "cache_implementation": "static"},
        {"decoding": "streaming", "prefill_chunk_size": 5, "do_sample": True},
    ],
    ids=str,
)
def test_texts_are_those_of_the_model(name, settings):
    model = MODELS[name]()
    wanted = texts(model, **settings)
    assert texts(wedlm.fuse(model), **settings) == wanted


def test_a_running_batch_writes_what_the_model_writes():
    model = load(CHECKPOINTS / "q3")
    model.generation_config.update(max_new_tokens=20, decoding="verified", **SPECIAL)
    wanted = [model.generate(torch.tensor([tokens]))[0, len(tokens) :].tolist() for tokens in PROMPTS]
    wedlm.fuse(model)
    outputs = model.generate_batch(PROMPTS).values()
    assert [output.generated_tokens for output in outputs] == wanted
    assert product_of(model) == PRODUCT


# --- Changed after it was fused ---


def trained(model):
    """After a step of an optimizer."""
    model.requires_grad_(True).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(WITH_MASKS, labels=WITH_MASKS).loss.backward()
    optimizer.step()
    return model.eval()


def with_other_weights(model, **options):
    torch.manual_seed(3)
    weights = {name: torch.randn_like(weight) * 0.3 for name, weight in model.state_dict().items()}
    model.load_state_dict(weights, **options)
    return model


def resized(model):
    torch.manual_seed(3)
    model.resize_token_embeddings(170, mean_resizing=False)
    return model


def with_other_part(model, name):
    """With new modules or weights in place of those of a layer, by a path below it."""
    for seed, layer in enumerate(model.get_decoder().layers):
        torch.manual_seed(seed)
        path, _, last = name.rpartition(".")
        owner = layer.get_submodule(path)
        part = deepcopy(getattr(owner, last))
        for weight in [part] if isinstance(part, nn.Parameter) else part.parameters():
            nn.init.normal_(weight, std=0.3)
        setattr(owner, last, part)
    return model


def with_other_epsilons(model):
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 0.5
    return model


def cut(model):
    """Without its first layer, and then with other weights."""
    model.model.layers = model.model.layers[1:]
    return with_other_part(model, "self_attn.k_proj.weight")


def with_lora(model):
    torch.manual_seed(3)
    settings = {"r": 2, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
    return get_peft_model(model, LoraConfig(**settings)).eval()


CHANGES = {
    "cast": lambda model: model.bfloat16(),
    "in float64": lambda model: model.double(),
    "trained": trained,
    "loaded": with_other_weights,
    "assigned": partial(with_other_weights, assign=True),
    "resized": resized,
    "a plain LoRA": with_lora,
    "a merged LoRA": lambda model: with_lora(model).merge_and_unload(),
    "other weights": partial(with_other_part, name="self_attn.k_proj.weight"),
    "another MLP": partial(with_other_part, name="mlp"),
    "another norm": partial(with_other_part, name="input_layernorm"),
    "other epsilons": with_other_epsilons,
    "cut": cut,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_fused_model_is_changed_like_any_other(change):
    plain, fused = MODELS["qwen3 tied"](), wedlm.fuse(MODELS["qwen3 tied"]())
    before = logits(fused)
    plain, fused = CHANGES[change](plain), CHANGES[change](fused)
    wanted, got = logits(plain), logits(fused)
    assert change in ("in float64", "resized") or distance(wanted, before) > 1e-3 * before.norm()
    assert_close(got, wanted, 0.1 if wanted.dtype == torch.bfloat16 else 1e-4)
    assert product_of(fused) == (None if change == "a plain LoRA" else PRODUCT)


@some_models
def test_autocast_and_eager_attention_take_the_forward_of_the_model(name):
    plain, fused = MODELS[name](), wedlm.fuse(MODELS[name]())
    logits(fused)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(logits(fused), logits(plain))
    for model in (plain, fused):
        model.set_attn_implementation("eager")  # it returns its weights
    with torch.no_grad():
        wanted, got = (model(WITH_MASKS, output_attentions=True) for model in (plain, fused))
    assert_close(got.logits, wanted.logits)
    assert len(got.attentions) == 2 and all(map(torch.equal, got.attentions, wanted.attentions))
    fused.set_attn_implementation("sdpa")
    logits(fused)
    assert product_of(fused) == PRODUCT


# --- Draft adapters of PEFT ---


def second(model):
    model.add_adapter("second", DraftLoraConfig(r=3, lora_alpha=9))
    fill(model, "second", seed=5)
    return model.eval()


def with_active(model, name):
    model.base_model.set_adapter(name)
    return model


def replaced(model):
    """With an adapter that has the name of one that was deleted."""
    with_active(second(model), "second").delete_adapter("default")
    logits(model)
    model.add_adapter("default", DraftLoraConfig(r=4, lora_alpha=16))
    fill(model, seed=9)
    return with_active(model, "default").eval()


def rescaled(model):
    for layer in model.modules():
        if hasattr(layer, "set_scale"):
            layer.set_scale("default", 3.0)
    return model


def filled(model):
    fill(model, seed=9)
    return model


def disabled(model):
    model.base_model.disable_adapter_layers()
    return model


def enabled_again(model):
    logits(disabled(model))
    model.base_model.enable_adapter_layers()
    return model


ADAPTER_CHANGES = {
    "disabled": disabled,
    "enabled again": enabled_again,
    "a second one waits": second,
    "both act": lambda model: with_active(second(model), ["default", "second"]),
    "replaced": replaced,
    "rescaled": rescaled,
    "other weights": filled,
    "trained": trained,
    "unloaded": lambda model: model.unload(),
}
BEFORE_MASKS = [(0, slice(0, 3)), (1, slice(0, 5))]


@pytest.mark.parametrize("change", ADAPTER_CHANGES)
@pytest.mark.parametrize("fused_first", [True, False], ids=["before the adapter", "with the adapter"])
def test_a_draft_adapter_acts_where_the_input_is_mask(change, fused_first):
    plain, fused = with_adapter(tiny_model()), tiny_model()
    fused = with_adapter(wedlm.fuse(fused)) if fused_first else wedlm.fuse(with_adapter(fused))
    assert_close(logits(fused), logits(plain))
    plain, fused = ADAPTER_CHANGES[change](plain), ADAPTER_CHANGES[change](fused)
    got = logits(fused)
    assert_close(got, logits(plain))
    assert product_of(fused) == PRODUCT
    base = logits(tiny_model().to(got.dtype)) if change != "trained" else got
    for place in BEFORE_MASKS:
        assert_close(got[place], base[place])


# --- Copied, saved, and given back ---


@some_models
def test_the_weights_are_kept_once(name):
    model = wedlm.fuse(MODELS[name]())
    logits(model)
    for each in (model, deepcopy(model)):
        logits(each)
        storages = {weight.untyped_storage().data_ptr(): weight.untyped_storage() for weight in each.parameters()}
        assert sum(storage.nbytes() for storage in storages.values()) == sum(w.nbytes for w in each.parameters())
        for _, layer in decoder_layers(each):
            assert all(merged.weight.untyped_storage().data_ptr() in storages for merged in layer.fused.merged)


@pytest.mark.parametrize("name", ["drafted", "PEFT"])
@pytest.mark.parametrize(
    "copy", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copied", "pickled"]
)
def test_a_copy_is_independent(name, copy):
    model = wedlm.fuse(MODELS[name]())
    wanted = logits(model)
    other = copy(model)
    assert torch.equal(logits(other), wanted) and product_of(other) == PRODUCT
    for weight in other.parameters():
        nn.init.zeros_(weight)
    assert torch.equal(logits(model), wanted) and not logits(other).any()


@some_models
def test_it_is_saved_as_the_model_is(name, tmp_path):
    model = MODELS[name]()
    model.save_pretrained(tmp_path / "plain")
    logits(wedlm.fuse(model))
    model.save_pretrained(tmp_path / "fused")
    assert files_of(tmp_path / "fused") == files_of(tmp_path / "plain")


@some_models
def test_unfused_it_is_the_model_as_it_was(name):
    model = MODELS[name]()
    weights, wanted = deepcopy(model.state_dict()), logits(model)
    logits(wedlm.fuse(wedlm.fuse(model)))
    assert wedlm.unfuse(model) is model and product_of(model) is None
    assert torch.equal(logits(model), wanted)
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, weights[key]) and weight.untyped_storage().nbytes() == weight.nbytes
    assert not any("forward" in vars(module) for module in model.modules())


def test_in_inference_mode():
    wanted, fused = logits(drafted()), wedlm.fuse(drafted())
    with torch.inference_mode():
        assert_close(fused(WITH_MASKS).logits, wanted)
    assert_close(logits(fused), wanted)


# --- What stays as it is ---


@pytest.fixture
def warnings(monkeypatch):
    said = []
    monkeypatch.setattr(fused_model.logger, "warning", said.append)
    return said


def gemma2():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return Gemma2ForCausalLM(Gemma2Config(**sizes, num_key_value_heads=2, head_dim=8, vocab_size=160)).eval()


def offloaded():
    return cpu_offload(stock("llama"), execution_device=torch.device("cpu"))


def quantized():
    with TemporaryDirectory() as folder:
        tiny_model(hidden_size=64, intermediate_size=64, head_dim=32).save_pretrained(folder)
        config = BitsAndBytesConfig(load_in_4bit=True)
        return WeDLMForCausalLM.from_pretrained(folder, quantization_config=config).eval()


ALL = "model.layers.0 stays as it is (2 such layers in all): "
FAMILIES = "LlamaDecoderLayer, MistralDecoderLayer, Qwen2DecoderLayer, Qwen3DecoderLayer, WeDLMDecoderLayer"
OTHERS = {
    "other layers": (gemma2, f"{ALL}Gemma2DecoderLayer is none of {FAMILIES}."),
    "another activation": (partial(stock, "llama", hidden_act="gelu"), f"{ALL}its activation is gelu."),
    "a plain LoRA": (lambda: with_lora(stock("llama")), f"base_model.model.{ALL}it has a Linear, and no plain linear"),
    "offloaded": (offloaded, f"{ALL}accelerate moves its weights."),
    "bitsandbytes": (quantized, f"{ALL}it has a Linear4bit, and no plain linear layer."),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_cannot_be_fused_stays_as_it_is(name, warnings):
    make, said = OTHERS[name]
    model, ids = make(), random_tokens(2, 9)
    wanted = logits(model, ids)
    assert_close(logits(wedlm.fuse(model), ids), wanted)
    assert warnings[0].startswith(said) and len(warnings) == 1 and product_of(model) is None


@pytest.mark.parametrize("part", ["mlp.gate_proj", "self_attn.k_norm"])
def test_weights_of_several_dtypes_stay_apart(part, warnings):
    model = stock("qwen3")
    for layer in model.model.layers:
        layer.get_submodule(part).double()
    assert product_of(wedlm.fuse(model)) is None
    assert warnings == [f"{ALL}its weights have several dtypes or devices."]


def test_the_other_layers_are_fused(warnings):
    model = stock("llama")
    model.model.layers[0].self_attn.v_proj.bias = nn.Parameter(torch.ones(16))
    wanted = logits(model)
    assert_close(logits(wedlm.fuse(model)), wanted)
    assert warnings == [
        "model.layers.0 stays as it is (1 such layers in all): of its projections only some have a bias."
    ]
    assert product_of(model) == PRODUCT


def test_compiled_code_is_one_graph_with_the_operator():
    model, called = wedlm.fuse(tiny_model()), []

    def backend(graph, inputs):
        called.extend(node.target for node in graph.graph.nodes if "wedlm.product" in str(node.target))
        return graph

    torch.compiler.reset()
    with torch.no_grad():
        got = torch.compile(model.forward, backend=backend, fullgraph=True)(WITH_MASKS, use_cache=False).logits
    assert_close(got, logits(model))
    assert len(called) == (2 * 4 + 1 if SET else 0), "four products in each layer, and the head"


@pytest.mark.parametrize("function, model", [(wedlm.fuse, "my-wedlm"), (wedlm.unfuse, torch.nn.Linear(2, 2))])
def test_what_is_no_model_is_refused(function, model):
    with pytest.raises(ValueError, match=f"model is a {type(model).__name__}, .*; load it by AutoModelForCausalLM"):
        function(model)


class Operators(TorchDispatchMode):
    """Counts operators that read or write memory."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        memory = (torch.ops.aten.detach, torch.ops.aten.new_empty, torch.ops.aten._unsafe_view)
        self.number += not func.is_view and func.overloadpacket not in memory
        return func(*args, **(kwargs or {}))


# The operators of a decoder layer in a captured step, an RMS norm counted as one; two of stock models' repeat keys.
LAYERS = {
    "Llama": (lambda: of_family("Llama"), 38),
    "Llama, fused": (lambda: wedlm.fuse(deepcopy(of_family("Llama"))), 19),
    "Llama, fused with an adapter": (lambda: wedlm.fuse(with_adapter(deepcopy(of_family("Llama")))), 31),
    "Qwen3, fused": (lambda: wedlm.fuse(deepcopy(of_family("Qwen3"))), 22),
    "WeDLM, fused": (lambda: wedlm.fuse(tiny_model()), 22),
    "WeDLM, fused with drafts": (lambda: wedlm.fuse(drafted()), 34),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_of_a_captured_step_has_few_operators(kind, monkeypatch):
    make, most = LAYERS[kind]
    numbers, rms_norm, counted = [], product.rms_norm, Operators()

    def norm(*arguments):
        counted.number += 1
        with _disable_current_modes():
            return rms_norm(*arguments)

    monkeypatch.setattr(product, "rms_norm", norm)
    with captures_on_cpu():
        model = make()
        layer = getattr(model, "get_base_model", lambda: model)().model.layers[0]
        forward = layer.forward

        def watched(*args, **kwargs):
            counted.number = 0
            with counted:
                output = forward(*args, **kwargs)
            numbers.append(counted.number)
            return output

        layer.forward = watched
        arguments = {"custom_generate": wedlm.verified, "query_cost": 0, "cache_implementation": "static"}
        arguments |= {"max_new_tokens": 12, "window_size": 4, "pad_token_id": 0, "eos_token_id": None}
        static_steps.CAPTURES.pop("cpu")  # so that the layer is called in every step
        for _ in range(2):  # The first call also tries out the model.
            numbers.clear()
            model.generate(torch.tensor([[5, 6, 7] * 5]), **arguments)
    assert max(numbers[1:]) == most


@pytest.mark.skipif(SET is None, reason="torch multiplies")
@pytest.mark.parametrize("ids", [WITH_MASKS[:1, :1], WITH_MASKS], ids=["a token", "with MASKs"])
def test_a_forward_has_few_operators(ids):
    """The calls of C are left out."""
    numbers = []
    for model in (drafted(), wedlm.fuse(drafted())):
        logits(model, ids)  # puts the draft products together
        with Operators() as operators:
            logits(model, ids, use_cache=False)
        numbers.append(operators.number)
    assert numbers[0] > 5 * numbers[1], numbers
