"""TRL's trainers: their losses are those of stock Qwen3, and verified rollouts are autoregressive texts."""

import re
from copy import deepcopy

import pytest
import torch
from helpers import CHECKPOINTS, REPOSITORY, load, random_tokens, stock_model
from peft import LoraConfig
from tiny_tokenizer import make_tokenizer
from transformers import AutoTokenizer

from wedlm import WeDLMForCausalLM
from wedlm.batching.request import Request

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


class Rollouts:
    """Compares each rollout with transformers' own loop, on the weights of that moment."""

    def __init__(self, monkeypatch):
        self.texts: list[list[list[int]]] = []
        self.generate = WeDLMForCausalLM.generate
        self.seeds: list[int] = []  # of the requests of a batch

        from_settings = Request.from_settings

        def recorded_request(*args):
            request = from_settings(*args)
            self.seeds.append(request.seed)
            return request

        def recorded_generate(model, *args, **arguments):
            if "custom_generate" in arguments:  # a request of a batch, which decodes nothing
                return self.generate(model, *args, **arguments)
            with torch.random.fork_rng():
                seeds = torch.randint(2**63 - 1, (len(arguments["input_ids"]),)).tolist()
            output = self.generate(model, *args, **arguments)
            ids, seen = arguments["input_ids"], arguments["attention_mask"].bool()
            prompts = [row[mask].tolist() for row, mask in zip(ids, seen, strict=True)]
            self.check(model, prompts, output[:, ids.shape[1] :].tolist(), arguments["generation_config"], seeds)
            return output

        def recorded_generate_batch(model, prompts, generation_config, **arguments):
            self.seeds = []
            outputs = generate_batch(model, prompts, generation_config, **arguments)
            texts = [output.generated_tokens for output in outputs.values()]
            self.check(model, prompts, texts, generation_config, self.seeds)
            return outputs

        generate_batch = WeDLMForCausalLM.generate_batch
        monkeypatch.setattr(Request, "from_settings", recorded_request)
        monkeypatch.setattr(WeDLMForCausalLM, "generate", recorded_generate)
        monkeypatch.setattr(WeDLMForCausalLM, "generate_batch", recorded_generate_batch)

    def check(self, model, prompts, texts, generation_config, seeds):
        """A seed fixes sampled text, so a row's text is that of the other loop, which is given the row's seed."""
        assert generation_config.decoding == "verified" and generation_config.do_sample
        config = deepcopy(generation_config)
        config.decoding = "autoregressive"
        with torch.random.fork_rng():
            for prompt, text, seed in zip(prompts, texts, seeds, strict=True):
                torch.manual_seed(seed)
                expected = self.generate(model, torch.tensor([prompt]), generation_config=config)[0, len(prompt) :]
                assert text[: len(expected)] == expected.tolist()
                assert set(text[len(expected) :]) <= {model.generation_config.pad_token_id}
        self.texts.append(texts)


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
def test_rollouts_are_drawn_from_the_autoregressive_distribution(name, fields, adapted, tmp_path, monkeypatch):
    import trl

    rollouts = Rollouts(monkeypatch)
    fields = fields | {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 12}
    classes = getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config")
    train_on_rollouts(*classes, tmp_path, adapted, generation_kwargs={"decoding": "verified"}, **fields)
    assert len(rollouts.texts) == 2 and all(len(texts) == 8 for texts in rollouts.texts)


@pytest.mark.ecosystem
@pytest.mark.parametrize("adapted", [False, True])
def test_online_preference_optimization_draws_from_the_autoregressive_distribution(adapted, tmp_path, monkeypatch):
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    rollouts = Rollouts(monkeypatch)
    # With gradient checkpointing this trainer draws without a cache unless it is told otherwise.
    generation_kwargs = {"decoding": "verified"} | ({"use_cache": True} if adapted else {})
    fields = {"per_device_train_batch_size": 2, "max_new_tokens": 12, "generation_kwargs": generation_kwargs}
    train_on_rollouts(OnlineDPOTrainer, OnlineDPOConfig, tmp_path, adapted, **fields)
    assert len(rollouts.texts) == 2 and all(len(texts) == 4 for texts in rollouts.texts)


@pytest.mark.ecosystem
def test_the_python_of_the_documentation_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "train.md").read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "from trl" in block)
    assert "max_steps=1000" in code
    fields = "max_steps=2, max_completion_length=8, bf16=False, use_cpu=True, report_to='none'"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1, 2, 3,"}\n{"prompt": "Once upon"}\n')
    rollouts, variables = Rollouts(monkeypatch), {"folder": str(DEMO)}
    exec(code.replace("max_steps=1000", fields), variables)
    assert len(rollouts.texts) == 2
    variables["trainer"].save_model()
    saved = load(tmp_path / "out-grpo")
    assert saved.generation_config.decoding == "verified" and (tmp_path / "out-grpo" / "verified.py").exists()
