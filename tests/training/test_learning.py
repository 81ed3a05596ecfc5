"""Training learns, in a language of two signs: `+` says a word of 23 letters one letter further, and `-` one back.

    +adcjh... -> bedai...    (a follows j)

No word that is asked for is among those trained on. A block of 24 tokens is a prompt, the next one its answer, and
the window of 16 slots slides through it.
"""

import random

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from stock_checkpoints import END, save_tokenizer
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from wedlm import WeDLMConfig, WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments, convert_to_wedlm

LETTERS = "abcdefghij"
STEPS = {"+": 1, "-": -1}
WORDS = ["".join(random.Random(i).choices(LETTERS, k=23)) for i in range(1000)]
HELD_OUT, TRAINED_ON = WORDS[:32], WORDS[32:]

NUM_STEPS = 300
SIZES = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}


def record_of(sign, word):
    moved = (LETTERS[(LETTERS.index(letter) + STEPS[sign]) % len(LETTERS)] for letter in word)
    return {"prompt": sign + word, "completion": "".join(moved)}


def share_right(model, tokenizer, sign, **settings):
    """Returns the share of held-out words answered to the letter and to the end, and the output of generate()."""
    records = [record_of(sign, word) for word in HELD_OUT]
    inputs = tokenizer([record["prompt"] for record in records], return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=32, do_sample=False, return_dict_in_generate=True, **settings)
    answers = tokenizer.batch_decode(output.sequences[:, inputs["input_ids"].shape[1] :])
    right = [
        answer.startswith(record["completion"] + tokenizer.eos_token)
        for answer, record in zip(answers, records, strict=True)
    ]
    return sum(right) / len(right), output


def train(model, tokenizer, folder, signs, learning_rate, num_steps=NUM_STEPS):
    """Returns the metrics on held-out words before and after, and the log."""
    records = [record_of(signs[i % len(signs)], word) for i, word in enumerate(TRAINED_ON)]
    args = WeDLMTrainingArguments(
        str(folder),
        block_size=24,
        max_steps=num_steps,
        per_device_train_batch_size=16,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=20,
        attn_implementation="sdpa",  # the fastest at this size
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = WeDLMTrainer(
        model,
        args,
        train_dataset=Dataset.from_list(records),
        eval_dataset={sign: Dataset.from_list([record_of(sign, word) for word in HELD_OUT]) for sign in signs},
        processing_class=tokenizer,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    model.eval()
    return before, after, [entry for entry in trainer.state.log_history if "mlm_loss" in entry]


@pytest.mark.full
def test_a_random_model_learns_and_writes_several_tokens_a_forward(tmp_path):
    save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, mask_token="<|mask|>")
    torch.manual_seed(0)
    model = WeDLMForCausalLM(WeDLMConfig(**SIZES, mask_token_id=tokenizer.mask_token_id))
    before, after, log = train(model, tokenizer, tmp_path, "+", learning_rate=5e-3, num_steps=150)
    assert len(log) == 150
    for name in ("mlm_loss", "ar_loss"):
        assert after[f"eval_+_{name}"] < 0.4 * before[f"eval_+_{name}"]
        assert log[-1][name] < 0.4 * log[0][name]
    share, output = share_right(model, tokenizer, "+", decoding="streaming")
    assert share == 1 and output.tokens_per_forward.min() > 3
    assert share_right(model, tokenizer, "+", decoding="autoregressive")[0] == 1


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A stock Qwen3 that has learned `+`, and never saw `-`, after conversion."""
    source, out = tmp_path_factory.mktemp("qwen"), tmp_path_factory.mktemp("wedlm") / "converted"
    save_tokenizer(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=NUM_STEPS, pct_start=0.1)
    draws = random.Random(0)
    for _ in range(NUM_STEPS):
        records = [record_of("+", word) for word in draws.sample(TRAINED_ON, 16)]
        texts = [record["prompt"] + record["completion"] + tokenizer.eos_token for record in records]
        input_ids = tokenizer(texts, return_tensors="pt")["input_ids"]
        labels = input_ids.clone()
        labels[:, :24] = -100
        model(input_ids=input_ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()
    assert share_right(model, tokenizer, "+")[0] == 1 and share_right(model, tokenizer, "-")[0] == 0
    model.save_pretrained(source)
    convert_to_wedlm(source, out)
    return out


@pytest.mark.slow
def test_lora_learns_another_task_and_keeps_the_old(converted, tmp_path):
    """Half of the records are of the old task: its loss rises by less than 0.1, and 9 of 10 stay right."""
    tokenizer = AutoTokenizer.from_pretrained(converted)
    torch.manual_seed(0)
    model = get_peft_model(
        WeDLMForCausalLM.from_pretrained(converted),
        LoraConfig(
            task_type="CAUSAL_LM",
            r=8,
            lora_alpha=32,
            target_modules="all-linear",
            trainable_token_indices={"embed_tokens": [tokenizer.mask_token_id]},
        ),
    )
    before, after, _ = train(model, tokenizer, tmp_path, "+-", learning_rate=1e-2)
    assert before["eval_+_ar_loss"] < 0.05 and before["eval_-_ar_loss"] > 1
    assert after["eval_+_ar_loss"] < before["eval_+_ar_loss"] + 0.1
    for sign in "+-":
        assert share_right(model, tokenizer, sign, decoding="autoregressive")[0] >= 0.9
        share, output = share_right(model, tokenizer, sign, decoding="streaming")
        assert share >= 0.9 and output.tokens_per_forward.mean() > 3
