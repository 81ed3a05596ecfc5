"""The kinds of models that users have, each small: how it is saved and loaded, and the text that it must write."""

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
import transformers
from draft_models import fill, tiny_model
from helpers import EOS, PAD, logits_of
from peft import PeftModel, get_peft_model
from reference_decoder import decode
from stock_families import FITTING, SHARED
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import wedlm
from wedlm import DraftLoraConfig, convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.generation.model_kind import is_stock
from wedlm.serving.grammars import Grammars

TOKENS = 159  # of the tokenizer below; a WeDLM has MASK behind them
NEW_TOKENS = 12
TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool.function.name }} {% endfor -%}
{%- for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor -%}
{%- if add_generation_prompt %}[assistant]{% endif -%}
{#- answers may hold <tool_call>...</tool_call> -#}"""


def one_character_each() -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each character, so that every text can be read."""
    vocabulary = {"<pad>": PAD, "<bos>": 1, "<eos>": EOS, "\n": 3}
    letters = [*map(chr, range(32, 127)), *map(chr, range(192, 192 + TOKENS - 4 - 95))]
    vocabulary |= {letter: 4 + i for i, letter in enumerate(letters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="\n"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "bos", "eos")}
    return PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", chat_template=TEMPLATE, **names)


# --- What stands in a folder ---


@cache
def stock_folder(root: Path, family: str) -> Path:
    """A checkpoint of a family of transformers with random weights."""
    folder = root / family
    fields = SHARED | {"vocab_size": TOKENS + 1, "max_position_embeddings": 512, "tie_word_embeddings": False}
    fields |= FITTING[family]
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**fields))
    model.save_pretrained(folder)
    one_character_each().save_pretrained(folder)
    return folder


@cache
def wedlm_folder(root: Path) -> Path:
    model = tiny_model(max_position_embeddings=512, intermediate_size=64)  # whole blocks of weights
    model.generation_config.update(decoding="verified", entropy_threshold=3.0, pad_token_id=PAD, eos_token_id=EOS)
    model.save_pretrained(root / "wedlm")
    one_character_each().save_pretrained(root / "wedlm")
    return root / "wedlm"


@cache
def converted_folder(root: Path) -> Path:
    return convert_to_wedlm(stock_folder(root, "Qwen3"), root / "converted").folder


@cache
def adapter_folder(root: Path, base: Path) -> Path:
    """A draft adapter of large random weights."""
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(base), DraftLoraConfig(r=4, lora_alpha=16))
    fill(adapted)
    adapted.save_pretrained(root / f"{base.name}-adapter")
    return root / f"{base.name}-adapter"


# --- How Python code loads it ---


def auto(folder: Path, **arguments) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, **arguments)


def by_peft(base: Path, adapter: Path) -> PeftModel:
    return PeftModel.from_pretrained(auto(base), adapter)


def by_load_adapter(base: Path, adapter: Path) -> PreTrainedModel:
    model = auto(base)
    model.load_adapter(adapter)
    return model


ALL = ("default", "verified", "autoregressive", "streaming", "blockwise")
SAME_TEXT = ALL[:3]


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    `base` returns the folder of the model, and `adapter` that of its draft adapter, which then is the MODEL of
    commands. `load` gets both. `decodings` are those that it offers, where "default" names none.
    """

    name: str
    base: Callable[[Path], Path]
    adapter: Callable[[Path, Path], Path] | None = None
    load: Callable[[Path, Path | None], PreTrainedModel] = lambda base, adapter: auto(base)
    decodings: tuple[str, ...] = ALL
    options: tuple[str, ...] | None = ()  # of commands; None: commands have no such model
    is_its_own_reference: bool = False  # its weights are no other model's, so its text token by token is compared
    rounds: bool = False  # so much that its text depends on the shapes of its forwards (docs/serve.md)

    @property
    def is_stock(self) -> bool:
        return "streaming" not in self.decodings and self.base is not converted_folder


def demo(root: Path) -> Path:
    return DEMO_FOLDER


def llama(root: Path) -> Path:
    return stock_folder(root, "Llama")


@cache
def plain_demo(root: Path) -> Path:
    return convert_to_autoregressive(DEMO_FOLDER, root / "plain demo").folder


def fused(base: Path, adapter: Path | None) -> PreTrainedModel:
    return wedlm.fuse(auto(base) if adapter is None else by_peft(base, adapter))


def q8_0(base: Path, _: None) -> PreTrainedModel:
    return wedlm.fuse(auto(base), weights="q8_0")


def bfloat16(base: Path, _: None) -> PreTrainedModel:
    """(Of trained weights: where two tokens are nearly as likely, rounding decides.)"""
    return wedlm.fuse(auto(base, dtype=torch.bfloat16))


ROUNDED = {"load": bfloat16, "options": ("--dtype", "bfloat16"), "is_its_own_reference": True, "rounds": True}
Q8_0 = {"load": q8_0, "options": None, "is_its_own_reference": True}  # no command takes it
FUSED = {"load": fused, "options": None}  # a command fuses by itself
KINDS_BY_LINE = {  # of the table in docs/reference/generate.md
    "a WeDLM": [
        Kind("demo", demo),
        Kind("demo, fused", demo, **FUSED),
        Kind("demo, bfloat16", demo, **ROUNDED),
        Kind("WeDLM, q8_0", wedlm_folder, **Q8_0),
    ],
    "a WeDLM with a draft adapter": [
        Kind("WeDLM with adapter, PeftModel", wedlm_folder, adapter_folder, by_peft),
        Kind("WeDLM with adapter, Auto", wedlm_folder, adapter_folder, lambda _, adapter: auto(adapter), options=None),
        Kind("WeDLM with adapter, load_adapter", wedlm_folder, adapter_folder, by_load_adapter, options=None),
    ],
    "a converted model that was not trained": [Kind("converted", converted_folder)],
    "a converted model with a draft adapter": [
        Kind("converted with adapter", converted_folder, adapter_folder, by_peft, SAME_TEXT),
    ],
    "Llama, Mistral, Qwen2 or Qwen3": [
        Kind("Llama", llama, decodings=SAME_TEXT),
        Kind("Llama, fused", llama, decodings=SAME_TEXT, **FUSED),
        Kind("Llama, q8_0", llama, decodings=SAME_TEXT, **Q8_0),
        Kind("Qwen3", lambda root: stock_folder(root, "Qwen3"), decodings=SAME_TEXT),
        Kind("Qwen3, bfloat16", plain_demo, decodings=SAME_TEXT, **ROUNDED),
    ],
    "one of them with a draft adapter": [
        Kind("Llama with adapter", llama, adapter_folder, by_peft, SAME_TEXT),
        Kind("Llama with adapter, fused", llama, adapter_folder, decodings=SAME_TEXT, **FUSED),
    ],
    "another causal model of transformers": [
        Kind("Gemma 3, sliding", lambda root: stock_folder(root, "Gemma3Text"), decodings=SAME_TEXT),
    ],
}
KINDS = [kind for kinds in KINDS_BY_LINE.values() for kind in kinds]


@cache
def grammars_of(folder: Path) -> Grammars:
    """One process for all models with the tokenizer in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    grammars = Grammars(tokenizer, AutoConfig.from_pretrained(folder).vocab_size)
    atexit.register(grammars.close)
    return grammars


class Loaded:
    """A model of a kind, as a user has it, and what it must write."""

    def __init__(self, kind: Kind, root: Path):
        self.kind, self.base = kind, kind.base(root)
        self.adapter = None if kind.adapter is None else kind.adapter(root, self.base)
        self.folder = self.adapter or self.base  # the MODEL of commands
        self.model = kind.load(self.base, self.adapter).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.base)
        self.is_stock = is_stock(self.model)
        self.known: dict[tuple, list[int]] = {}  # what was expected before
        self.grammars = grammars_of(DEMO_FOLDER if kind.base in (demo, plain_demo) else wedlm_folder(root))

    @cached_property
    def plain(self) -> PreTrainedModel:
        """The model without anything that is to change the speed alone."""
        return self.model if self.kind.is_its_own_reference else auto(self.base).eval()

    @cached_property
    def from_folder(self) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        """The model and the tokenizer as a command loads them."""
        dtype = dict(zip(self.kind.options[::2], self.kind.options[1::2], strict=True)).get("--dtype", "auto")
        return load_checkpoint(self.folder, dtype, only_decodes=True, or_stock=True)

    def ids(self, prompt: str | list[dict]) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer(prompt)["input_ids"]
        return self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]

    def text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    @torch.no_grad()
    def expected(self, ids: list[int], decoding: str, number: int = NEW_TOKENS, **arguments) -> list[int]:
        """The new ids behind a prompt: transformers' own loop, or the decoder that is written for the eye."""
        if arguments:  # it draws
            return self.token_by_token(ids, number, **arguments)
        is_filled = decoding not in SAME_TEXT and decoding in self.kind.decodings  # (others will be refused)
        decoding = decoding if is_filled else "autoregressive"
        key = (*ids, decoding, number)
        if key not in self.known:
            self.known[key] = self.filled(ids, decoding, number) if is_filled else self.token_by_token(ids, number)
        return self.known[key]

    def token_by_token(self, ids: list[int], number: int, **arguments) -> list[int]:
        if not self.is_stock:
            arguments["suppress_tokens"] = [self.plain.config.mask_token_id]
            arguments["decoding"] = "autoregressive"
        call = {"max_new_tokens": number, "do_sample": False, **arguments}
        tokens = torch.tensor([ids])
        return self.plain.generate(tokens, attention_mask=torch.ones_like(tokens), **call)[0, len(ids) :].tolist()

    def filled(self, ids: list[int], decoding: str, number: int) -> list[int]:
        if self.kind.is_its_own_reference:  # whose rounding differs from forward to forward
            tokens = torch.tensor([ids])
            call = {"max_new_tokens": number, "do_sample": False, "decoding": decoding}
            return self.model.generate(tokens, attention_mask=torch.ones_like(tokens), **call)[0, len(ids) :].tolist()
        model = self.plain if self.adapter is None else self.model
        config, settings = model.config, model.generation_config
        ends, size = [settings.eos_token_id], settings.window_size or 8
        reads = {name: getattr(settings, name) for name in ("entropy_threshold", "distance_penalty")}
        return decode(logits_of(model), ids, number, config.mask_token_id, ends, size, **reads, decoding=decoding).ids
