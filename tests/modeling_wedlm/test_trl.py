"""TRL's SFTTrainer, which packs samples into rows, on WeDLM and on stock Qwen3."""

import pytest
from helpers import CHECKPOINTS, load, random_tokens, stock_model
from tiny_tokenizer import make_tokenizer


@pytest.mark.ecosystem
def test_supervised_fine_tuning_has_the_losses_of_qwen3(tmp_path):
    """One batch of all samples, however they lie in its rows, has one loss, and so have the steps that follow."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    samples = [random_tokens(1, length, seed=length)[0].tolist() for length in (40, 21, 9, 33, 12, 27, 18, 30)]

    def losses(model, **fields):
        config = SFTConfig(
            str(tmp_path),
            per_device_train_batch_size=8,
            max_steps=3,
            learning_rate=1e-3,
            logging_steps=1,
            bf16=False,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            **fields,
        )
        dataset = Dataset.from_dict({"input_ids": samples})
        trainer = SFTTrainer(model, args=config, train_dataset=dataset, processing_class=make_tokenizer())
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    expected = losses(stock_model(load(CHECKPOINTS / "q3")))
    assert len(expected) == 3 and expected[2] < expected[0]
    for fields in ({}, {"packing": True, "max_length": 64}, {"padding_free": True, "max_length": None}):
        assert losses(load(CHECKPOINTS / "q3"), **fields) == pytest.approx(expected, abs=1e-3), fields
        assert losses(stock_model(load(CHECKPOINTS / "q3")), **fields) == pytest.approx(expected, abs=1e-3), fields
