"""The WeDLM model: a Qwen3, Qwen2.5 or Llama whose input may stand in any order of its positions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_masks_for_generate, sdpa_mask
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3ForCausalLM,
    Qwen3MLP,
    Qwen3Model,
    Qwen3PreTrainedModel,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import is_flash_attention_requested

from wedlm.generation.generation_wedlm import WeDLMGenerationMixin
from wedlm.generation.package import from_package
from wedlm.generation.row_cache import score_bias
from wedlm.generation.transformers_internals import CACHE, attention_of, drops_cache, takes_cache
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig, check_config
from wedlm.modeling_wedlm.drafts import DraftProduct, WithDrafts, are_known_to_be_true, drafts_outside


def dual_stream_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | BlockMask | Callable | None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """Attends as the mask of dual-stream training says: by FlexAttention, or in parts. An ordinary mask means sdpa."""
    if isinstance(attention_mask, BlockMask):
        return flex_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if attention_mask is None or isinstance(attention_mask, torch.Tensor):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return attention_mask(query, key, value, kwargs["scaling"]), None


AttentionInterface.register("dual_stream", dual_stream_attention)
AttentionMaskInterface.register("dual_stream", sdpa_mask)


class WeDLMRMSNorm(Qwen3RMSNorm):
    """Qwen3's norm, which keeps only its input for the backward, in place of several tensors in float32."""

    def forward(self, hidden_states):
        needs_gradient = torch.is_grad_enabled() and (hidden_states.requires_grad or self.weight.requires_grad)
        if not needs_gradient or torch.compiler.is_compiling():
            return super().forward(hidden_states)
        return Norm.apply(hidden_states, self.weight, self.variance_epsilon)


class Norm(torch.autograd.Function):
    """`weight * x / sqrt(mean(x^2) + epsilon)`, with x in float32."""

    @staticmethod
    def forward(ctx, hidden_states, weight, epsilon):
        x = hidden_states.float()
        factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(hidden_states, weight, factor)
        return weight * (x * factor).to(hidden_states.dtype)

    @staticmethod
    def backward(ctx, of_output):
        hidden_states, weight, factor = ctx.saved_tensors
        normal = hidden_states.float() * factor
        of_weight = (of_output * normal).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        of_normal = of_output * weight.float()
        means = (of_normal * normal).mean(-1, keepdim=True)
        of_input = of_normal.sub_(normal.mul_(means)).mul_(factor).to(hidden_states.dtype)
        return of_input, None if of_weight is None else of_weight.to(weight.dtype), None


class WeDLMAttention(WithDrafts, Qwen3Attention):
    """The attention of Qwen3 or, by `attention_bias` and `qk_norm` of the config, of Qwen2.5 or Llama.

    It reads the keys and values of a RowCache where they lie.
    """

    def __init__(self, config: WeDLMConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        if config.attention_bias:
            # Qwen2.5 has biases on query, key and value alone. Qwen3's class would put one on the output as well.
            self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size, bias=False)
        norms = (WeDLMRMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity() for _ in "qk")
        self.q_norm, self.k_norm = norms
        self.drafts = nn.ModuleDict()

    @takes_cache
    def forward(
        self, hidden_states, position_embeddings, attention_mask, past_key_values=None, position_ids=None, **kwargs
    ):
        # position_ids go no further: flash attention would take a reordered window for packed samples. The bounds of
        # samples that are packed come in kwargs.
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.project("q_proj", hidden_states).view(shape)).transpose(1, 2)
        key = self.k_norm(self.project("k_proj", hidden_states).view(shape)).transpose(1, 2)
        value = self.project("v_proj", hidden_states).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx, kwargs=kwargs)
        attended, weights = self.attend(query, key, value, attention_mask, past_key_values, **kwargs)
        return self.project("o_proj", attended.flatten(2)), weights

    def attend(self, query, key, value, attention_mask, past_key_values, **kwargs):
        """Returns `[batch, queries, heads, head_dim]`, and the weights where the attention implementation has them."""
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(attention_of(self.config), eager_attention_forward)
        # A cache may have an attention of its own, as RowCache has.
        attention = getattr(past_key_values, "attention", attention)
        dropout = self.attention_dropout if self.training else 0.0
        options = {"dropout": dropout, "scaling": self.scaling, "sliding_window": self.sliding_window}
        return attention(self, query, key, value, attention_mask, **options, **kwargs)


class WeDLMMLP(WithDrafts, Qwen3MLP):
    """The MLP of a model with draft products; other models have transformers' own."""

    @classmethod
    def of(cls, mlp: Qwen3MLP) -> "WeDLMMLP":
        """Returns one with the layers of another MLP."""
        with torch.device("meta"):
            new = cls(mlp.config)
        for name, layer in mlp.named_children():
            setattr(new, name, layer)
        return new.train(mlp.training)

    def forward(self, hidden_states):
        gate = self.act_fn(self.project("gate_proj", hidden_states))
        return self.project("down_proj", gate * self.project("up_proj", hidden_states))


class WeDLMDecoderLayer(Qwen3DecoderLayer):
    def __init__(self, config: WeDLMConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.self_attn = WeDLMAttention(config, layer_idx)
        self.input_layernorm = WeDLMRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = WeDLMRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_states, *args, is_text=None, **kwargs):
        with drafts_outside(is_text):
            return super().forward(hidden_states, *args, **kwargs)


class WeDLMPreTrainedModel(Qwen3PreTrainedModel):
    config: WeDLMConfig
    _no_split_modules = ["WeDLMDecoderLayer"]
    _can_record_outputs = {"hidden_states": WeDLMDecoderLayer, "attentions": WeDLMAttention}

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        drafts = [module.down, module.up] if isinstance(module, DraftProduct) else []
        for weight in [*drafts, getattr(module, "mask_embedding", None)]:
            if weight is not None:
                init.zeros_(weight)  # as add_drafts makes them, for those that a checkpoint lacks

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, use_safetensors=True, **kwargs):
        """Loads a checkpoint as transformers does. Pickled weights need `use_safetensors=False`."""
        given = pretrained_model_name_or_path, *model_args
        return super().from_pretrained(*given, use_safetensors=use_safetensors, **kwargs)

    def load_adapter(self, peft_model_id=None, *args, **kwargs):
        """Loads an adapter as transformers does, but refuses one that lacks weights or has others."""
        loading = super().load_adapter(peft_model_id, *args, **kwargs)
        if wrong := sorted([*loading.missing_keys, *loading.unexpected_keys]):
            raise ValueError(
                f"The adapter {peft_model_id} does not fit this model: {wrong[0]} is in one of them only "
                f"({len(wrong)} such weights in all); load the adapter of this model into a new one."
            )
        return loading


class WeDLMModel(WeDLMPreTrainedModel, Qwen3Model):
    """The decoder without the head.

    `position_ids` are the positions in the text, which RoPE uses. Attention is causal in the order of the input,
    whatever the positions are. Samples that are packed into one row do not see each other (`packed_positions`).
    """

    def __init__(self, config: WeDLMConfig):
        # Qwen3Model's own __init__ would build Qwen3 layers.
        Qwen3PreTrainedModel.__init__(self, config)
        check_config(config)
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        self.layers: Any = nn.ModuleList(WeDLMDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = WeDLMRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config=config)
        self.has_sliding_layers = "sliding_attention" in config.layer_types
        self.gradient_checkpointing = False
        if config.drafts is not None:
            self.add_drafts(**config.drafts)
        self.post_init()

    def add_drafts(self, rank: int, modules: list[str], mask_shift: bool = False) -> None:
        """Adds a draft adapter of zeros: products for linear layers of each layer, and an embedding for MASK.

        Args:
            rank (`int`): The rank of the products.
            modules (`list[str]`): The names of the linear layers that get one.
            mask_shift (`bool`, *optional*, defaults to `False`): As in `WeDLMConfig`; it makes no other weights.
        """
        for layer in self.layers:
            layer.mlp = WeDLMMLP.of(layer.mlp)
            for part in (layer.self_attn, layer.mlp):
                part.add_drafts(modules, rank)
        self.mask_embedding = nn.Parameter(
            torch.zeros(self.config.hidden_size, device=self.embed_tokens.weight.device)
        )

    @takes_cache
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        use_cache=None,
        queries_to_keep=None,
        sample_ids=None,
        stream_ids=None,
        block_ids=None,
        **kwargs,
    ):
        """Runs the layers. All arguments not listed are those of `Qwen3Model`.

        Args:
            queries_to_keep (`torch.LongTensor` of shape `(batch, n)`, *optional*):
                The queries whose last hidden states are returned, so that the head sees no others.
            sample_ids (`torch.LongTensor` of shape `(batch, queries)`, *optional*):
                The sample of each query, -1 for padding. With `stream_ids` and `block_ids` it says that the input
                holds the two streams of training, whose attention is `dual_stream.sees`.
            stream_ids (`torch.LongTensor` of shape `(batch, queries)`, *optional*):
                0 for queries of the memory stream, 1 for those of the prediction stream.
            block_ids (`torch.LongTensor` of shape `(batch, queries)`, *optional*):
                The number of each query's block in its sample.
        """
        check_inputs(input_ids, inputs_embeds)
        is_text = None
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
            # Draft adapters of PEFT replace the embedding.
            may_have_drafts = self.config.drafts is not None or not isinstance(self.embed_tokens, nn.Embedding)
            if may_have_drafts and self.config.mask_token_id is not None:
                is_text = (input_ids != self.config.mask_token_id)[..., None]
                if self.config.drafts is not None:
                    inputs_embeds = inputs_embeds.where(is_text, self.mask_embedding.to(inputs_embeds.device))
                if are_known_to_be_true(is_text):
                    is_text = None
        if drops_cache(self):
            check_nothing_is_cached(past_key_values)
        stream_inputs = (sample_ids, stream_ids, block_ids)
        if any(ids is not None for ids in stream_inputs):
            check_stream_inputs(*stream_inputs, position_ids, attention_mask, past_key_values)
            training = from_package("wedlm.training.dual_stream", "A forward with stream_ids")
            mask = training.dual_stream_mask(self.config, *stream_inputs)
            attention_mask = mask if isinstance(mask, torch.Tensor) else {"full_attention": mask}
            use_cache = False
        packed = None
        if position_ids is not None and attention_mask is None and past_key_values is None:
            packed = packed_positions(position_ids).expand(inputs_embeds.shape[0], -1)
            if is_flash_attention_requested(self.config):
                kwargs = {**sample_bounds(packed), **kwargs}
        outputs = super().forward(
            attention_mask=masks_of_layers(self.config, inputs_embeds, attention_mask, past_key_values, packed),
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            is_text=is_text,
            **{CACHE: past_key_values},
            **kwargs,
        )
        if queries_to_keep is not None:
            outputs.last_hidden_state = keep_queries(outputs.last_hidden_state, queries_to_keep)
        return outputs


def check_inputs(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> None:
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("input_ids and inputs_embeds: got both or neither; pass exactly one of the two.")


def check_nothing_is_cached(past_key_values: Cache | None) -> None:
    """Refuses cached text under gradient checkpointing, where the layers would drop it and predict without it."""
    if past_key_values is not None and past_key_values.get_seq_length() > 0:
        raise ValueError(
            f"{CACHE} holds cached text, which gradient checkpointing cannot use in training; call model.eval(), or "
            f"pass the whole text and no {CACHE}."
        )


def check_stream_inputs(sample_ids, stream_ids, block_ids, position_ids, attention_mask, past_key_values) -> None:
    if any(ids is None for ids in (sample_ids, stream_ids, block_ids, position_ids)):
        raise ValueError(
            "sample_ids, stream_ids and block_ids: got some, but not all three together with position_ids; pass them "
            "all, as DualStreamCollator makes them, or none."
        )
    if attention_mask is not None or past_key_values is not None:
        raise ValueError(
            f"attention_mask or {CACHE} came with sample_ids, stream_ids and block_ids, which already say "
            "which query sees which key; leave out one or the other."
        )


def packed_positions(position_ids: torch.Tensor) -> torch.Tensor:
    """Returns positions that restart at 0 exactly where a row holds several packed samples.

        [0, 1, 2, 0, 1]    packed: every position is 0 or follows the one before it; the row stays as it is
        [0, 1, 4, 2, 3]    reordered: the row becomes [0, 1, 2, 3, 4]

    transformers begins a sample wherever a position does not follow the one before it. A reordered text has no
    position twice. So it has one 0 at most, and can never be taken for two samples.

    Args:
        position_ids (`torch.LongTensor` of shape `(batch, queries)`): The positions that RoPE sees.
    """
    before = nn.functional.pad(position_ids, (1, 0), value=-1)[:, :-1]
    is_consecutive = ((position_ids == 0) | (position_ids == before + 1)).all(dim=-1, keepdim=True)
    return torch.where(is_consecutive, position_ids, torch.arange(position_ids.shape[1], device=position_ids.device))


def sample_bounds(packed: torch.Tensor) -> dict:
    """Returns the arguments that tell flash attention where samples begin; none if each row is one sample.

    transformers would find them in every layer anew, and only for a batch of one row.
    """
    (bounds, _), (longest, _) = prepare_fa_kwargs_from_position_ids(packed)
    if len(bounds) == len(packed) + 1:
        return {}
    longest = longest.item()
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def masks_of_layers(
    config: WeDLMConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: Any,  # a mask, one for each type of layer, or None
    past_key_values: Cache | None,
    packed: torch.Tensor | None,
) -> dict | torch.Tensor | None:
    """Returns the mask as the layers take it: by layer type, or one for all.

    Qwen3Model would build it from `position_ids`, which may be reordered; `packed` has the rows that are not packed
    in physical order.
    """
    if hasattr(past_key_values, "attention"):  # its mask has been made for it
        return {"full_attention": score_bias(attention_mask, inputs_embeds.shape[1], config, inputs_embeds)}
    if isinstance(attention_mask, dict):
        return attention_mask
    is_dense = isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 4
    if is_dense and attention_mask.dtype == torch.bool and attention_of(config) == "eager":
        # Eager attention adds its mask to the scores; the others read True as "sees".
        bias = torch.zeros_like(attention_mask, dtype=inputs_embeds.dtype)
        attention_mask = bias.masked_fill(~attention_mask, torch.finfo(bias.dtype).min)
    return create_masks_for_generate(
        config=config,
        inputs_embeds=inputs_embeds,
        attention_mask=attention_mask,
        position_ids=packed,
        **{CACHE: past_key_values},
    )


def keep_queries(hidden_states: torch.Tensor, queries_to_keep: torch.Tensor) -> torch.Tensor:
    index = queries_to_keep[..., None].to(hidden_states.device).expand(-1, -1, hidden_states.shape[-1])
    return hidden_states.gather(1, index)  # [batch, n, hidden]


@dataclass
class WeDLMTrainingOutput(CausalLMOutputWithPast):
    """The output of a forward with `targets`. It has no logits.

    Args:
        loss (`torch.FloatTensor` of shape `(1,)`):
            The sum of weight times cross entropy over the queries with a target.
        target_losses (`torch.FloatTensor` of shape `(batch, queries)`):
            The cross entropy of each query, without its weight; 0 where a query has no target.
        target_hits (`torch.BoolTensor` of shape `(batch, queries)`):
            Whether the most likely token of each query is its target.
    """

    target_losses: torch.Tensor | None = None
    target_hits: torch.Tensor | None = None


class WeDLMForCausalLM(WeDLMGenerationMixin, WeDLMPreTrainedModel, Qwen3ForCausalLM):
    """A WeDLM with its language-model head.

    At a token the model predicts the next token, as other causal models do. At a MASK it predicts the token of that
    position.

    Example:

        model = WeDLMForCausalLM.from_pretrained("tencent/WeDLM-8B-Instruct")
        tokenizer = AutoTokenizer.from_pretrained("tencent/WeDLM-8B-Instruct")
        inputs = tokenizer("The capital of France is", return_tensors="pt")
        print(tokenizer.decode(model.generate(**inputs, max_new_tokens=32)[0]))

    A step of dual-stream training:

        batch = DualStreamCollator(mask_token_id=model.config.mask_token_id)(sequences)
        model(**batch).loss.backward()
    """

    def __init__(self, config: WeDLMConfig):
        # Qwen3ForCausalLM's own __init__ would build a Qwen3Model.
        Qwen3PreTrainedModel.__init__(self, config)
        self.model = WeDLMModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def resize_token_embeddings(self, new_num_tokens=None, *args, **kwargs):
        mask_token_id = self.config.mask_token_id
        if None not in (new_num_tokens, mask_token_id) and new_num_tokens <= mask_token_id:
            raise ValueError(
                f"new_num_tokens={new_num_tokens} leaves no row for mask_token_id={mask_token_id}; keep more than "
                f"{mask_token_id} tokens, or set model.config.mask_token_id first."
            )
        return super().resize_token_embeddings(new_num_tokens, *args, **kwargs)

    @takes_cache
    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        targets=None,
        target_weights=None,
        teachers=None,
        **kwargs,
    ):
        """Predicts tokens, or computes a loss. All arguments not listed are those of `Qwen3ForCausalLM`.

        Args:
            targets (`torch.LongTensor` of shape `(batch, queries)`, *optional*):
                The token that each query has to predict, -100 for none. It is not shifted. Queries without a target
                do not reach the head.
            target_weights (`torch.FloatTensor` of shape `(batch, queries)`, *optional*):
                The weight of each query in the loss, needed with `targets`.
            teachers (`torch.LongTensor` of shape `(batch, queries)`, *optional*):
                For training a draft adapter, in place of `targets`: the place in its row of the query whose prediction
                each query has to make, -1 for none.

        Returns:
            `WeDLMTrainingOutput` with `targets` or `teachers`, otherwise `CausalLMOutputWithPast`.
        """
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            CACHE: past_key_values,
            "inputs_embeds": inputs_embeds,
            "use_cache": use_cache,
            **kwargs,
        }
        if targets is None and teachers is None and target_weights is None:
            return super().forward(**inputs, labels=labels, logits_to_keep=logits_to_keep)
        if (targets is None) == (teachers is None) or target_weights is None or labels is not None:
            raise ValueError(
                "targets, teachers, target_weights and labels: a weighted loss of chosen queries takes target_weights "
                "with either targets or teachers, and next-token prediction takes labels alone; leave out the others."
            )
        outputs = self.model(**inputs)
        hidden_states = outputs.last_hidden_state
        if teachers is None:
            module = from_package("wedlm.training.target_loss", "The loss of targets")
            losses = module.target_loss(self.lm_head, hidden_states, targets, target_weights)
        else:
            module = from_package("wedlm.training.draft_loss", "The loss of teachers")
            mask_token_id = self.config.require_mask_token_id()
            losses = module.draft_loss(self.lm_head, hidden_states, teachers, target_weights, mask_token_id)
        loss, target_losses, target_hits = losses
        return WeDLMTrainingOutput(
            loss=loss,
            target_losses=target_losses,
            target_hits=target_hits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )
