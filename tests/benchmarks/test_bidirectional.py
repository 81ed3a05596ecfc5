"""Bidirectional attention inside a block adds what it says to the attention of training, and nothing else."""

from types import SimpleNamespace

import torch
from helpers import MASK, logits_of

from wedlm.training.dual_stream import dual_stream_mask

# Two samples and padding: memory of 3 tokens in blocks of 2, its prediction, memory of 1 token, its prediction.
SAMPLE = [0, 0, 0, 0, 0, 0, 1, 1, -1]
STREAM = [0, 0, 0, 1, 1, 1, 0, 1, 0]
BLOCK = [0, 0, 1, 0, 0, 1, 0, 0, 0]
SEES = """
    1 0 0 0 0 0 0 0 0
    1 1 0 0 0 0 0 0 0
    1 1 1 0 0 0 0 0 0
    0 0 0 1 * 0 0 0 0
    0 0 0 1 1 0 0 0 0
    1 1 0 0 0 1 0 0 0
    0 0 0 0 0 0 1 0 0
    0 0 0 0 0 0 0 1 0
    0 0 0 0 0 0 0 0 1
"""  # * is what bidirectional attention adds


def literal(star: int) -> torch.Tensor:
    lines = [line.replace("*", str(star)).split() for line in SEES.split("\n") if line.strip()]
    return torch.tensor([[int(entry) for entry in line] for line in lines]).bool()


def test_a_prediction_sees_its_whole_block_and_nothing_else_sees_more(load_benchmark):
    config = SimpleNamespace(layer_types=["full_attention"], _attn_implementation="sdpa")
    ids = [torch.tensor([ids]) for ids in (SAMPLE, STREAM, BLOCK)]
    bidirectional_blocks = load_benchmark("bidirectional").bidirectional_blocks
    causal, bidirectional = literal(0), literal(1)
    assert torch.equal(dual_stream_mask(config, *ids)[0, 0], causal)
    with bidirectional_blocks():
        assert torch.equal(dual_stream_mask(config, *ids)[0, 0], bidirectional)
    assert torch.equal(dual_stream_mask(config, *ids)[0, 0], causal)


def test_a_prediction_of_training_is_a_forward_of_decoding(load_benchmark, model):
    """The logits of a block behind its clean text are those of a window of decoding, all of whose queries see it."""
    bidirectional_blocks = load_benchmark("bidirectional").bidirectional_blocks
    sees_inside = load_benchmark("variant_decoding").sees_inside
    tokens, masked = torch.arange(10, 19), [4, 5, 7]
    # The block from 3 to 8; token 8 stands behind MASK tokens, where neither training nor decoding puts one.
    order = [3, 6, 4, 5, 7, 8]
    positions = [*range(9), *order]
    input_ids = torch.cat([tokens, torch.tensor([MASK if i in masked else tokens[i] for i in order])])
    streams = {"sample_ids": [0] * 15, "stream_ids": [0] * 9 + [1] * 6, "block_ids": [0] * 3 + [1] * 6 + [1] * 6}
    batch = {name: torch.tensor([ids]) for name, ids in streams.items()}
    model.set_attn_implementation("sdpa")
    with torch.no_grad(), bidirectional_blocks():
        trained = model(input_ids=input_ids[None], position_ids=torch.tensor([positions]), **batch).logits[0, 9:]
    sees = torch.ones(9, 9).tril().bool()
    sees[3:, 3:] = sees_inside(6, "bidirectional")
    context = [*tokens[:3].tolist(), *input_ids[9:].tolist()]
    decoded = logits_of(model)(context, [0, 1, 2, *order], sees.tolist())[3:]
    torch.testing.assert_close(trained, decoded, atol=1e-4, rtol=1e-4)
