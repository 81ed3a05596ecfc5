"""What does a step of training cost beside plain causal training, and beside its matrix products alone?

    python benchmarks/training.py [--lengths 512 1024 2048 4096] [--real-lengths 512 1024] [--repeats 5]
        [--out benchmarks/results/training.json]

A step is forward, backward and AdamW. Batches are made beforehand, and steps take turns. All weights are random.

`--lengths`: a small model trains on one sample of L tokens, a quarter of them prompt. "plain" trains on `labels` under
causal attention. The others train on DualStreamCollator's batch of the same tokens, which has 2L queries, and are
named after their form of attention. On a CPU the model is float32, on a GPU bfloat16.

`--real-lengths`: models in the shape of SmolLM2-135M train on a row of L tokens, packed samples of 128, a quarter of
each prompt. "causal" is plain training of the row by transformers' LlamaForCausalLM and its loss. "dual_stream" and
"i-dlm" train all weights with these objectives, and "draft" an adapter as `wedlm adapt` does. "autocast" means
weights in float32 and products in bfloat16, as with `bf16=True`. "products" are the matrix products of the linear
layers alone: each layer's output, the gradient of its input, and that of its weight where it trains, for as many
queries as the step has; the head's only for those with a target. Attention is not among them. All of them keep freed
memory, as WeDLMTrainer does on a CPU.

Memory is measured in a fresh process for each cell. A first step of 16 tokens creates gradients and optimizer state,
and the number is how far a step of L tokens raises the peak above that. The peak is VmHWM of /proc (which needs
Linux), and on a GPU torch.cuda.max_memory_allocated.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from common import in_fresh_process, markdown, median_and_range, new_parser, peak_bytes, save, with_range
from peft import get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from wedlm import DraftLoraConfig, DualStreamCollator, WeDLMConfig, WeDLMForCausalLM
from wedlm.evaluation.timing import interleaved_seconds
from wedlm.training.draft_collator import DraftCollator, IDLMCollator
from wedlm.training.draft_loss import NO_TEACHER
from wedlm.training.kept_memory import kept_memory
from wedlm.training.target_loss import NO_TARGET, scale_weights, weight_sums
from wedlm.training.training_metrics import ONLY_FOR_METRICS

HAS_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if HAS_GPU else ("cpu", torch.float32)
MODEL = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
MASK = MODEL["vocab_size"] - 1
SIDES = ("plain", "dual_stream", "sdpa", *(("flex_attention",) if HAS_GPU else ()))
LENGTHS = (512, 1024, 2048, 4096, 8192) if HAS_GPU else (512, 1024, 2048, 4096)
LARGEST_DENSE_MASKS = 6e9  # bytes


def batch_of(length: int, side: str) -> dict[str, torch.Tensor]:
    input_ids = torch.randint(MASK, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    num_prompt = length // 4
    labels = [-100] * num_prompt + input_ids[num_prompt:]
    sample = {"input_ids": input_ids, "labels": labels, "sample_lengths": [length], "sample_indices": [0]}
    if side == "plain":
        batch = {name: torch.tensor([sample[name]]) for name in ("input_ids", "labels")}
    else:
        batch = DualStreamCollator(mask_token_id=MASK)([sample])
        batch = scale_weights(batch, weight_sums(batch))
    return {name: tensor.to(DEVICE) for name, tensor in batch.items()}


def new_step(side: str) -> Callable[[dict], torch.Tensor]:
    """A new model and optimizer, as a function that trains on a batch and returns its loss."""
    torch.manual_seed(0)
    attention = "sdpa" if side == "plain" else side
    config = WeDLMConfig(**MODEL, mask_token_id=MASK, attn_implementation=attention)
    model = WeDLMForCausalLM(config).to(DEVICE, DTYPE).train()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: dict) -> torch.Tensor:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure_seconds(length: int, sides: list[str], repeats: int) -> dict[str, list[float]]:
    calls = {side: partial(new_step(side), batch_of(length, side)) for side in sides}
    return interleaved_seconds(calls, DEVICE, repeats)


def bytes_of_a_step(length: int, side: str) -> int:
    step = new_step(side)
    step(batch_of(16, side))
    batch = batch_of(length, side)
    before = peak_bytes()
    step(batch)
    return peak_bytes() - before


def measure_bytes(length: int, side: str) -> int:
    return in_fresh_process(bytes_of_a_step, length, side)


def dense_masks_bytes(length: int) -> int:
    """The bytes that attention under a dense mask keeps: a mask of floating-point numbers for each layer."""
    return MODEL["num_hidden_layers"] * DTYPE.itemsize * (2 * length) ** 2


def measure(length: int, repeats: int, previous: dict[str, dict]) -> list[dict]:
    """The cells of one length; `previous` has those of the length before it, by side."""
    left_out = {"sdpa"} if dense_masks_bytes(length) > LARGEST_DENSE_MASKS else set()
    all_seconds = measure_seconds(length, [side for side in SIDES if side not in left_out], repeats)
    seconds = {side: median_and_range(values) for side, values in all_seconds.items()}
    cells = []
    for side in SIDES:
        cell = {"length": length, "side": side}
        if side in left_out:
            cell["left_out"] = f"Its masks alone would take {dense_masks_bytes(length) / 1e9:.1f} GB."
        else:
            cell["seconds_per_step"] = seconds[side]
            cell["times_plain"] = seconds[side]["median"] / seconds["plain"]["median"]
            cell["bytes"] = measure_bytes(length, side)
            if "bytes" in previous.get(side, {}):
                cell["memory_exponent"] = exponent(previous[side], cell)
        cells.append(cell)
    return cells


def exponent(shorter: dict, longer: dict) -> float:
    """1 where memory is linear in the length, 2 where it is quadratic."""
    growth = longer["bytes"] / max(shorter["bytes"], 1)
    return math.log(max(growth, 1)) / math.log(longer["length"] / shorter["length"])


def table(cells: list[dict]) -> str:
    lines = []
    for cell in cells:
        if "left_out" in cell:
            lines.append([cell["length"], cell["side"], cell["left_out"], "", "", ""])
            continue
        seconds, growth = with_range(cell["seconds_per_step"], ".3f"), cell.get("memory_exponent")
        megabytes, times = f"{cell['bytes'] / 1e6:.0f}", f"{cell['times_plain']:.2f}"
        shown = "" if growth is None else f"{growth:.2f}"
        lines.append([cell["length"], cell["side"], seconds, times, megabytes, shown])
    header = ["length", "side", "seconds per step (min - max)", "times plain", "MB", "exponent"]
    return markdown(header, lines, left={"side"})


# --- The real shape ---

SMOLLM2 = {
    "vocab_size": 49_153,  # with MASK
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
SAMPLE = 128  # tokens
REAL_MASK = SMOLLM2["vocab_size"] - 1
COLLATORS = {"dual_stream": DualStreamCollator, "i-dlm": IDLMCollator, "draft": DraftCollator}
REAL_SIDES = ("causal", *COLLATORS)
REAL_DTYPES = ("bfloat16", "autocast", "float32")


def real_batch(length: int, side: str) -> dict[str, torch.Tensor]:
    input_ids = torch.randint(REAL_MASK, (length,), generator=torch.Generator().manual_seed(0))
    labels = input_ids.where(torch.arange(length) % SAMPLE >= SAMPLE // 4, NO_TARGET)
    if side == "causal":
        return {"input_ids": input_ids[None].to(DEVICE), "labels": labels[None].to(DEVICE)}
    lengths = [len(each) for each in input_ids.split(SAMPLE)]
    columns = {"input_ids": input_ids.tolist(), "labels": labels.tolist(), "sample_lengths": lengths}
    batch = COLLATORS[side](mask_token_id=REAL_MASK)([{**columns, "sample_indices": list(range(len(lengths)))}])
    batch = scale_weights(batch, weight_sums(batch))
    return {name: tensor.to(DEVICE) for name, tensor in batch.items() if name not in ONLY_FOR_METRICS}


def real_model(side: str, dtype: str) -> PreTrainedModel:
    torch.manual_seed(0)
    weights = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    if side == "causal":
        return LlamaForCausalLM(LlamaConfig(**SMOLLM2, attn_implementation="sdpa")).to(DEVICE, weights).train()
    config = WeDLMConfig(**SMOLLM2, qk_norm=False, mask_token_id=REAL_MASK, attn_implementation="dual_stream")
    model = WeDLMForCausalLM(config).to(DEVICE, weights).train()
    if side == "draft":
        model.to(torch.float32 if dtype == "float32" else torch.bfloat16)  # `wedlm adapt` trains the adapter alone
        model = get_peft_model(model, DraftLoraConfig(r=32, lora_alpha=2048))  # in float32
    return model


def real_step(side: str, dtype: str) -> tuple[PreTrainedModel, Callable[[dict], torch.Tensor]]:
    """A new model, and a function that trains it on a batch and returns the loss."""
    model = real_model(side, dtype)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-6, fused=True)
    # An adapter in float32 is on weights in bfloat16 only under autocast.
    is_autocast = dtype == "autocast" or (side == "draft" and dtype == "bfloat16")

    def step(batch: dict) -> torch.Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=is_autocast):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step


def products_of(model: PreTrainedModel, batch: dict[str, torch.Tensor], dtype: str) -> Callable[[], None]:
    """A function that computes the matrix products of a step."""
    computed = torch.float32 if dtype == "float32" else torch.bfloat16
    num_queries, num_targets = batch["input_ids"].numel(), batch["input_ids"].numel()
    if "targets" in batch:
        num_targets = int((batch["targets"] != NO_TARGET).sum())
    if "teachers" in batch:
        num_targets = int((batch["teachers"] != NO_TEACHER).sum())
    head, products = model.get_output_embeddings(), []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            inputs = torch.randn(num_targets if module is head else num_queries, module.in_features)
            weight = module.weight.detach().to(computed)
            products.append((inputs.to(DEVICE, computed), weight, module.weight.requires_grad))
            if module is head and "teachers" in batch:  # whose logits have no gradient
                products.append((inputs.to(DEVICE, computed), weight, None))

    @torch.no_grad()
    def compute() -> None:
        for inputs, weight, trains in products:
            outputs = inputs @ weight.T
            if trains is not None:
                outputs @ weight  # the gradient of the inputs, from that of the outputs
            if trains:
                outputs.T @ inputs

    return compute


def real_bytes(length: int, side: str, dtype: str) -> int:
    _, step = real_step(side, dtype)
    step(real_batch(16, side))
    batch = real_batch(length, side)
    before = peak_bytes()
    step(batch)
    return peak_bytes() - before


def measure_real(length: int, dtype: str, repeats: int) -> list[dict]:
    calls = {}
    for side in REAL_SIDES:
        batch, (model, step) = real_batch(length, side), real_step(side, dtype)
        calls[side] = partial(step, batch)
        calls[side, "products"] = products_of(model, batch, dtype)
    with kept_memory(torch.device(DEVICE)):
        all_seconds = interleaved_seconds(calls, DEVICE, repeats)
    seconds = {name: median_and_range(values) for name, values in all_seconds.items()}
    cells = []
    for side in REAL_SIDES:
        step, products = seconds[side], seconds[side, "products"]
        cells.append(
            {
                "dtype": dtype,
                "length": length,
                "side": side,
                "seconds_per_step": step,
                "seconds_of_products": products,
                "times_products": step["median"] / products["median"],
                "times_causal": step["median"] / seconds["causal"]["median"],
                "bytes": in_fresh_process(real_bytes, length, side, dtype),
            }
        )
    return cells


def real_table(cells: list[dict]) -> str:
    header = ["dtype", "length", "step", "seconds", "products alone", "times products", "times causal", "MB"]
    lines = [
        [
            *(cell[name] for name in ("dtype", "length", "side")),
            with_range(cell["seconds_per_step"], ".2f"),
            f"{cell['seconds_of_products']['median']:.2f}",
            f"{cell['times_products']:.2f}",
            f"{cell['times_causal']:.2f}",
            f"{cell['bytes'] / 1e6:.0f}",
        ]
        for cell in cells
    ]
    return markdown(header, lines, left={"dtype", "step"})


def main() -> None:
    parser = new_parser(__doc__, "training")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--real-lengths", type=int, nargs="*", default=(512, 1024))
    parser.add_argument("--real-dtypes", nargs="+", choices=REAL_DTYPES, default=REAL_DTYPES)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    cells, previous = [], {}
    for length in sorted(given.lengths):
        of_length = measure(length, given.repeats, previous)
        cells += of_length
        previous = {cell["side"]: cell for cell in of_length}
    print(table(cells))
    pairs = product(given.real_dtypes, given.real_lengths)
    real = [cell for dtype, length in pairs for cell in measure_real(length, dtype, given.repeats)]
    print(real_table(real))
    results = {"model": MODEL, "dtype": str(DTYPE).removeprefix("torch."), "rows": cells}
    results["real"] = {"model": SMOLLM2, "sample": SAMPLE, "rows": real}
    save(given.out, results, DEVICE)


if __name__ == "__main__":
    main()
