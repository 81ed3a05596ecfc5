"""What verified decoding remembers of drafts: of the text at hand, and of earlier ones."""

import gc

import pytest
import torch
from decoded import policy_with
from free_queries import FixedExperience
from helpers import CHECKPOINTS, EOS, PAD, left_padded, load
from transformers import LogitsProcessor, LogitsProcessorList

from wedlm.generation import decoding_run, step_costs
from wedlm.generation.step_costs import CAUTION, EXPERIENCE, Experience, StepPrices, experience_with
from wedlm.generation.verified import (
    ACCEPTANCE,
    DOUBT,
    DOUBT_OF_DRAFT,
    DRAWN,
    EARLIER_TEXTS,
    LIKELIEST,
    VerifiedWindow,
    doubt_of,
)

MODEL = load(CHECKPOINTS / "q3")
VERIFIED = {"decoding": "verified", "eos_token_id": EOS, "pad_token_id": PAD}


class Counts(LogitsProcessor):
    """Writes 10 to 16 over and over, so that look-up finds all of it."""

    def __call__(self, input_ids, scores):
        wanted = 10 + (input_ids[:, -1:] - 9) % 7
        return torch.full_like(scores, -1e9).scatter(1, wanted, 0.0)


@pytest.mark.parametrize("window_size", [16, 32, 100])
def test_records_stay_chances_where_many_tokens_become_known_at_once(monkeypatch, window_size):
    refill, known, doubts, expected = VerifiedWindow.refill, [], [], []

    def watched(self, num_run, policy):
        known.append(num_run.item())
        doubts.append(self.doubt.item())
        expected.append(self.expected.clone())
        refill(self, num_run, policy)

    monkeypatch.setattr(VerifiedWindow, "refill", watched)
    more = {"window_size": window_size, "prompt_lookup_num_tokens": window_size, "max_new_tokens": 600}
    MODEL.generate(
        **left_padded([[10, 11, 12, 13, 14, 15, 16] * 3]),
        **VERIFIED | more,
        logits_processor=LogitsProcessorList([Counts()]),
    )
    assert max(known) == min(window_size, 32), "no step made many tokens known"
    assert all(0 <= doubt <= 4.7 for doubt in doubts)
    expected = torch.cat(expected)
    assert expected.min() >= 0 and expected.max() <= 1


def test_scores_that_are_no_numbers_leave_no_record():
    assert doubt_of(torch.tensor([torch.nan, 0.0, 1.0])).tolist() == pytest.approx([4.605, 4.605, 0.0], abs=1e-3)
    experience = Experience()
    first = {"group_doubts": torch.tensor([[1.0, 2.0]])}
    experience.note_drafts(first, {"group_doubts": torch.tensor([[torch.nan, 3.0]])})
    assert experience.draft_records["group_doubts"].tolist() == pytest.approx([1.0, 2.3])


def test_a_text_begins_halfway_between_the_first_guess_and_earlier_texts():
    known = {"group_doubts": torch.tensor([4.0, 0.1]), "acceptance": torch.full_like(torch.tensor(ACCEPTANCE), 0.5)}
    window = VerifiedWindow.opened(torch.tensor([5, 6]), 20, policy_with(4, draft_records=known))
    assert EARLIER_TEXTS == 0.5
    for row in range(2):
        assert window.group_doubts[row].tolist() == pytest.approx([(DOUBT_OF_DRAFT + 4) / 2, (DOUBT + 0.1) / 2])
        torch.testing.assert_close(window.acceptance[row], (torch.tensor(ACCEPTANCE) + 0.5) / 2)


def test_experience_is_that_of_one_model_in_one_dtype_and_goes_with_it():
    model = load(CHECKPOINTS / "q3")
    own = experience_with(model)
    assert experience_with(model) is own and experience_with(MODEL) is not own
    assert experience_with(model.double()) is not own
    assert experience_with(model.float()) is own
    num_models = len(EXPERIENCE)
    del model, own
    gc.collect()
    assert len(EXPERIENCE) < num_models


def test_a_step_after_which_rows_were_dropped_says_nothing_of_gains():
    prices = StepPrices(FixedExperience({8: 0.0}), 4, 0, 8, torch.device("cpu"))
    prices.note(1, 4, 4, 0, 40)
    prices.note(8, 2, 2, 0, 30)  # the texts of two rows are no longer counted
    assert prices.caution == CAUTION and prices.num_tokens == 0
    prices.note(8, 2, 2, 0, 34)
    assert prices.caution < CAUTION and prices.num_tokens == 2


def test_a_slot_is_drafted_by_the_kind_that_was_accepted_more_often():
    """Where tokens are drawn: the likeliest token of a MASK, or one that is drawn from its scores."""
    policy = policy_with(4)
    likely = torch.tensor([[5, 5, 6, 7, 8]]), torch.full((1, 5), 0.6)  # of the known token, then of its group
    drawn = torch.tensor([[5, 5, 16, 17, 18]]), torch.full((1, 5), 0.6)
    for favoured, expected in ((LIKELIEST, [6, 7, 8]), (DRAWN, [16, 17, 18])):
        window = VerifiedWindow.opened(torch.tensor([5]), 20, policy)
        window.acceptance = torch.full_like(window.acceptance, 0.5)
        window.acceptance[:, favoured] = 0.8
        window.groups = torch.tensor([[0, 4, 4, 4, 4]])
        window.draft(torch.tensor([[0]]), torch.tensor([1]), [likely, drawn], policy)
        assert window.drafts.tolist() == [expected]
        assert window.chances[0].tolist() == pytest.approx([0.8, 0.64, 0.512])


def test_drafts_are_looked_up_by_themselves_where_the_number_of_queries_is_free():
    assert policy_with(16, is_free=True).num_looked_up == 15 and policy_with(16).num_looked_up == 0
    text = {**left_padded([[10, 11, 12, 13, 14, 15, 16] * 3]), **VERIFIED, "max_new_tokens": 40}
    text |= {"logits_processor": LogitsProcessorList([Counts()]), "return_dict_in_generate": True}
    forwards = MODEL.generate(**text).forwards.item()
    assert 4 * forwards < MODEL.generate(**text, prompt_lookup_num_tokens=0).forwards.item()


def test_rows_that_have_ended_have_no_say_in_a_plan():
    """Their drafts would pay for all; the row that is alive has none."""
    policy = policy_with(4, prices=torch.arange(8) * 0.4)
    window = VerifiedWindow.opened(torch.tensor([5, 5]), 200, policy)
    window.chances = torch.tensor([[0.9, 0.9, 0.9], [0.0, 0.0, 0.0]])
    assert window.plan(torch.tensor([20, 20]), 1, policy).num_drafts.tolist() == [3, 0]
    window.alive = torch.tensor([False, True])
    assert window.plan(torch.tensor([20, 20]), 1, policy).num_drafts.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("more", "tp_size", "is_free"),
    [
        ({}, None, True),
        ({}, 1, True),
        ({}, 2, False),
        ({"use_cache": False}, None, False),
        ({"window_size": 4}, None, False),
        ({"cache_implementation": "static"}, None, True),
        ({"decoding": "streaming"}, None, False),
    ],
    ids=str,
)
def test_queries_are_free_to_choose_where_steps_can_be_compared(monkeypatch, more, tp_size, is_free):
    """Ranks of tensor parallelism take the same steps; without a cache a forward reads the whole text."""
    asked = []
    monkeypatch.setattr(decoding_run, "experience_with", lambda model: asked.append(1) or step_costs.Experience())
    monkeypatch.setattr(type(MODEL), "tp_size", tp_size)
    MODEL.generate(**left_padded([[5, 6, 7]]), **VERIFIED | more, max_new_tokens=8)
    assert bool(asked) == is_free
