"""The demo checkpoint's model before its training, and its optimizer."""

import torch
from transformers import PreTrainedTokenizerBase, set_seed

from wedlm import WeDLMConfig, WeDLMForCausalLM

SEED = 1  # of the weights, the conversations and their order


def random_model(
    tokenizer: PreTrainedTokenizerBase, hidden_size: int, num_layers: int, head_dim: int = 64
) -> WeDLMForCausalLM:
    """A model with random weights, the same in every run.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer, which decides the vocabulary and the special tokens.
        hidden_size (`int`): Width of the model, a multiple of two heads.
        num_layers (`int`): Number of layers.
        head_dim (`int`, *optional*, defaults to 64): Width of a head; vLLM's attention on a CPU knows 64 and not 48.
    """
    set_seed(SEED)
    model = WeDLMForCausalLM(
        WeDLMConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=8 * hidden_size // 3,
            num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // head_dim,
            num_key_value_heads=hidden_size // (2 * head_dim),
            head_dim=head_dim,
            initializer_range=hidden_size**-0.5,
            tie_word_embeddings=False,
            max_position_embeddings=2048,
            mask_token_id=tokenizer.mask_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # Large embeddings are far apart from the start, and small output projections add little to them at first. With
    # the usual ones, embeddings of a class of words stay close to their mean, and the model learns to copy such words
    # thousands of steps later.
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.3)
            layer.mlp.down_proj.weight.mul_(0.3)
    return model


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the matrices of the layers and AdamW for the other weights, under one schedule.

    Args:
        model (`WeDLMForCausalLM`): The model that is trained.
        learning_rate (`float`): The learning rate of both.
    """

    def __init__(self, model: WeDLMForCausalLM, learning_rate: float):
        weights = dict(model.named_parameters())
        matrices = {name for name, weight in weights.items() if ".layers." in name and weight.ndim == 2}
        self.parts = [
            torch.optim.Muon(
                [weights[name] for name in weights if name in matrices],
                learning_rate,
                weight_decay=0.1,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                [weights[name] for name in weights if name not in matrices],
                learning_rate,
                betas=(0.9, 0.98),
                weight_decay=0.0,
            ),
        ]
        super().__init__(self.groups(), {})

    def groups(self) -> list[dict]:
        # The dictionaries themselves and no copies, because a scheduler writes into them.
        return [group for part in self.parts for group in part.param_groups]

    def step(self, closure=None):
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = self.groups()
