"""`make demo-model`: the demo checkpoint from nothing, by WeDLMTrainer. Run again, it goes on where it stopped.

python -m wedlm.hub_card.demo.recipe build/demo
"""

import argparse
from pathlib import Path

import torch
from datasets import Dataset
from transformers import set_seed
from transformers.trainer_utils import get_last_checkpoint

from wedlm import WeDLMConfig, WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.hub_card.demo.tasks import training_example
from wedlm.hub_card.demo.tokenizer import demo_tokenizer
from wedlm.training.data import prepare_dataset
from wedlm.training.data_options import DataOptions

SEED = 1  # of weights, draws and training stream; the tokenizer's sample is stream 0
ROW_TOKENS = 512
ROWS_PER_STEP = 8
SAMPLES_PER_ROW = 7  # at most, on the average: enough samples are drawn that no row comes twice


def random_model(tokenizer, hidden_size: int, num_layers: int) -> WeDLMForCausalLM:
    set_seed(SEED)
    return WeDLMForCausalLM(
        WeDLMConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden_size,
            intermediate_size=8 * hidden_size // 3,
            num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // 32,
            num_key_value_heads=hidden_size // 64,
            head_dim=32,
            tie_word_embeddings=True,
            max_position_embeddings=2048,
            mask_token_id=tokenizer.mask_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def training_rows(tokenizer, num_steps: int, folder: Path) -> Dataset:
    def chats():
        for position in range(num_steps * ROWS_PER_STEP * SAMPLES_PER_ROW):
            yield {"messages": training_example(SEED, position).messages}

    rows, summary = prepare_dataset(
        Dataset.from_generator(chats, cache_dir=str(folder)),
        tokenizer,
        DataOptions(max_length=ROW_TOKENS, packing=True),
    )
    print(summary)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--max_steps", type=int, default=3000)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--suffix_mask_probability", type=float, default=0.3)
    parser.add_argument("--hidden_size", type=int, default=192)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--logging_steps", type=int, default=25)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    tokenizer = demo_tokenizer()
    trainer = WeDLMTrainer(
        random_model(tokenizer, given.hidden_size, given.num_layers),
        WeDLMTrainingArguments(
            str(given.out / "run"),
            seed=SEED,
            max_steps=given.max_steps,
            per_device_train_batch_size=ROWS_PER_STEP,
            learning_rate=given.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=100,
            weight_decay=0.1,
            adam_beta2=0.98,
            suffix_mask_probability=given.suffix_mask_probability,
            bf16=given.bf16,
            use_cpu=not torch.cuda.is_available(),
            logging_steps=given.logging_steps,
            save_steps=250,
            save_total_limit=2,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=training_rows(tokenizer, given.max_steps, given.out / "data"),
        processing_class=tokenizer,
    )
    folder = given.out / "run"
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)) if folder.is_dir() else None)
    trainer.save_model(str(given.out / "checkpoint"))


if __name__ == "__main__":
    main()
