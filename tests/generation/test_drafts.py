"""What verified decoding makes of drafts: the same in each call, by a record that corrects and forgets."""

import pytest
import torch
from decoded import SPECIAL, begun, settings_with
from draft_models import drafted
from helpers import CHECKPOINTS, EOS, PAD, left_padded, load
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings
from transformers import LogitsProcessor, LogitsProcessorList

from wedlm.generation import branches
from wedlm.generation.branches import BRANCHES, NEXT_CHANCE
from wedlm.generation.sampling import are_possible, share_of_best
from wedlm.generation.sequences import State
from wedlm.generation.verified import DECAY, HALF_MATCH, MOST_MATCHED, PRIOR, corrections

MODEL = load(CHECKPOINTS / "q3")
DRAFTED = drafted().double()  # where no rounding decides
VERIFIED = {"decoding": "verified", "eos_token_id": EOS, "pad_token_id": PAD}
REPEATS = [10, 11, 12, 13, 14, 15, 16] * 3


SETTINGS = settings_with(BRANCHES, 4)


def kept_with(record=None):
    sequences, kept = begun(BRANCHES, SETTINGS, [5], 40)
    kept = kept._replace(bounds=torch.tensor([[1, 5, 5, 5, 5]]))
    return sequences, kept if record is None else kept._replace(record=torch.tensor([record]))


def draft(sequences, kept, shares=0.6, num_new=1):
    """Drafts from MASKs: the query of the text and a branch of four, the first of which makes none."""
    tokens = torch.tensor([[5, 5, 6, 7, 8]])
    state, shares = State(sequences, kept), torch.full((1, 5), shares)
    return branches.draft(state, tokens, shares, torch.tensor([num_new]), SETTINGS).kept


def test_a_record_corrects_what_is_expected_of_drafts():
    for record, factor in (
        ([[0.0] * 3, [0.0] * 3], 1.0),
        ([[1.0, 0.0, 0.0], [4.0, 0.0, 0.0]], (1 + PRIOR) / (4 + PRIOR)),
        ([[4.0, 0.0, 0.0], [3.0, 0.0, 0.0]], (4 + PRIOR) / (3 + PRIOR)),
    ):
        kept = draft(*kept_with(record))
        assert kept.tokens.tolist() == [[6, 7, 8]] and not kept.is_looked_up
        assert kept.chances[0].tolist() == pytest.approx([(0.6 * factor) ** n for n in (1, 2, 3)])


def test_a_record_counts_verified_drafts_and_forgets():
    """Of three drafts of 0.5 each, one was accepted and the next one rejected."""
    sequences, kept = kept_with([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    kept = kept._replace(num_drafts=torch.tensor([3]), estimates=torch.full((1, 3), 0.5))
    kept = kept._replace(bounds=torch.zeros_like(kept.bounds))
    kept = draft(sequences, kept, num_new=2)
    accepted, expected = kept.record[0].tolist()
    assert accepted == pytest.approx([DECAY + 1, DECAY, DECAY])
    assert expected == pytest.approx([2 * DECAY + 1.0, 2 * DECAY, 2 * DECAY])
    for _ in range(100):
        kept = draft(sequences, kept._replace(num_drafts=torch.tensor([0])))
    assert kept.record.max() < 1e-3 and corrections(kept.record).sub(1).abs().max() < 1e-3, "it is tried again"


def test_the_chances_of_a_branch_say_what_the_next_one_promises():
    kept = draft(*kept_with(), shares=0.5)
    assert kept.record[0, :, 2].tolist() == pytest.approx([0.875, NEXT_CHANCE * 1.75])
    assert (NEXT_CHANCE * corrections(kept.record)[0, 2]).item() < NEXT_CHANCE


def test_the_longer_the_match_the_likelier_the_draft():
    settings = SETTINGS._replace(rule=SETTINGS.rule._replace(num_looked_up=2))
    sequences, kept = kept_with()
    sequences = sequences._replace(prompt=torch.tensor([[10, 11, 12, 13, 10, 11]]))
    sequences.tokens[0, 0] = 12
    one = torch.ones(1).long()
    kept = branches.draft(State(sequences, kept), 0 * one[None], torch.zeros(1, 1), one, settings).kept
    assert kept.is_looked_up and kept.tokens[0, :2].tolist() == [13, 10]
    assert kept.estimates[0].tolist() == pytest.approx([3 / (3 + HALF_MATCH), 4 / (4 + HALF_MATCH), 0])
    assert MOST_MATCHED == 6


def test_scores_that_are_no_numbers_promise_nothing():
    scores = torch.tensor([[torch.nan, 1.0], [-torch.inf, -torch.inf], [torch.inf, 0.0], [0.0, -torch.inf]])
    best = scores.amax(-1)
    assert share_of_best(scores, scores, best).tolist() == [0, 0, 0, 1] and are_possible(best).tolist() == [
        False,
        False,
        True,
        True,
    ]


class Counts(LogitsProcessor):
    """Writes 10 to 16 over and over, so that look-up finds all of it; ends the texts that begin with 9 at once."""

    def __call__(self, input_ids, scores):
        wanted = torch.where(input_ids[:, :1] == 9, EOS, 10 + (input_ids[:, -1:] - 9) % 7)
        return torch.full_like(scores, -1e9).scatter(1, wanted, 0.0)


COUNTS = {"logits_processor": LogitsProcessorList([Counts()]), "return_dict_in_generate": True}


def test_chances_of_a_text_that_repeats_itself_stay_chances(monkeypatch):
    draft, chances = branches.draft, []
    noted = lambda *given: (state := draft(*given), chances.append(state.kept.chances.clone()))[0]  # noqa: E731
    monkeypatch.setattr(branches, "draft", noted)
    MODEL.generate(**left_padded([REPEATS]), **VERIFIED, **COUNTS, max_new_tokens=300, window_size=60)
    chances = torch.cat(chances)
    assert chances.min() >= 0 and 0.9 < chances.max() < 1


def test_rows_that_have_ended_keep_no_other_row_from_drafting():
    """A hook keeps them in the batch, as static steps do."""
    handle = MODEL.model.register_forward_hook(lambda *_: None)
    prompts = left_padded([REPEATS] + [[9, *REPEATS[:-1]]] * 7)
    output = MODEL.generate(**prompts, **VERIFIED, **COUNTS, query_cost=0.1, max_new_tokens=40)
    handle.remove()
    assert output.forwards.tolist()[1:] == [1] * 7 and output.forwards[0] < 30
    assert output.verified_drafts[0].sum() > 10


@given(st.lists(st.lists(st.integers(3, 12), min_size=1, max_size=9), min_size=2, max_size=5), st.booleans())
@property_settings(15, deadline=None, derandomize=True)
def test_where_drafts_decide_the_text_no_row_depends_on_another(prompts, is_static):
    """Below a ratio of 1."""
    arguments = {**SPECIAL, "decoding": "verified", "acceptance_ratio": 0.2, "query_cost": 0.04, "max_new_tokens": 20}
    static = {"cache_implementation": "static"} if is_static else {}
    inputs = left_padded(prompts)
    together = DRAFTED.generate(**inputs, **arguments, **static)[:, inputs["input_ids"].shape[1] :]
    for prompt, row in zip(prompts, together, strict=True):
        alone = DRAFTED.generate(torch.tensor([prompt]), **arguments)[0, len(prompt) :]
        assert torch.equal(row[: len(alone)], alone)


def test_equal_calls_take_equal_forwards():
    """Neither a clock nor an earlier call has a say."""
    arguments = {**left_padded([REPEATS]), **VERIFIED, "max_new_tokens": 24, "return_dict_in_generate": True}
    outputs = []
    for number in range(6):
        outputs.append(MODEL.generate(**arguments))
        MODEL.generate(**left_padded([[5 + number]]), **VERIFIED, max_new_tokens=3 + number)
    assert len({(tuple(each.sequences[0].tolist()), each.forwards.item()) for each in outputs}) == 1
    assert all(torch.equal(each.verified_drafts, outputs[0].verified_drafts) for each in outputs)


def test_chunks_of_a_prompt_change_no_later_forward():
    """What a query is worth depends on the tokens of a forward, among which those over chunks do not count."""
    call = {**left_padded([REPEATS]), **VERIFIED, "eos_token_id": None, "max_new_tokens": 60, "query_cost": 0.2}
    call |= {"return_dict_in_generate": True, "window_size": 8}
    whole, chunked = (DRAFTED.generate(**call, prefill_chunk_size=size) for size in (None, 1))
    assert chunked.forwards == whole.forwards + len(REPEATS) - 1 and whole.forwards < 50
    assert torch.equal(chunked.verified_drafts, whole.verified_drafts)
