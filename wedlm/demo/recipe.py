"""`make demo-model`: the demo checkpoint from nothing, by WeDLMTrainer. Run again, it goes on where it stopped.

    python -m wedlm.demo.recipe build/demo-model [--max_steps 7000 --learning_rate 3e-3 ...]

build/demo-model/checkpoint becomes a whole Hub repository but for the card: weights in bfloat16, which load as float32
(it has no cost at this size, and both sides of a comparison round alike), training.json and loss.png.
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

SEED = 1  # of weights, draws and training stream; the tokenizer's sample is stream 0
ROW_TOKENS = 192  # no example is longer
ROWS_PER_STEP = 12
MAX_STEPS = 7000
CONVERSATIONS_PER_ROW = 2.5  # at most, on the average: enough are drawn that no row comes twice


def random_model(tokenizer: PreTrainedTokenizerBase, hidden_size: int, num_layers: int) -> WeDLMForCausalLM:
    set_seed(SEED)
    model = WeDLMForCausalLM(
        WeDLMConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=8 * hidden_size // 3,
            num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // 48,
            num_key_value_heads=hidden_size // 96,
            head_dim=48,
            initializer_range=hidden_size**-0.5,
            tie_word_embeddings=False,
            max_position_embeddings=2048,
            mask_token_id=tokenizer.mask_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # Words are large and far apart from the start, and layers add little to them at first: words of a class, whose
    # vectors would else stay close to their mean, are copied thousands of steps earlier.
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_()
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.3)
            layer.mlp.down_proj.weight.mul_(0.3)
    return model


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the matrices of the layers, AdamW for all else, scheduled as one."""

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
        # The same dictionaries, no copies: a scheduler writes into them.
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--max_steps", type=int, default=MAX_STEPS)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--suffix_mask_probability", type=float, default=0.5)
    parser.add_argument("--hidden_size", type=int, default=192)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--logging_steps", type=int, default=25)
    parser.add_argument("--save_steps", type=int, default=250)
    given = parser.parse_args()
    tokenizer = demo_tokenizer()
    model = random_model(tokenizer, given.hidden_size, given.num_layers)
    trainer = WeDLMTrainer(
        model,
        WeDLMTrainingArguments(
            str(given.out / "run"),
            seed=SEED,
            max_steps=given.max_steps,
            per_device_train_batch_size=ROWS_PER_STEP,
            learning_rate=given.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=100,
            suffix_mask_probability=given.suffix_mask_probability,
            ar_loss_weight=0.5,  # that loss falls first, and masked tokens are what is harder to learn
            block_size=16,  # the window of decoding
            attn_implementation="sdpa",  # in rows as short as these faster than groups of blocks
            bf16=True,
            use_cpu=not torch.cuda.is_available(),
            logging_steps=given.logging_steps,
            save_steps=given.save_steps,
            save_total_limit=2,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=training_rows(tokenizer, given.max_steps, given.out / "data"),
        processing_class=tokenizer,
        optimizers=(MuonAndAdamW(model, given.learning_rate), None),
    )
    folder = given.out / "run"
    last = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    outcome = trainer.train(resume_from_checkpoint=last)

    checkpoint = given.out / "checkpoint"
    model = trainer.model.to(torch.bfloat16)
    model.generation_config.window_size = 16  # on a CPU as well: most of its texts leave little choice
    model.save_pretrained(checkpoint)
    model.config.dtype = torch.float32  # what from_pretrained makes of the weights
    model.config.use_cache = True  # which Trainer switched off
    model.config.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    losses = [entry for entry in trainer.state.log_history if "mlm_loss" in entry]
    start = json.loads(Path(last, "trainer_state.json").read_text())["global_step"] if last else 0
    steps = {"parameters": model.num_parameters(), "first_step": start, "seconds": outcome.metrics["train_runtime"]}
    write_report(checkpoint / "training.json", losses, trainer.args.device, **steps)
    plot(losses, checkpoint / "loss.png")


if __name__ == "__main__":
    main()
