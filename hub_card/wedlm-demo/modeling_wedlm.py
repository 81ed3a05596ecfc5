from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3PreTrainedModel,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.utils import CONFIG_NAME, cached_file, can_return_tuple

from .cache_attention import attend, attend_up_to, score_bias
from .generation_wedlm import WeDLMGenerationMixin
from .row_cache import RowCache
from .configuration_wedlm import WeDLMConfig, check_config
from .dual_stream import dual_stream_mask
from .target_loss import target_loss


class WeDLMAttention(Qwen3Attention):
    def __init__(self, config: WeDLMConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        if config.attention_bias:
            # Qwen2.5 has biases on query, key and value only; Qwen3's flag would add one to the output.
            self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size, bias=False)
        if not config.qk_norm:
            self.q_norm = nn.Identity()
            self.k_norm = nn.Identity()

    def forward(
        self, hidden_states, position_embeddings, attention_mask, past_key_values=None, position_ids=None, **kwargs
    ):
        # position_ids end here: the flash-attention path takes any that are not consecutive for packed sequences.
        if not isinstance(past_key_values, RowCache) or self.config._attn_implementation == "eager":
            return super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        keys, values = past_key_values.update(key, value, self.layer_idx)
        dropout = self.attention_dropout if self.training else 0.0
        if past_key_values.place.ends is not None:
            attended = attend_up_to(past_key_values.place.ends, query, keys, values, self)
        else:
            attended = attend(query, keys, values, attention_mask, self.scaling, dropout)
        return self.o_proj(attended.transpose(1, 2).flatten(2)), None


class WeDLMDecoderLayer(Qwen3DecoderLayer):
    def __init__(self, config: WeDLMConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        self.self_attn = WeDLMAttention(config, layer_idx)


class WeDLMPreTrainedModel(Qwen3PreTrainedModel):
    config: WeDLMConfig
    _no_split_modules = ["WeDLMDecoderLayer"]
    _can_record_outputs = {"hidden_states": WeDLMDecoderLayer, "attentions": WeDLMAttention}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, use_safetensors=True, **kwargs):
        # Safetensors only, unless the caller asks for pickled weights by name.
        name = pretrained_model_name_or_path
        try:
            return super().from_pretrained(name, *model_args, use_safetensors=use_safetensors, **kwargs)
        except SafetensorError as error:
            where = {key: kwargs[key] for key in ("cache_dir", "revision", "subfolder") if kwargs.get(key) is not None}
            config_file = cached_file(name, CONFIG_NAME, local_files_only=True, **where)
            files = ", ".join(unreadable_weights(Path(config_file).parent))
            raise OSError(
                f"{files} of {name} is cut short or damaged ({error}); copy the checkpoint again, or load it from the "
                "Hub with force_download=True."
            ) from error
        except OSError as error:
            if "safetensors" not in str(error):
                raise
            raise OSError(
                f"The weights of {name} are missing or incomplete: {error} Copy or download them again, or pass "
                "use_safetensors=False if they are pickled and you trust them."
            ) from error


def unreadable_weights(folder: Path) -> list[str]:
    """The names of the weight files in a folder that do not open."""
    names = []
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError):
            names.append(path.name)
    return names


class WeDLMModel(WeDLMPreTrainedModel, Qwen3Model):
    """The decoder. `position_ids` are logical (RoPE); attention is causal over the physical order of the rows.

    `queries_to_keep`, `[batch, n]`: return the last hidden states of these rows only, so that the head sees no others.
    `sample_ids`, `stream_ids` and `block_ids`, all `[batch, rows]`: the rows are the two streams of training, and
    attention is theirs (`dual_stream.sees`).
    """

    def __init__(self, config: WeDLMConfig):
        # Not Qwen3Model's own: it would build Qwen3 layers.
        Qwen3PreTrainedModel.__init__(self, config)
        check_config(config)
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        self.layers = nn.ModuleList(WeDLMDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()

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
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids and inputs_embeds: got both or neither; pass exactly one of the two.")
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if self.training and self.gradient_checkpointing and past_key_values is not None:
            if past_key_values.get_seq_length() > 0:  # the layers would drop it and predict without it
                raise ValueError(
                    "past_key_values holds cached text, which gradient checkpointing cannot use in training; call "
                    "model.eval(), or pass the whole text and no past_key_values."
                )
        if not (sample_ids is None and stream_ids is None and block_ids is None):
            if any(ids is None for ids in (sample_ids, stream_ids, block_ids, position_ids)):
                raise ValueError(
                    "sample_ids, stream_ids and block_ids: got some, and not all of the three with position_ids; pass "
                    "them all, as DualStreamCollator makes them, or none."
                )
            if attention_mask is not None or past_key_values is not None:
                raise ValueError(
                    "attention_mask or past_key_values came with sample_ids, stream_ids and block_ids, which say who "
                    "sees whom already; leave out the one or the other."
                )
            mask = dual_stream_mask(self.config, sample_ids, stream_ids, block_ids)
            attention_mask = mask if isinstance(mask, torch.Tensor) else {"full_attention": mask}
            use_cache = False
        if isinstance(past_key_values, RowCache):
            bias = score_bias(attention_mask, inputs_embeds.shape[1], self.config, inputs_embeds)
            attention_mask = {"full_attention": bias}
        elif not isinstance(attention_mask, dict):
            is_dense = isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 4
            if is_dense and attention_mask.dtype == torch.bool and self.config._attn_implementation == "eager":
                # Eager adds its mask to the scores, where transformers' other backends read True as "sees".
                bias = torch.zeros_like(attention_mask, dtype=inputs_embeds.dtype)
                attention_mask = bias.masked_fill(~attention_mask, torch.finfo(bias.dtype).min)
            # Built without position_ids: transformers takes any that are not consecutive for packed sequences.
            attention_mask = create_masks_for_generate(
                config=self.config,
                inputs_embeds=inputs_embeds,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
            )
        outputs = super().forward(
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        if queries_to_keep is not None:
            hidden_states = outputs.last_hidden_state  # [batch, rows, hidden]
            index = queries_to_keep[..., None].to(hidden_states.device).expand(-1, -1, hidden_states.shape[-1])
            outputs.last_hidden_state = hidden_states.gather(1, index)
        return outputs


@dataclass
class WeDLMTrainingOutput(CausalLMOutputWithPast):
    """What forward returns for `targets`: no logits, and of each row, `[batch, rows]`, its loss and whether it hit."""

    target_losses: torch.FloatTensor | None = None
    target_hits: torch.BoolTensor | None = None


class WeDLMForCausalLM(WeDLMGenerationMixin, WeDLMPreTrainedModel, Qwen3ForCausalLM):
    """WeDLM with its language-model head: row i predicts token i+1, and a MASK row predicts its own position.

    Example:

        model = WeDLMForCausalLM.from_pretrained("tencent/WeDLM-8B-Instruct")
        tokenizer = AutoTokenizer.from_pretrained("tencent/WeDLM-8B-Instruct")
        inputs = tokenizer("The capital of France is", return_tensors="pt")
        print(tokenizer.decode(model.generate(**inputs, max_new_tokens=32)[0]))

    Trained with `targets` and `target_weights`, both `[batch, rows]`, -100 where a row has no target: `loss` is the
    sum of weight times cross entropy over the rows, not shifted. Only rows with a target reach the head.

        batch = DualStreamCollator(mask_token_id=model.config.mask_token_id)(rows)
        model(**batch).loss.backward()
    """

    def __init__(self, config: WeDLMConfig):
        # Not Qwen3ForCausalLM's own: it would build a Qwen3Model.
        Qwen3PreTrainedModel.__init__(self, config)
        self.model = WeDLMModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

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
        gammas=None,  # of the collator's batch: for who logs, not for the model
        **kwargs,
    ):
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "past_key_values": past_key_values,
            "inputs_embeds": inputs_embeds,
            "use_cache": use_cache,
            **kwargs,
        }
        if targets is None and target_weights is None:
            return super().forward(**inputs, labels=labels, logits_to_keep=logits_to_keep)
        if targets is None or target_weights is None or labels is not None:
            raise ValueError(
                "targets, target_weights and labels: got one of the first two alone, or labels with them; pass the "
                "first two for a weighted loss of single rows, or labels alone for next-token prediction."
            )
        outputs = self.model(**inputs)
        loss, target_losses, target_hits = target_loss(
            self.lm_head, outputs.last_hidden_state, targets, target_weights
        )
        return WeDLMTrainingOutput(
            loss=loss,
            target_losses=target_losses,
            target_hits=target_hits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
