"""Shared by many test files: the golden checkpoints, a slow reference forward, and clean processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from wedlm import WeDLMConfig, WeDLMForCausalLM

REPOSITORY = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"
CHECKPOINTS = GOLDEN / "checkpoints"
VOCABULARY = 150  # of the golden checkpoints, special tokens left out
MASK, EOS, PAD = 159, 2, 0
DECODE = json.loads((GOLDEN / "decode.json").read_text())
PROMPTS = DECODE["prompts"]


def load(checkpoint: Path | str, **kwargs) -> WeDLMForCausalLM:
    return WeDLMForCausalLM.from_pretrained(checkpoint, **kwargs).eval()


def copy_with_code(folder: Path, out: Path) -> Path:
    """A copy of a checkpoint of the repository with the code that saving and exporting put beside it."""
    shutil.copytree(folder, out)
    WeDLMConfig.from_pretrained(out).save_pretrained(out)
    return out


def random_tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def left_padded(prompts):
    """input_ids and attention_mask of prompts of any lengths."""
    length = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[PAD] * (length - len(prompt)) + prompt for prompt in prompts]),
        "attention_mask": torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
    }


def logits_of(model):
    @torch.no_grad()
    def forward(tokens, positions, who_sees_whom=None):
        rows = {"input_ids": torch.tensor([tokens]), "position_ids": torch.tensor([positions])}
        if who_sees_whom is not None:
            rows["attention_mask"] = torch.tensor([[who_sees_whom]])
        return model(**rows, use_cache=False).logits[0]

    return forward


def stock_model(model: WeDLMForCausalLM) -> PreTrainedModel:
    """transformers' own class with the same weights."""
    fields = model.config.to_dict()
    stock = {name: fields[name] for name in Qwen3Config().to_dict() if name in fields and name != "model_type"}
    if model.config.qk_norm:
        other = Qwen3ForCausalLM(Qwen3Config(**stock))
    else:
        other = Qwen2ForCausalLM(Qwen2Config(**stock))
    other.load_state_dict(model.state_dict())
    return other.eval()


class Waits(TorchDispatchMode):
    """Records the operations for which the host waits for the device.

    A copy from the CPU to the CPU is not recorded; the tests count copies at the places that make them.
    """

    def __init__(self, seen: list[str]):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aten = torch.ops.aten
        if func.overloadpacket in (aten._local_scalar_dense, aten.nonzero, aten.is_nonzero, aten.equal):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def reference_logits(model: PreTrainedModel, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    """The forward of one sequence in plain float64 arithmetic: row i sees rows 0..i, whatever their positions."""
    config = model.config
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}

    def norm(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weights[name]

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def rotate(x):  # [heads, head_dim] at one position
        half = config.head_dim // 2
        a, b = x[:, :half], x[:, half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)

    rope_theta = config.rope_parameters["rope_theta"]
    frequencies = rope_theta ** (-torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    group = config.num_attention_heads // config.num_key_value_heads
    cache = [([], []) for _ in range(config.num_hidden_layers)]
    rows = []
    for token, position in zip(input_ids.tolist(), position_ids.tolist(), strict=True):
        angle = position * frequencies
        hidden = weights["model.embed_tokens.weight"][token]
        for i, (keys, values) in enumerate(cache):
            layer = f"model.layers.{i}"
            x = norm(hidden, f"{layer}.input_layernorm.weight")
            query, key, value = (
                linear(x, f"{layer}.self_attn.{name}_proj").view(-1, config.head_dim) for name in ("q", "k", "v")
            )
            if config.qk_norm:
                query = norm(query, f"{layer}.self_attn.q_norm.weight")
                key = norm(key, f"{layer}.self_attn.k_norm.weight")
            keys.append(rotate(key))
            values.append(value)
            attended = []
            for head, q in enumerate(rotate(query)):
                scores = torch.stack([k[head // group] @ q for k in keys]) / config.head_dim**0.5
                attended.append(scores.softmax(-1) @ torch.stack([v[head // group] for v in values]))
            hidden = hidden + linear(torch.cat(attended), f"{layer}.self_attn.o_proj")
            x = norm(hidden, f"{layer}.post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(linear(x, f"{layer}.mlp.gate_proj"))
            hidden = hidden + linear(gate * linear(x, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj")
        rows.append(norm(hidden, "model.norm.weight") @ weights["lm_head.weight"].T)
    return torch.stack(rows).float()


def put_into_hub_cache(folder: Path, hub: Path, name: str) -> None:
    """Makes `hub` look as if the files of `folder` had been downloaded as repository `name`."""
    repository = hub / f"models--{name.replace('/', '--')}"
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)


def run_python(code: str, cwd: Path, wedlm: bool = True, **environment: str) -> str:
    """Runs `code` in a new process with a fresh home under `cwd` and returns what it printed, standard error included.

    With `wedlm=False` the process sees transformers and torch, and no package named wedlm.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HF_"))},
        "HOME": str(cwd / "home"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    command = [sys.executable, "-c", code]
    if not wedlm:
        # Without site the path file of an editable install is not read.
        site_packages = next(path for path in sys.path if path.endswith("site-packages"))
        environment["PYTHONPATH"] = site_packages
        check = "import importlib.util; assert importlib.util.find_spec('wedlm') is None, 'wedlm is visible'\n"
        command = [sys.executable, "-S", "-c", check + code]
    result = subprocess.run(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr
