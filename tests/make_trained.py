"""Makes tests/golden/checkpoints/trained, a minute: `python tests/make_trained.py`.

A model that has learned something, for tests in which drafts must come true, and not all of them. In its language a
word is said again, a random number of letters of it, and now and then one twice: what comes next is easy to tell from
what stands before, and harder from farther away.

    +adcj+ -> addc<end>
"""

import json
import random
import tempfile

import torch
from datasets import Dataset
from helpers import CHECKPOINTS, EOS, PAD
from transformers import set_seed

from wedlm import WeDLMConfig, WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments

LETTERS, START, MASK = range(3, 13), 13, 15
NUM_STEPS = 1000


def question(number: int) -> list[int]:
    draw = random.Random(f"word {number}")
    return [START, *draw.choices(LETTERS, k=draw.randint(3, 12)), START]


def row(number: int) -> dict:
    draw = random.Random(f"answer {number}")
    prompt = question(number)
    said = prompt[1 : 1 + draw.randint(max(1, len(prompt) - 5), len(prompt) - 2)]
    answer = [letter for letter in said for _ in range(1 + (draw.random() < 0.1))] + [EOS]
    ids = prompt + answer
    labels = [-100] * len(prompt) + answer
    return {"input_ids": ids, "labels": labels, "sample_lengths": [len(ids)], "sample_indices": [number]}


def main() -> None:
    set_seed(0)
    model = WeDLMForCausalLM(
        WeDLMConfig(
            vocab_size=16, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=1, head_dim=32, mask_token_id=MASK, eos_token_id=EOS, pad_token_id=PAD,
            max_position_embeddings=256,
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        args = WeDLMTrainingArguments(
            folder, max_steps=NUM_STEPS, per_device_train_batch_size=32, learning_rate=5e-3, warmup_steps=20,
            lr_scheduler_type="cosine", attn_implementation="sdpa", suffix_mask_probability=0.5, logging_steps=100,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        WeDLMTrainer(model, args, train_dataset=Dataset.from_list([row(i) for i in range(32 * NUM_STEPS)])).train()
    folder = CHECKPOINTS / "trained"
    model.to(torch.bfloat16).save_pretrained(folder)
    for copied in folder.glob("*.py"):  # code that would grow old here
        copied.unlink()
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    config |= {"dtype": "float32", "use_cache": True}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
