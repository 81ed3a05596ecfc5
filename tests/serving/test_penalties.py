"""Penalties for tokens of the answer, in every decoding."""

from collections import Counter

import pytest
import torch
from serving_client import generated
from tiny_tokenizer import MASK

from wedlm.batching.manager import BatchingManager
from wedlm.serving.penalties import Penalties

DECODINGS = ("autoregressive", "verified", "streaming", "blockwise")


def prompt_length_of(checkpoint):
    return generated(checkpoint, max_new_tokens=1)[0].sequences.shape[1] - 1


def texts(checkpoint, *penalties, **settings):
    processor = Penalties(*penalties, prompt_length_of(checkpoint))
    return generated(checkpoint, logits_processor=[processor], **settings)[1].tolist()


def test_the_formula():
    ids = torch.tensor([[7, 7, 3, 1, 3, 3], [0, 1, 0, 0, 0, 2]])  # two tokens are the prompt
    scores = torch.randn(2, 9)
    expected = scores.clone()
    for row, tokens in enumerate(ids[:, 2:].tolist()):
        for token, number in Counter(tokens).items():
            expected[row, token] -= 0.5 + 0.25 * number
    assert torch.allclose(Penalties(0.5, 0.25, 2)(ids, scores.clone()), expected)
    assert Penalties(0.5, 0.25, 6)(ids, scores).equal(scores)
    assert Penalties(-2.0, 0.0, 2)(ids, scores)[0, 3] == scores[0, 3] + 2
    impossible = scores.index_fill(1, torch.tensor([3]), -torch.inf)
    assert Penalties(0.5, 0.25, 2)(ids, impossible)[:, 3].tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("penalties", [(0.4, 0.3), (-1.0, 0.0), (0.0, 2.0)])
def test_verified_text_is_the_autoregressive_one(checkpoint, penalties, seed):
    drawn = {"seed": seed, "do_sample": True, "top_k": 50} if seed else {}
    one, other = (texts(checkpoint, *penalties, decoding=decoding, **drawn) for decoding in DECODINGS[:2])
    assert one == other != generated(checkpoint, decoding="autoregressive", **drawn)[1].tolist()


@pytest.mark.parametrize("decoding", DECODINGS)
def test_the_penalties_count_the_tokens_of_the_answer_and_no_others(checkpoint, decoding):
    seen = []

    class Seen(Penalties):
        def __call__(self, input_ids, scores):
            seen.append(input_ids[0].tolist())
            return super().__call__(input_ids, scores)

    processor = Seen(1e4, 0.0, prompt_length_of(checkpoint))
    output, answer, _ = generated(checkpoint, logits_processor=[processor], decoding=decoding)
    whole = output.sequences[0].tolist()
    assert all(ids == whole[: len(ids)] for ids in seen) and MASK not in answer
    answer = answer.tolist()
    assert len(set(answer)) == len(answer) == 40  # no token may come twice, and those of the prompt may come
    plain = generated(checkpoint, decoding=decoding)[1].tolist()
    assert len(set(plain)) < 40


@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_request_of_a_batch_gets_the_text_of_generate(checkpoint, decoding):
    length = prompt_length_of(checkpoint)
    prompt = generated(checkpoint, max_new_tokens=1)[0].sequences[0, :length].tolist()
    manager = BatchingManager(checkpoint[1])
    manager.max_cached_tokens = 2048
    manager.start()
    try:
        for name, penalties in (("a", (0.4, 0.3)), ("b", (0.0, 2.0))):
            processors = [Penalties(*penalties, length)]
            manager.add_request(
                prompt, name, max_new_tokens=40, logits_processor=processors, decoding=decoding, do_sample=False
            )
        written = {name: manager.get_result(name, timeout=60).generated_tokens for name in "ab"}
    finally:
        manager.stop(hard_stop=True)
    assert written == {
        "a": texts(checkpoint, 0.4, 0.3, decoding=decoding),
        "b": texts(checkpoint, 0.0, 2.0, decoding=decoding),
    }
