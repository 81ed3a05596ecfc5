"""Two processes on one machine, which talk over gloo."""

import datetime

import pytest
import torch
import torch.distributed as dist
from helpers import CHECKPOINTS, MASK, PAD, load, random_tokens
from processes import run_two_processes
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, logging

from wedlm import DualStreamCollator
from wedlm.training import target_loss
from wedlm.training.target_loss import scale_weights, weight_sums


def shard(model):
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def save_logits(checkpoint, folder, how):
    logging.disable_progress_bar()
    inputs = torch.load(folder / "inputs.pt")
    if how == "tensor parallel":
        model = AutoModelForCausalLM.from_pretrained(checkpoint, tp_plan="auto").eval()
        weight, config = model.model.layers[0].self_attn.q_proj.weight, model.config
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        assert local.shape[0] * 2 == config.num_attention_heads * config.head_dim, "the weights are not split"
    else:
        dist.init_process_group("gloo")
        model = shard(AutoModelForCausalLM.from_pretrained(checkpoint).eval())
    out = model(**inputs, use_cache=False)
    torch.save(out.logits.detach(), folder / f"logits{dist.get_rank()}.pt")
    if how != "tensor parallel":
        model(input_ids=inputs["input_ids"], labels=inputs["input_ids"]).loss.backward()
        assert model.lm_head.weight.grad is not None
    dist.destroy_process_group()


def generate_and_train(checkpoint, trained_checkpoint, folder):
    logging.disable_progress_bar()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))  # a rank that waits longer fails
    model = shard(AutoModelForCausalLM.from_pretrained(checkpoint).eval())
    forwards = []
    model.model.register_forward_hook(lambda *_: forwards.append(1))
    texts = []
    for call in torch.load(folder / f"calls{dist.get_rank()}.pt"):
        texts.append((model.generate(**call), len(forwards)))
        forwards.clear()
    torch.save(texts, folder / f"texts{dist.get_rank()}.pt")

    target_loss.QUERIES_PER_CHUNK = 3  # so that one rank calls the head more often than the other
    batch = torch.load(folder / "batches.pt")[dist.get_rank()]
    for how in ("ddp", "fully sharded"):
        model = AutoModelForCausalLM.from_pretrained(trained_checkpoint, attn_implementation="dual_stream").train()
        wrapped = torch.nn.parallel.DistributedDataParallel(model) if how == "ddp" else shard(model)
        (wrapped(**batch).loss * dist.get_world_size()).backward()  # gradients are averaged over the ranks
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        whole = {name: grad.full_tensor() if how != "ddp" else grad for name, grad in gradients.items()}
        if dist.get_rank() == 0:
            torch.save(whole, folder / f"{how}.pt")
    dist.destroy_process_group()


def calls_of_ranks():
    """For each rank several calls of generate(), with other lengths than those of the other rank."""
    settings = [
        {},
        {"synced_gpus": True, "entropy_threshold": 3.0},
        {"prefill_chunk_size": 5},
        {"use_cache": False},
        {"repetition_penalty": 1.3},
        {"decoding": "blockwise"},
        {"decoding": "autoregressive"},
    ]
    calls = []
    for rank, (batch, prompt_length, max_new_tokens) in enumerate([(1, 6, 5), (3, 21, 12)]):
        call = {"input_ids": random_tokens(batch, prompt_length, seed=rank), "max_new_tokens": max_new_tokens}
        call |= {"attention_mask": torch.ones_like(call["input_ids"]), "pad_token_id": PAD, "eos_token_id": None}
        calls.append([call | more for more in settings])
    return calls


def batches_of_ranks():
    """For each rank a batch of one step; that of the second has no targets."""
    sequences = []
    for index, (length, prompt) in enumerate([(40, 2), (9, 9)]):
        text = random_tokens(1, length, seed=index)[0].tolist()
        labels = [-100] * prompt + text[prompt:]
        sample = {"sample_lengths": [length], "sample_indices": [index]}
        sequences.append({"input_ids": text, "labels": labels, **sample})
    collator = DualStreamCollator(mask_token_id=MASK, block_size=4)
    batches = [collator([sequence]) for sequence in sequences]
    sums = sum(weight_sums(batch) for batch in batches)
    return [scale_weights(batch, sums) for batch in batches]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The checkpoint, and the folder with the results of two ranks that generate with it and then train another."""
    folder, checkpoint = tmp_path_factory.mktemp("ranks"), CHECKPOINTS / "q3"
    for rank, calls in enumerate(calls_of_ranks()):
        torch.save(calls, folder / f"calls{rank}.pt")
    torch.save(batches_of_ranks(), folder / "batches.pt")
    run_two_processes(generate_and_train, checkpoint, CHECKPOINTS / "q25", folder)
    return checkpoint, folder


@pytest.mark.parametrize("how", ["tensor parallel", "fully sharded"])
@pytest.mark.slow
def test_two_processes_give_the_single_process_logits(checkpoint, tmp_path, how):
    inputs = {"input_ids": random_tokens(1, 8), "position_ids": torch.tensor([[0, 1, 2, 3, 6, 4, 5, 7]])}
    torch.save(inputs, tmp_path / "inputs.pt")
    run_two_processes(save_logits, checkpoint, tmp_path, how)
    expected = load(checkpoint)(**inputs).logits
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"logits{rank}.pt"), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.full
def test_sharded_ranks_wait_for_each_other(ranks):
    """Each generates its own text, of another length; one that is done takes part in the forwards of the other."""
    checkpoint, folder = ranks
    model, calls = load(checkpoint), calls_of_ranks()
    texts = [torch.load(folder / f"texts{rank}.pt") for rank in range(2)]
    for mine, theirs in zip(*texts, strict=True):
        assert mine[1] == theirs[1], "forwards that only one rank took part in"
    for rank in range(2):
        for (text, _), call in zip(texts[rank], calls[rank], strict=True):
            call.pop("synced_gpus", None)
            assert torch.equal(text, model.generate(**call)), call
    forwards = []
    model.model.register_forward_hook(lambda *_: forwards.append(1))
    model.generate(**calls[0][0])
    assert len(forwards) < texts[0][0][1], "the first rank was not done before the other"


@pytest.mark.full
def test_a_rank_without_targets_trains_together_with_another(ranks):
    _, folder = ranks
    model = load(CHECKPOINTS / "q25").train()
    for batch in batches_of_ranks():
        model(**batch).loss.backward()
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    for how in ("ddp", "fully sharded"):
        torch.testing.assert_close(torch.load(folder / f"{how}.pt"), expected, atol=1e-4, rtol=1e-4)
