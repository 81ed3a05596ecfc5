"""Two processes on one machine, gloo on CPU."""

import subprocess
import sys

import pytest
import torch
from helpers import load, random_tokens

SCRIPT = """
import sys, torch, torch.distributed as dist
from transformers import AutoModelForCausalLM, logging
import wedlm

logging.disable_progress_bar()
torch.set_num_threads(1)
checkpoint, folder, how = sys.argv[1:]
inputs = torch.load(f"{folder}/inputs.pt")
if how == "tensor parallel":
    model = AutoModelForCausalLM.from_pretrained(checkpoint, tp_plan="auto").eval()
    weight, config = model.model.layers[0].self_attn.q_proj.weight, model.config
    local = weight.to_local() if hasattr(weight, "to_local") else weight
    assert local.shape[0] * 2 == config.num_attention_heads * config.head_dim, "the weights are not split"
else:
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
out = model(**inputs, use_cache=False)
torch.save(out.logits.detach(), f"{folder}/logits{dist.get_rank()}.pt")
if how != "tensor parallel":
    model(input_ids=inputs["input_ids"], labels=inputs["input_ids"]).loss.backward()
    assert model.lm_head.weight.grad is not None
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["tensor parallel", "fully sharded"])
def test_two_processes_give_the_single_process_logits(checkpoint, tmp_path, how):
    inputs = {"input_ids": random_tokens(1, 8), "position_ids": torch.tensor([[0, 1, 2, 3, 6, 4, 5, 7]])}
    torch.save(inputs, tmp_path / "inputs.pt")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, tmp_path / "script.py", checkpoint, tmp_path, how],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    expected = load(checkpoint)(**inputs).logits
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"logits{rank}.pt"), expected, atol=1e-4, rtol=1e-4)
