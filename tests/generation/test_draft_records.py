"""What verified decoding remembers of drafts: of the text at hand, and of earlier ones."""

import gc

import pytest
import torch
from helpers import CHECKPOINTS, EOS, PAD, left_padded, load
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from wedlm.generation import decoding_run, step_costs
from wedlm.generation.parameters import DEFAULTS
from wedlm.generation.policy import Policy
from wedlm.generation.step_costs import CAUTION, EXPERIENCE, Experience, StepPrices, experience_with
from wedlm.generation.verified import ACCEPTANCE, DOUBT, DOUBT_OF_DRAFT, EARLIER_TEXTS, VerifiedWindow, doubt_of

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
    experience.note_drafts({"group_doubts": torch.tensor([[1.0, 2.0]])})
    experience.note_drafts({"group_doubts": torch.tensor([[torch.nan, 2.0]])})
    assert experience.drafts["group_doubts"].tolist() == [1.0, 2.0]


def test_a_text_begins_halfway_between_the_first_guess_and_earlier_texts():
    generation_config = GenerationConfig(**DEFAULTS, num_looked_up=0, max_matching_ngram_size=None)
    generation_config._eos_token_tensor = None
    policy = Policy.of(generation_config, LogitsProcessorList(), 4, 159, torch.device("cpu"))
    known = {"group_doubts": torch.tensor([4.0, 0.1]), "acceptance": torch.full_like(torch.tensor(ACCEPTANCE), 0.5)}
    window = VerifiedWindow.opened(torch.tensor([5, 6]), 20, policy._replace(known_drafts=known))
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
    prices = StepPrices(Experience(), 4, 0, 8, torch.device("cpu"))
    prices.note(1, 4, 4, 0, 40)
    prices.note(8, 2, 2, 0, 30)  # the texts of two rows are no longer counted
    assert prices.caution == CAUTION and prices.num_tokens == 0


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
