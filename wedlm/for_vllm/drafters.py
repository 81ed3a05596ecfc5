"""The classes of drafters for vLLM: vLLM's own models with the embedding of MASK and a draft adapter.

vLLM drafts with a row of the last token and rows of MASK behind it, and takes the output of each row for the position
after it. That is right where MASKs predict the token behind them (`mask_shift`). A MASK that predicts the token of its
own position gives its output to the row before it, if that is a MASK. The last row then gets none, and its draft is
wasted.
"""

from collections.abc import Iterable, Iterator

import torch
import vllm
from torch import nn
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import (
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.platforms import current_platform

from wedlm.for_vllm.plugin import MASK_EMBEDDING, is_draft

TESTED = ("0.32.0",)  # versions of vLLM
SHARDS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "gate_proj": 0, "up_proj": 1}  # as vLLM calls them

logger = init_logger(f"vllm.{__name__}")  # vLLM shows the messages of its own modules


class MaskEmbedding(nn.Module):
    """The embedding of MASK, which need not be in the vocabulary; `masked` says which rows of a forward are MASK."""

    def __init__(self, width: int, masked: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.masked = masked

    def hook(self, embedding: nn.Module) -> None:
        embedding.register_forward_pre_hook(self.take_mask_out)
        embedding.register_forward_hook(self.put_in)

    def take_mask_out(self, embedding: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        (input_ids,) = inputs
        return (torch.where(self.masked[: input_ids.shape[0]], 0, input_ids),)

    def put_in(self, embedding: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return torch.where(self.masked[: output.shape[0], None], self.weight, output)


class DraftProduct(nn.Module):
    """The low-rank products of a draft adapter for one linear layer of vLLM, which may be several layers in one.

    It is split over GPUs as the linear layer is. The products of several layers are one: `down` stacks their matrices,
    and `up` has each of theirs in columns of its own. `names` are those of the layers in `layer`, such as
    `["q_proj", "k_proj", "v_proj"]`.
    """

    def __init__(self, layer: LinearBase, names: list[str], rank: int, masked: torch.Tensor):
        super().__init__()
        self.names, self.rank, self.masked = names, rank, masked
        width = rank * len(names)
        if isinstance(layer, RowParallelLinear):
            self.down = RowParallelLinear(layer.input_size, width, bias=False)
            self.up = ReplicatedLinear(width, layer.output_size, bias=False)
        else:
            self.down = ReplicatedLinear(layer.input_size, width, bias=False)
            if isinstance(layer, QKVParallelLinear):
                heads = (layer.head_size, layer.total_num_heads, layer.total_num_kv_heads)
                self.up = QKVParallelLinear(width, *heads, bias=False)
            else:
                self.up = MergedColumnParallelLinear(width, layer.output_sizes, bias=False)
        for matrix in (self.down, self.up):
            matrix.weight.data.zero_()
        layer.register_forward_hook(self.add)

    def add(self, layer: nn.Module, inputs: tuple[torch.Tensor], outputs: tuple) -> tuple:
        output, bias = outputs
        low, _ = self.down(inputs[0])
        product, _ = self.up(torch.where(self.masked[: low.shape[0], None], low, 0))
        return output + product, bias

    def load(self, products: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Loads the matrices `down` and `up` of some of the layers, by name; the others stay zero."""
        downs = [products[name][0] if name in products else None for name in self.names]
        width = next(down.shape[1] for down in downs if down is not None)
        zeros = torch.zeros(self.rank, width)
        put(self.down, torch.cat([zeros if down is None else down.to(zeros) for down in downs]))
        for i, name in enumerate(self.names):
            if name in products:
                up = products[name][1]
                columns = torch.zeros(up.shape[0], self.rank * len(self.names), dtype=up.dtype)
                columns[:, i * self.rank : (i + 1) * self.rank] = up
                put(self.up, columns, *([SHARDS[name]] if name in SHARDS else []))


def put(layer: LinearBase, weight: torch.Tensor, *shard: str | int) -> None:
    layer.weight.weight_loader(layer.weight, weight, *shard)


class Drafter:
    """Makes a model of vLLM, the next base class, a drafter."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        warn()
        config, num_rows = vllm_config.model_config.hf_config, vllm_config.scheduler_config.max_num_batched_tokens
        self.mask_token_id = config.pard_token
        self.mask_shift = getattr(config, "mask_shift", False)  # exports of 0.2 have none
        # In place for ever, because recorded CUDA graphs read it where it was.
        self.register_buffer("masked", torch.zeros(num_rows, dtype=torch.bool), persistent=False)
        self.mask_embedding = MaskEmbedding(config.hidden_size, self.masked)
        self.mask_embedding.hook(self.model.embed_tokens)
        self.products = nn.ModuleDict()  # by the name of the linear layer, with - for .
        if config.drafts is not None:
            self.add_products(**config.drafts)

    def add_products(self, rank: int, modules: list[str]) -> None:
        for path, layer in self.model.named_modules():
            names = self.packed_modules_mapping.get(path.rpartition(".")[2], [path.rpartition(".")[2]])
            if isinstance(layer, LinearBase) and not set(names).isdisjoint(modules):
                self.products[path.replace(".", "-")] = DraftProduct(layer, names, rank, self.masked)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        masked = self.masked[: input_ids.shape[0]].copy_(input_ids == self.mask_token_id)
        hidden_states = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        if self.mask_shift:
            return hidden_states
        has_next = masked & masked.roll(-1)
        return torch.where(has_next[:, None], hidden_states.roll(-1, dims=0), hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        own = {}

        def others() -> Iterator[tuple[str, torch.Tensor]]:
            for name, weight in weights:
                if is_draft(name):
                    own[name] = weight
                else:
                    yield name, weight

        loaded = super().load_weights(others())
        self.mask_embedding.weight.data.copy_(own.pop(MASK_EMBEDDING))
        for path, product in self.products.items():
            part = f"model.{path.replace('-', '.').rpartition('.')[0]}.drafts"
            matrices = {name: (f"{part}.{name}.down", f"{part}.{name}.up") for name in product.names}
            product.load({name: (own[down], own[up]) for name, (down, up) in matrices.items() if down in own})
        mine = {name for name, _ in self.named_parameters() if name.startswith(("mask_embedding.", "products."))}
        return loaded | mine


class WeDLMDrafterQwen2ForCausalLM(Drafter, Qwen2ForCausalLM):
    pass


class WeDLMDrafterQwen3ForCausalLM(Drafter, Qwen3ForCausalLM):
    pass


class WeDLMDrafterLlamaForCausalLM(Drafter, LlamaForCausalLM):
    pass


class WeDLMDrafterMistralForCausalLM(Drafter, MistralForCausalLM):
    pass


def warn() -> None:
    """Says once what the user of this version of vLLM, or of this device, should know."""
    if vllm.__version__ not in TESTED:
        logger.warning_once(
            "vLLM %s was not tried with WeDLM's drafters (%s was); compare some texts and the accepted drafts.",
            vllm.__version__,
            ", ".join(TESTED),
            scope="global",
        )
    elif current_platform.is_cpu():
        logger.warning_once(
            "vLLM %s on a CPU loses the temperature and top_p of requests with drafts, whoever drafts; use "
            "temperature 0, or leave the drafter out.",
            vllm.__version__,
            scope="global",
        )
