"""`make demo-model`: trains the demo checkpoint from nothing with WeDLMTrainer, and goes on where it was stopped.

    python -m wedlm.demo.recipe build/demo-model [--max_steps 14000 --learning_rate 3e-3 ...]

build/demo-model/checkpoint becomes a whole Hub repository except for the card, with training.json and loss.png. Its
weights are in bfloat16 and load as float32, which costs nothing at this size and lets all decodings that are compared
round alike.
"""

import argparse
import json
from pathlib import Path

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import get_last_checkpoint

from wedlm import WeDLMConfig, WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.demo.tasks import conversation
from wedlm.demo.tokenizer import demo_tokenizer
from wedlm.evaluation.provenance import write_report
from wedlm.training.data import prepare_dataset
from wedlm.training.data_options import DataOptions

SEED = 1  # of weights, draws and training stream; the tokenizer is trained on stream 0
ROW_TOKENS = 192  # no example is longer
ROWS_PER_STEP = 12
MAX_STEPS = 14_000
CONVERSATIONS_PER_ROW = 2.5  # an upper bound of the mean, so that no row is needed twice


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


def num_conversations(num_steps: int) -> int:
    return int(num_steps * ROWS_PER_STEP * CONVERSATIONS_PER_ROW)


def training_rows(tokenizer: PreTrainedTokenizerBase, num_steps: int, folder: Path) -> Dataset:
    """Conversations of the training stream, packed into rows of a batch; `folder` is for the cache of datasets."""

    def conversations():
        for position in range(num_conversations(num_steps)):
            yield {"messages": conversation(SEED, position)}

    rows, summary = prepare_dataset(
        Dataset.from_generator(conversations, cache_dir=str(folder)),
        tokenizer,
        DataOptions(max_length=ROW_TOKENS, packing=True, overlong="drop"),
    )
    print(summary)
    return rows


def plot(log: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    for name, label in (("mlm_loss", "masked tokens"), ("ar_loss", "next tokens")):
        axes.plot([entry["step"] for entry in log], [float(entry[name]) for entry in log], label=label)
    axes.set(xlabel="step", ylabel="loss (nats per token)", yscale="log")
    axes.legend()
    figure.savefig(path, dpi=100, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--max_steps", type=int, default=MAX_STEPS)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--suffix_mask_probability", type=float, default=0.5)
    parser.add_argument("--hidden_size", type=int, default=256)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--logging_steps", type=int, default=25)
    parser.add_argument("--save_steps", type=int, default=250)
    return parser.parse_args()


def training_arguments(given: argparse.Namespace) -> WeDLMTrainingArguments:
    return WeDLMTrainingArguments(
        str(given.out / "run"),
        seed=SEED,
        max_steps=given.max_steps,
        per_device_train_batch_size=ROWS_PER_STEP,
        learning_rate=given.learning_rate,
        # The learning rate stays until the last part, so that a run can be made longer.
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": given.max_steps // 4, "decay_type": "1-sqrt"},
        warmup_steps=100,
        suffix_mask_probability=given.suffix_mask_probability,
        ar_loss_weight=0.5,  # the autoregressive loss falls first, and masked tokens are harder to learn
        block_size=16,  # the window of decoding
        attn_implementation="sdpa",  # in rows this short it is faster than groups of blocks
        bf16=torch.cuda.is_available(),  # a CPU is no faster in it at this width
        use_cpu=not torch.cuda.is_available(),
        logging_steps=given.logging_steps,
        save_steps=given.save_steps,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
    )


def save(model: WeDLMForCausalLM, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    model = model.to(torch.bfloat16)
    model.generation_config.decoding = "verified"  # the report shows that streaming loses right answers
    model.generation_config.window_size = 16  # on a CPU too, because most of its texts leave little choice
    model.save_pretrained(folder)
    model.config.dtype = torch.float32  # in which from_pretrained loads the weights
    model.config.use_cache = True  # Trainer switched it off
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    given = parse_arguments()
    tokenizer = demo_tokenizer()
    model = random_model(tokenizer, given.hidden_size, given.num_layers)
    trainer = WeDLMTrainer(
        model,
        training_arguments(given),
        train_dataset=training_rows(tokenizer, given.max_steps, given.out / "data"),
        processing_class=tokenizer,
        optimizers=(MuonAndAdamW(model, given.learning_rate), None),
    )
    run = given.out / "run"
    last = get_last_checkpoint(str(run)) if run.is_dir() else None
    outcome = trainer.train(resume_from_checkpoint=last)

    checkpoint = given.out / "checkpoint"
    save(trainer.model, tokenizer, checkpoint)
    losses = [entry for entry in trainer.state.log_history if "mlm_loss" in entry]
    steps = {
        "parameters": model.num_parameters(),
        "first_step": json.loads(Path(last, "trainer_state.json").read_text())["global_step"] if last else 0,
        "seconds": outcome.metrics["train_runtime"],
    }
    write_report(checkpoint / "training.json", losses, trainer.args.device, **steps)
    plot(losses, checkpoint / "loss.png")


if __name__ == "__main__":
    main()
