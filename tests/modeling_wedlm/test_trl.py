"""TRL's trainers: their losses are those of stock Qwen3, and their rollouts are drawn by verified decoding."""

import re
from copy import deepcopy

import pytest
from helpers import CHECKPOINTS, REPOSITORY, load, random_tokens, stock_model
from peft import LoraConfig
from tiny_tokenizer import make_tokenizer
from transformers import AutoTokenizer

from wedlm import WeDLMForCausalLM

DEMO = REPOSITORY / "hub_card" / "wedlm-demo"


def settings(folder, **fields):
    """The fields of a config of TRL."""
    quiet = {"logging_steps": 1, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    return {"output_dir": str(folder), "learning_rate": 1e-3, "bf16": False, "use_cpu": True, **quiet, **fields}


@pytest.mark.ecosystem
def test_supervised_fine_tuning_has_the_losses_of_qwen3(tmp_path):
    """One batch of all samples, however they lie in its rows, has one loss, and so have the steps that follow."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    samples = [random_tokens(1, length, seed=length)[0].tolist() for length in (40, 21, 9, 33, 12, 27, 18, 30)]

    def losses(model, **fields):
        config = SFTConfig(**settings(tmp_path, per_device_train_batch_size=8, max_steps=3, **fields))
        dataset = Dataset.from_dict({"input_ids": samples})
        trainer = SFTTrainer(model, args=config, train_dataset=dataset, processing_class=make_tokenizer())
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    expected = losses(stock_model(load(CHECKPOINTS / "q3")))
    assert len(expected) == 3 and expected[2] < expected[0]
    for fields in ({}, {"packing": True, "max_length": 64}, {"padding_free": True, "max_length": None}):
        assert losses(load(CHECKPOINTS / "q3"), **fields) == pytest.approx(expected, abs=1e-3), fields
        assert losses(stock_model(load(CHECKPOINTS / "q3")), **fields) == pytest.approx(expected, abs=1e-3), fields


@pytest.mark.ecosystem
@pytest.mark.parametrize("fields", [{}, {"padding_free": True}, {"precompute_ref_log_probs": True}])
def test_preference_optimization_has_the_losses_of_qwen3(fields, tmp_path):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    texts = {"prompt": ["1, 2,", "Once"], "chosen": [" 3, 4", " upon a time"], "rejected": [" 3, 5, 6", " not"]}

    def losses(model, reference):
        config = DPOConfig(**settings(tmp_path, per_device_train_batch_size=2, max_steps=3, **fields))
        tokenizer = AutoTokenizer.from_pretrained(DEMO)
        trainer = DPOTrainer(
            model, reference, config, train_dataset=Dataset.from_dict(texts), processing_class=tokenizer
        )
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    expected = losses(stock_model(load(DEMO)), stock_model(load(DEMO)))
    assert len(expected) == 3 and expected[2] < expected[0]
    assert losses(load(DEMO), None) == pytest.approx(expected, abs=1e-4)


# --- Rollouts ---


@pytest.fixture
def rollouts(monkeypatch):
    """The number of texts of each rollout, all of which must be drawn by verified decoding."""
    generate, generate_batch, seen = WeDLMForCausalLM.generate, WeDLMForCausalLM.generate_batch, []

    def note(generation_config, prompts):
        assert generation_config.decoding == "verified" and generation_config.do_sample
        seen.append(len(prompts))

    def noted_generate(model, *args, **arguments):
        if "custom_generate" not in arguments:  # a request of a batch decodes nothing there
            note(arguments["generation_config"], arguments["input_ids"])
        return generate(model, *args, **arguments)

    def noted_generate_batch(model, prompts, generation_config, **arguments):
        note(generation_config, prompts)
        return generate_batch(model, prompts, generation_config, **arguments)

    monkeypatch.setattr(WeDLMForCausalLM, "generate", noted_generate)
    monkeypatch.setattr(WeDLMForCausalLM, "generate_batch", noted_generate_batch)
    return seen


def train_on_rollouts(trainer_class, config_class, folder, adapted=False, **fields):
    """Two steps of a trainer that draws texts and rewards them, on the demo."""
    from datasets import Dataset

    model = load(DEMO).double()
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if adapted else None
    trainer = trainer_class(
        model,
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
        args=config_class(**settings(folder, max_steps=2, **fields)),
        train_dataset=Dataset.from_dict({"prompt": ["Once upon a time", "Count: 1, 2, 3,"]}),
        processing_class=AutoTokenizer.from_pretrained(DEMO),
        peft_config=lora,
    )
    assert trainer.args.gradient_checkpointing
    before = deepcopy(trainer.model.state_dict())
    trainer.train()
    assert any((weight != before[name]).any() for name, weight in trainer.model.state_dict().items())


BATCHED = {"use_transformers_continuous_batching": True}


@pytest.mark.ecosystem
@pytest.mark.parametrize("name, fields, adapted", [("GRPO", {}, True), ("GRPO", BATCHED, False), ("RLOO", {}, False)])
def test_rollouts_are_drawn_by_verified_decoding(name, fields, adapted, tmp_path, rollouts):
    import trl

    fields = fields | {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 12}
    classes = getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config")
    train_on_rollouts(*classes, tmp_path, adapted, generation_kwargs={"decoding": "verified"}, **fields)
    assert rollouts == [8, 8]


@pytest.mark.ecosystem
@pytest.mark.parametrize("adapted", [False, True])
def test_online_preference_optimization_draws_by_verified_decoding(adapted, tmp_path, rollouts):
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    # With gradient checkpointing this trainer draws without a cache unless it is told otherwise.
    generation_kwargs = {"decoding": "verified"} | ({"use_cache": True} if adapted else {})
    fields = {"per_device_train_batch_size": 2, "max_new_tokens": 12, "generation_kwargs": generation_kwargs}
    train_on_rollouts(OnlineDPOTrainer, OnlineDPOConfig, tmp_path, adapted, **fields)
    assert rollouts == [4, 4]


@pytest.mark.ecosystem
def test_the_python_of_the_documentation_runs(tmp_path, monkeypatch, rollouts):
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "train.md").read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "from trl" in block)
    assert "max_steps=1000" in code
    fields = "max_steps=2, max_completion_length=8, bf16=False, use_cpu=True, report_to='none'"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1, 2, 3,"}\n{"prompt": "Once upon"}\n')
    variables = {}
    exec(code.replace("max_steps=1000", fields).replace('"hub_card/wedlm-demo"', repr(str(DEMO))), variables)
    assert len(rollouts) == 2
    variables["trainer"].save_model()
    saved = load(tmp_path / "out-grpo")
    assert saved.generation_config.decoding == "verified" and (tmp_path / "out-grpo" / "verified.py").exists()
