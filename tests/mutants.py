"""`make mutants`: breaks one line at a time, in a copy, and shows which test notices; exits with 1 if none does."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parent.parent
ROOMS = ["modeling_wedlm", "generation", "training", "hub_card"]

TIMEOUT_SECONDS = 240  # several times what any of the tests takes


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str  # file::name, as pytest's arguments; every one of its cases is run


MODEL, CONFIG = "modeling_wedlm/modeling_wedlm.py", "modeling_wedlm/configuration_wedlm.py"
HUB_CODE, REGISTRATION = "modeling_wedlm/hub_code.py", "wedlm/registration.py"
GENERATION, WINDOW = "generation/generation_wedlm.py", "generation/window.py"
SELECTION, SAMPLING = "generation/position_selection.py", "generation/token_sampling.py"
CACHE, PROMPT, STATS = "generation/row_cache.py", "generation/prompt.py", "generation/stats.py"
SUPPORT, READERS = "generation/support.py", "generation/text_readers.py"
CONVERT, SHARDS = "modeling_wedlm/convert.py", "modeling_wedlm/shards.py"
TOKENIZER, NEW_FOLDER = "modeling_wedlm/tokenizer_files.py", "modeling_wedlm/new_folder.py"
CLI = "wedlm/cli.py"
DEMO = "hub_card/demo"
HELD_OUT = "test_demo_tasks.py::test_no_test_problem_is_in_the_training_stream"
WRONG = "test_demo_tasks.py::test_what_is_wrong_by_hand_is_refused"
ONE_CHARACTER = "test_demo_tasks.py::test_an_answer_with_one_character_changed_is_refused"
ONE_PART = "test_demo_tasks.py::test_an_answer_with_a_part_left_out_or_said_twice_is_refused"
ONE_STORY = "test_demo_tasks.py::test_a_story_that_does_not_agree_is_refused"
SANDBOX = "test_sandbox.py::test_what_is_wrong_or_not_allowed_fails"
PIECES = "test_demo_tokenizer.py::test_texts_fall_into_words_signs_and_single_digits"
REFUSED = "test_convert.py::test_what_cannot_be_converted_is_refused_in_a_sentence_and_nothing_is_written"
BOTH_WAYS, MOMENTS = (
    "test_convert.py::test_there_and_back",
    "test_convert.py::test_struck_at_every_moment_the_result_is_complete_or_absent",
)
REFERENCE = "test_generation_wedlm.py::test_any_batch_equals_the_reference_row_by_row"
READERS_REFERENCE = "test_text_readers.py::test_any_batch_equals_the_reference_row_by_row"
IN_STEP = "test_text_readers.py::test_whoever_keeps_state_is_called_as_in_transformers_loop"
STOPPING = "test_text_readers.py::test_text_ends_where_it_would_have_token_by_token"
TURNS = "test_multi_turn.py::test_ten_turns_equal_a_fresh_call_each"
COLUMNS = "test_multi_turn.py::test_what_comes_back_covers_the_columns_that_every_row_has"
OTHER_WAYS = "test_multi_turn.py::test_other_ways_to_the_same_text"
ITERATOR = "test_streamers.py::test_an_iterator_ends_when_generation_fails"

MUTANTS = [
    Mutant(
        "position_ids reach the attention",
        MODEL,
        "return super().forward(*args, **kwargs)",
        "return super().forward(*args, position_ids=position_ids, **kwargs)",
        "test_modeling_wedlm.py::test_reordered_window_equals_the_reference",
    ),
    Mutant(
        "position_ids reach the mask",
        MODEL,
        "past_key_values=past_key_values,\n            )",
        "past_key_values=past_key_values,\n                position_ids=position_ids,\n            )",
        "test_modeling_wedlm.py::test_reordered_window_equals_the_reference",
    ),
    Mutant(
        "the mask forgets the cache",
        MODEL,
        "past_key_values=past_key_values,\n            )",
        "past_key_values=None,\n            )",
        "test_modeling_wedlm.py::test_logits_equal_the_recorded_ones",
    ),
    Mutant(
        "padding is dropped",
        MODEL,
        "attention_mask=attention_mask,\n                past",
        "attention_mask=None,\n                past",
        "test_modeling_wedlm.py::test_padding_does_not_reach_a_row",
    ),
    Mutant(
        "the output projection keeps Qwen3's bias",
        MODEL,
        "if config.attention_bias:",
        "if False:",
        "test_modeling_wedlm.py::test_a_head_of_any_width_and_a_batch_of_any_shape",
    ),
    Mutant(
        "q/k norms always",
        MODEL,
        "if not config.qk_norm:",
        "if False:",
        "test_modeling_wedlm.py::test_logits_equal_the_slow_reference_at_any_positions",
    ),
    Mutant(
        "a layer may be split over devices",
        MODEL,
        '_no_split_modules = ["WeDLMDecoderLayer"]',
        '_no_split_modules = ["Qwen3DecoderLayer"]',
        "test_modeling_wedlm.py::test_plans_and_flags_are_qwens",
    ),
    Mutant(
        "sizes are not checked by the model",
        MODEL,
        "        check_config(config)\n",
        "",
        "test_modeling_wedlm.py::test_sizes_are_checked_where_the_model_is_built",
    ),
    Mutant(
        "pickled weights load unasked",
        MODEL,
        "use_safetensors=True,",
        "use_safetensors=None,",
        "test_modeling_wedlm.py::test_pickled_weights_are_not_loaded_unasked",
    ),
    Mutant(
        "cached text is dropped in training",
        MODEL,
        "if past_key_values.get_seq_length() > 0:",
        "if False:",
        "test_modeling_wedlm.py::test_gradient_checkpointing_with_cached_text_is_refused",
    ),
    Mutant(
        "eager adds a bool mask",
        MODEL,
        "if is_dense and attention_mask.dtype == torch.bool",
        "if False",
        "test_modeling_wedlm.py::test_reordered_window_equals_the_reference",
    ),
    Mutant(
        "the ban of MASK lies on the device of an offloaded model",
        GENERATION,
        "device=device or self.device)",
        "device=self.device)",
        "test_modeling_wedlm.py::test_device_maps",
    ),
    Mutant(
        "a caller's own class is lost",
        HUB_CODE,
        "{**AUTO_MAP, **own}",
        "{**own, **AUTO_MAP}",
        "test_hub_code.py::test_a_users_subclass_is_saved_beside_the_package",
    ),
    Mutant(
        "any architecture loads",
        CONFIG,
        "if model_type != MODEL_TYPE:",
        "if False:",
        "test_modeling_wedlm.py::test_another_architecture_is_named",
    ),
    Mutant(
        "the last id of the vocabulary is refused",
        CONFIG,
        "< config.vocab_size:",
        "< config.vocab_size - 1:",
        "test_configuration_wedlm.py::test_official_config_is_read",
    ),
    Mutant(
        "one id past the vocabulary is taken",
        CONFIG,
        "<= config.mask_token_id < config.vocab_size",
        "<= config.mask_token_id <= config.vocab_size",
        "test_configuration_wedlm.py::test_a_mask_token_outside_the_vocabulary_is_refused",
    ),
    Mutant(
        "the code stays at home",
        HUB_CODE,
        'Path(save_directory, name).write_text(source, encoding="utf-8")',
        "pass",
        "test_hub_code.py::test_trainer_checkpoints_are_complete",
    ),
    Mutant(
        "the official auto_map survives",
        CONFIG,
        "self.auto_map = copy_code(",
        "copy_code(",
        "test_hub_code.py::test_official_auto_map_does_not_survive",
    ),
    Mutant(
        "imports are not flattened",
        HUB_CODE,
        'PACKAGE_IMPORT.sub(r"from .\\2 import ", source)',
        "source",
        "test_hub_code.py::test_loads_without_the_package_and_saves_the_same_folder_again",
    ),
    Mutant(
        "the config uploads before its code is there",
        CONFIG,
        "super().save_pretrained(save_directory)\n        if push_to_hub:",
        "super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)\n        if False:",
        "test_hub_code.py::test_uploads_carry_the_code",
    ),
    Mutant(
        "registered only if transformers is there already",
        REGISTRATION,
        "sys.meta_path.insert(0, RegisterOnImport())",
        "pass",
        "test_registration.py::test_registration_in_any_order_of_imports_and_in_silence",
    ),
    Mutant(
        "registration imports the model at once",
        REGISTRATION,
        "            mapping._model_mapping[MODEL_TYPE] = class_name\n",
        "            mapping._model_mapping[MODEL_TYPE] = class_name\n"
        "            importlib.import_module('wedlm.modeling_wedlm.modeling_wedlm')\n",
        "test_registration.py::test_import_costs_little",
    ),
    Mutant(
        "MASK may be produced",
        GENERATION,
        "if self.config.mask_token_id is not None:",
        "if False:",
        "test_generation_wedlm.py::test_mask_is_never_produced",
    ),
    Mutant(
        "distance counts from the last slot", SELECTION, "slots - slots[:, :1]", "slots[:, -1:] - slots", REFERENCE
    ),
    Mutant(
        "distance counts open slots only",
        SELECTION,
        "(slots - slots[:, :1])",
        "torch.arange(slots.shape[1])",
        REFERENCE,
    ),
    Mutant(
        "the threshold itself is below",
        SELECTION,
        "certain = adjusted < entropy_threshold",
        "certain = adjusted <= entropy_threshold",
        "test_position_selection.py::test_the_threshold_itself_is_not_below",
    ),
    Mutant(
        "the least is not taken when none is below",
        SELECTION,
        "torch.where(certain.any(-1, keepdim=True), certain, least)",
        "certain",
        "test_position_selection.py::test_without_one_below_or_without_a_threshold_the_least_is_taken",
    ),
    Mutant(
        "the least is always taken as well",
        SELECTION,
        "torch.where(certain.any(-1, keepdim=True), certain, least)",
        "(certain | least.roll(1, -1))",
        "test_position_selection.py::test_every_slot_below_the_threshold_is_taken",
    ),
    Mutant(
        "closed slots are taken",
        SELECTION,
        "certain, least) & is_open",
        "certain, least)",
        "test_position_selection.py::test_closed_slots_are_never_taken",
    ),
    Mutant(
        "entropy of what is left after the processors",
        GENERATION,
        "entropy_of(logits)",
        "entropy_of(logits[..., :-1])",
        REFERENCE,
    ),
    Mutant(
        "positions are not reordered with their tokens",
        WINDOW,
        "position_ids=self.prompt_lengths[:, None] + slots,",
        "position_ids=self.prompt_lengths[:, None] + self.slots(width)[0],",
        REFERENCE,
    ),
    Mutant(
        "filled slots stand in any order",
        WINDOW,
        "torch.where(filled, 0, torch",
        "torch.where(filled, -slots, torch",
        REFERENCE,
    ),
    Mutant(
        "one row too many is committed",
        GENERATION,
        "cache.commit(rows.num_final)",
        "cache.commit(rows.num_final + 1)",
        REFERENCE,
    ),
    Mutant(
        "one row too few stays in the cache",
        GENERATION,
        "cache.commit(rows.num_final)",
        "cache.commit((rows.num_final - 1).clamp(min=0))",
        "test_generation_wedlm.py::test_the_cache_equals_a_fresh_prefill_after_every_step",
    ),
    Mutant(
        "one slot too few is refilled",
        WINDOW,
        "self.end = torch.where(self.alive, end, self.start)",
        "self.end = torch.where(self.alive, (end - 1).clamp(min=self.start + 1), self.start)",
        REFERENCE,
    ),
    Mutant(
        "slots past max_new_tokens",
        WINDOW,
        "(self.end + self.num_leading).clamp(max=self.max_new_tokens)",
        "self.end + self.num_leading",
        REFERENCE,
    ),
    Mutant("blockwise commits early", WINDOW, "if blockwise else self.alive", "if False else self.alive", REFERENCE),
    Mutant(
        "the end is seen one step late",
        WINDOW,
        "self.alive & ~has_end &",
        "self.alive & ~(has_end & (self.num_leading > 0)) &",
        REFERENCE,
    ),
    Mutant("the end token is dropped", WINDOW, "is_end.argmax(-1) + 1", "is_end.argmax(-1)", REFERENCE),
    Mutant(
        "an end token behind an open slot ends the row",
        WINDOW,
        ".any(-1) * in_run",
        ".any(-1) * filled",
        REFERENCE,
    ),
    Mutant(
        "a filled slot is filled again", WINDOW, "is_open=is_open,", "is_open=torch.ones_like(is_open),", REFERENCE
    ),
    Mutant("finished rows are counted on", WINDOW, "self.forwards + self.alive", "self.forwards + 1", REFERENCE),
    Mutant(
        "window rows are counted after the commit",
        WINDOW,
        "(self.end - self.start)\n\n    def commit",
        "(self.end - self.start - self.num_leading)\n\n    def commit",
        REFERENCE,
    ),
    Mutant(
        "cacheability divides by rows alone",
        STATS,
        "tokens / torch.maximum(window_rows, tokens)",
        "tokens / window_rows",
        "test_generation_wedlm.py::test_statistics_of_known_counts",
    ),
    Mutant(
        "rows see stale entries", CACHE, "<= self.entries[..., None]", "<= self.entries[..., -1:, None]", REFERENCE
    ),
    Mutant(
        "the cache grows by a row at a time",
        CACHE,
        "min(2 * live, most)",
        "live",
        "test_generation_wedlm.py::test_no_step_copies_the_cache",
    ),
    Mutant(
        "the forward reads the whole capacity",
        CACHE,
        "self.live = longest + num_rows",
        "self.live = self.most",
        "test_generation_wedlm.py::test_no_step_copies_the_cache",
    ),
    Mutant(
        "the head sees every row",
        GENERATION,
        "rows_to_keep=rows.open_rows,",
        "rows_to_keep=torch.arange(rows.input_ids.shape[1]).expand_as(rows.input_ids),",
        "test_generation_wedlm.py::test_the_head_sees_open_slots_only_and_the_prompt_carries_the_window",
    ),
    Mutant(
        "an impossible slot is filled",
        GENERATION,
        "if num_impossible > 0:",
        "if False:",
        "test_generation_wedlm.py::test_when_no_token_can_be_chosen_row_and_position_are_named",
    ),
    Mutant(
        "padding counts as autoregressive tokens",
        GENERATION,
        "num_tokens = num_tokens - is_padding.sum(-1)",
        "pass",
        "test_generation_wedlm.py::test_autoregressive_rows_that_a_criterion_ended_count_no_padding",
    ),
    Mutant(
        "sampling is greedy",
        SAMPLING,
        "if do_sample:",
        "if False:",
        "test_generation_wedlm.py::test_samples_follow_the_models_distribution",
    ),
    Mutant(
        "an explicit None threshold is lost",
        GENERATION,
        "(defaults | given)",
        "(given | defaults)",
        "test_generation_wedlm.py::test_a_call_or_its_config_overrides_the_defaults",
    ),
    Mutant(
        "changed defaults are lost on reload",
        GENERATION,
        "generation_config._from_model_config = False",
        "pass",
        "test_generation_wedlm.py::test_changed_defaults_survive_saving",
    ),
    Mutant("padding is not moved", PROMPT, "Text(new.gather(1, tokens_first)", "Text(new", REFERENCE),
    Mutant(
        "finished rows stay in the batch",
        GENERATION,
        "if rows_may_leave and 0 < 2 * num_alive <= len(window.alive):",
        "if False:",
        "test_generation_wedlm.py::test_finished_rows_leave_the_batch",
    ),
    Mutant(
        "rows that left are forgotten",
        GENERATION,
        "                batch.put(window)\n                kept",
        "                kept",
        REFERENCE,
    ),
    Mutant(
        "learned prompts are dropped",
        SUPPORT,
        "(owner := model.prepare_inputs_for_generation.__self__) is not model",
        "False",
        "test_generation_wedlm.py::test_prompt_learning_is_refused_by_name",
    ),
    Mutant(
        "other limits of the caller are ignored",
        READERS,
        "return criterion.max_length >= criteria.max_length",
        "return True",
        "test_text_readers.py::test_a_limit_of_the_callers_may_be_beyond_max_new_tokens",
    ),
    Mutant(
        "other end tokens of the caller are ignored",
        READERS,
        "return set(criterion.eos_token_id.tolist()) ==",
        "return True or",
        STOPPING,
    ),
    Mutant(
        "a limit of the caller does not bound the window",
        GENERATION,
        "stopping_criteria.max_length - input_ids",
        "generation_config.max_length - input_ids",
        "test_text_readers.py::test_a_limit_of_the_callers_may_be_beyond_max_new_tokens",
    ),
    Mutant(
        "a run goes on behind a gap",
        SELECTION,
        "selected.cumprod(-1).sum(-1), is_open",
        "selected.sum(-1), is_open",
        READERS_REFERENCE,
    ),
    Mutant(
        "a run goes on behind the slot it must have",
        SELECTION,
        "torch.maximum(selected.cumprod(-1).sum(-1), is_open[:, 0].long())",
        "torch.cat([is_open[:, :1], selected[:, 1:]], -1).cumprod(-1).sum(-1)",
        "test_position_selection.py",
    ),
    Mutant(
        "left to right the first slot's logits serve all",
        READERS,
        "self.runs[row][slot - self.num_known[row]]",
        "self.runs[row][0]",
        READERS_REFERENCE,
    ),
    Mutant(
        "a processor sees one column too few",
        READERS,
        "self.ids[:, : self.prompt_width + slot].contiguous(), logits",
        "self.ids[:, : self.prompt_width + slot - 1].contiguous(), logits",
        READERS_REFERENCE,
    ),
    Mutant(
        "text before the slot is not told to processors",
        READERS,
        "            self.ids[rows, width] = tokens\n",
        "",
        READERS_REFERENCE,
    ),
    Mutant(
        "rows that may not wait do",
        READERS,
        "self.in_step = any(type(reader) not in STATELESS_READERS for reader in [*processors, *criteria])",
        "self.in_step = True",
        READERS_REFERENCE,
    ),
    Mutant("rows are never in step", READERS, "if self.in_step and rows != alive:", "if False:", IN_STEP),
    Mutant(
        "a waiting row takes other logits",
        READERS,
        "if self.num_read[row] == self.num_known[row]:",
        "if True:",
        "test_text_readers.py::test_rows_in_step_have_the_text_they_have_alone",
    ),
    Mutant(
        "a row goes on behind its end",
        READERS,
        "            alive = [row for row in alive if self.alive[row]]\n",
        "",
        READERS_REFERENCE,
    ),
    Mutant(
        "criteria see all that is known",
        READERS,
        "self.criteria(self.ids[:, : width + 1].contiguous(), scores)",
        "self.criteria(self.ids, scores)",
        STOPPING,
    ),
    Mutant("criteria are asked of one row for all", READERS, "not is_done[row] and", "not is_done[0] and", STOPPING),
    Mutant(
        "criteria are given no scores",
        READERS,
        'scores = tuple(self.records["scores"].columns[: slot + 1]) if "scores" in self.records else None',
        "scores = None",
        "test_text_readers.py::test_a_criterion_is_given_the_scores_of_the_text",
    ),
    Mutant(
        "what waits to be read is filled",
        READERS,
        "selected = rows.is_open & (slots < self.of_window(self.num_read, window)[:, None])",
        "selected = rows.is_open & (slots < self.of_window(self.num_known, window)[:, None])",
        IN_STEP,
    ),
    Mutant(
        "scores behind the end stay",
        READERS,
        "torch.where((slot < num_tokens)[:, None], column, 0)",
        "column",
        "test_text_readers.py::test_transition_scores_of_ragged_batches",
    ),
    Mutant(
        "scores are recorded as logits",
        READERS,
        "logits=logits, scores=scores)\n        window",
        "logits=scores, scores=scores)\n        window",
        "test_text_readers.py::test_scores_are_those_the_tokens_were_chosen_from",
    ),
    Mutant(
        "left to right scores are recorded as logits",
        READERS,
        "logits=chosen_from, scores",
        "logits=scores, scores",
        "test_text_readers.py::test_transition_scores_of_ragged_batches",
    ),
    Mutant(
        "a processor brings MASK back",
        GENERATION,
        "                processors.append(ban)",
        "                pass",
        "test_text_readers.py::test_no_processor_brings_mask_back",
    ),
    Mutant(
        "rows may end without a pad token",
        READERS,
        "if batch > 1 and generation_config._pad_token_tensor is None:",
        "if False:",
        "test_text_readers.py::test_rows_that_end_at_different_times_need_a_pad_token",
    ),
    Mutant(
        "columns come back one too late",
        CACHE,
        "entries = (is_text.cumsum(-1) - 1).clamp(min=0)",
        "entries = is_text.cumsum(-1)",
        COLUMNS,
    ),
    Mutant("rows that left lose their cache", CACHE, "parts = [*self.left_behind, (", "parts = [(", COLUMNS),
    Mutant("padding columns come back with anything", CACHE, "torch.where(holds_text, there, 0)", "there", COLUMNS),
    Mutant(
        "padding columns go in as text",
        CACHE,
        "columns = (~is_text).int().argsort(dim=-1, stable=True)",
        "columns = is_text.int().argsort(dim=-1, stable=True)",
        TURNS,
    ),
    Mutant(
        "a column comes back that a row lacks",
        GENERATION,
        "torch.minimum(window.start, window.num_tokens).min()",
        "torch.minimum(window.start, window.num_tokens).max()",
        COLUMNS,
    ),
    Mutant(
        "text behind a late end comes back",
        GENERATION,
        "torch.minimum(window.start, window.num_tokens).min()",
        "window.start.min()",
        "test_multi_turn.py::test_text_behind_a_late_end_does_not_come_back",
    ),
    Mutant(
        "a cache passed in is not updated",
        GENERATION,
        "past.layers = cached_columns(cache, prompt, batch).layers",
        "past = cached_columns(cache, prompt, batch)",
        "test_multi_turn.py::test_an_empty_cache_is_filled_in_place",
    ),
    Mutant(
        "a call that fails leaves half a turn in the cache",
        GENERATION,
        "                shorten(cache, lengths)",
        "                pass",
        "test_multi_turn.py::test_a_call_that_fails_leaves_the_cache_as_it_was",
    ),
    Mutant(
        "caches of rows that left are kept for nothing",
        CACHE,
        "if self.keep_all:",
        "if True:",
        "test_multi_turn.py::test_without_a_dict_nothing_is_kept_for_a_cache",
    ),
    Mutant(
        "new ids alone are taken for all",
        GENERATION,
        'getattr(generation_config, "_mask_length", input_ids.shape[1])',
        "input_ids.shape[1]",
        TURNS,
    ),
    Mutant(
        "cached columns go through the model again",
        PROMPT,
        "new = input_ids[:, num_cached:]",
        "new = input_ids",
        TURNS,
    ),
    Mutant(
        "a turn starts at position 0",
        PROMPT,
        "is_text[:, :num_cached].sum(-1))",
        "torch.zeros_like(is_text[:, 0].long()))",
        TURNS,
    ),
    Mutant("chunks start at position 0", PROMPT, "positions + before", "positions", OTHER_WAYS),
    Mutant(
        "forwards of chunks are not counted",
        GENERATION,
        "            window.forwards = window.forwards + 1\n",
        "",
        OTHER_WAYS,
    ),
    Mutant(
        "without a cache the text is left out",
        GENERATION,
        "            if cache is None:\n",
        "            if False:\n",
        OTHER_WAYS,
    ),
    Mutant(
        "positions of the caller are ignored",
        PROMPT,
        "return (columns & (position_ids != expected)).any()",
        "return torch.tensor(False)",
        "test_generation_wedlm.py::test_what_is_not_offered_is_refused_by_name",
    ),
    Mutant(
        "rows leave that a hook counts on",
        GENERATION,
        "rows_may_leave = not any(module._forward_pre_hooks or module._forward_hooks for module in self.modules())",
        "rows_may_leave = True",
        "test_in_use.py::test_an_adapter_per_row_where_rows_end_at_different_times",
    ),
    Mutant(
        "readers see zeros behind the end",
        READERS,
        "0 if padding is None else padding.item()",
        "0",
        IN_STEP,
    ),
    Mutant(
        "readers are given slices",
        READERS,
        "slot].contiguous(), logits",
        "slot], logits",
        "test_text_readers.py::test_readers_are_given_what_transformers_loop_gives_them",
    ),
    Mutant(
        "infinity is no score",
        SAMPLING,
        "best > -torch.inf",
        "best.isfinite()",
        "test_text_readers.py::test_a_score_of_infinity_is_chosen",
    ),
    Mutant(
        "half precision is drawn from",
        SAMPLING,
        "    scores = scores.float()\n",
        "",
        "test_text_readers.py::test_scores_of_half_precision_are_drawn_from_evenly",
    ),
    Mutant(
        "a cache keeps its dtype",
        CACHE,
        "torch.promote_types(self.keys.dtype, key_states.dtype)",
        "self.keys.dtype",
        "test_multi_turn.py::test_a_cache_of_another_dtype",
    ),
    Mutant(
        "only plain caches are put right after a failure",
        GENERATION,
        "if isinstance(cache, DynamicCache) else None",
        "if type(cache) is DynamicCache else None",
        "test_multi_turn.py::test_a_call_that_fails_leaves_the_cache_as_it_was",
    ),
    Mutant(
        "columns are copied for nobody",
        GENERATION,
        "if cache is not None and returns_cache:",
        "if cache is not None:",
        "test_multi_turn.py::test_without_a_dict_nothing_is_kept_for_a_cache",
    ),
    Mutant(
        "the streamer's error hides the call's",
        GENERATION,
        "with suppress(Exception):",
        "if True:",
        "test_streamers.py::test_an_error_is_not_hidden_by_a_streamer_that_cannot_end",
    ),
    Mutant(
        "a rank that is done leaves the others alone",
        GENERATION,
        "while self._has_unfinished_sequences(num_alive == 0, synced_gpus, device=input_ids.device):",
        "while num_alive > 0:",
        "test_distributed.py::test_sharded_ranks_wait_for_each_other",
    ),
    Mutant(
        "chunks go ahead without the other ranks",
        GENERATION,
        "self._has_unfinished_sequences(False, synced_gpus, device=window.start.device)  # other ranks take part",
        "pass",
        "test_distributed.py::test_sharded_ranks_wait_for_each_other",
    ),
    Mutant(
        "a streamer waits for ever when generation fails",
        GENERATION,
        "                streamer.end()\n            raise",
        "                pass\n            raise",
        ITERATOR,
    ),
    Mutant(
        "an interrupt leaves the streamer open", GENERATION, "except BaseException:", "except Exception:", ITERATOR
    ),
    Mutant(
        "a streamer passed by position is not found",
        GENERATION,
        'signature(GenerationMixin.generate).bind(self, *args, **kwargs).arguments.get("streamer")',
        'kwargs.get("streamer")',
        ITERATOR,
    ),
    Mutant(
        "a run is put token by token",
        READERS,
        "new if len(new) == 1 else new.T.contiguous()",
        "new.T.contiguous()",
        "test_streamers.py::test_one_row_is_put_in_runs",
    ),
    Mutant(
        "columns do not wait for the slowest row",
        READERS,
        "num_final = min((n for",
        "num_final = max((n for",
        "test_streamers.py::test_columns_are_put_when_all_rows_that_go_on_have_come_to_them",
    ),
    Mutant(
        "what is filled behind the end is put",
        READERS,
        "max(self.num_read) if num_final is None",
        "max(self.num_known) if num_final is None",
        "test_streamers.py::test_nothing_behind_the_end_is_put",
    ),
    Mutant(
        "empty runs are put",
        READERS,
        "if new.shape[1] > 0:",
        "if True:",
        "test_streamers.py::test_text_is_put_one_forward_before_it_is_committed",
    ),
    Mutant(
        "a draft comes after the end",
        READERS,
        "if self.shows_drafts and self.alive[0]:",
        "if self.shows_drafts:",
        "test_streamers.py::test_drafts_show_the_rest_of_the_window",
    ),
    Mutant(
        "a guess may be MASK",
        READERS,
        ".index_fill(-1, self.ids.new_tensor([self.mask_token_id]), -torch.inf)",
        "",
        "test_streamers.py::test_a_draft_never_shows_mask",
    ),
    Mutant(
        "guesses replace filled slots",
        READERS,
        "is_open = rows.is_open[0] & ~selected[0]",
        "is_open = rows.is_open[0]",
        "test_streamers.py::test_a_draft_shows_what_is_filled",
    ),
    Mutant(
        "converted: the added row is not the mean",
        SHARDS,
        "(total / num_rows).to(dtype)",
        "total.to(dtype)",
        "test_convert.py::test_the_added_row_is_the_mean_of_the_others",
    ),
    Mutant(
        "converted: the mean is of the first chunk",
        SHARDS,
        "        total += torch.frombuffer",
        "        total = torch.frombuffer",
        "test_convert.py::test_mean_of_chunks",
    ),
    Mutant(
        "converted: the head gets no row",
        CONVERT,
        "for name in (EMBEDDING, HEAD) if",
        "for name in (EMBEDDING,) if",
        "test_convert.py::test_a_tied_head_that_is_in_the_file_gets_the_row_too",
    ),
    Mutant(
        "converted: a shard may be cut",
        SHARDS,
        "if expected != num_bytes:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "converted: tensors may overlap",
        SHARDS,
        "if shard.data_start + start != expected:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "converted: shards may lie outside",
        SHARDS,
        "Path(name).name != name or",
        "False or",
        REFUSED,
    ),
    Mutant(
        "converted: shapes are not compared",
        CONVERT,
        "if found[name] != expected[name]:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "converted: missing weights are not seen",
        CONVERT,
        "in expected.keys() - found.keys() - optional",
        "in ()",
        REFUSED,
    ),
    Mutant(
        "converted: quantized weights pass",
        CONVERT,
        'if fields.get("quantization_config") is not None:',
        "if False:",
        REFUSED,
    ),
    Mutant(
        "converted: the index is not checked",
        SHARDS,
        "if places.get(name) != place:",
        "if False:",
        REFUSED,
    ),
    Mutant(
        "converted: MASK takes a token's row",
        TOKENIZER,
        "behind = max(used, default=-1) + 1",
        "behind = max(used, default=-1)",
        BOTH_WAYS,
    ),
    Mutant(
        "converted: ids of the config count as unused",
        CONVERT,
        "for fields in (config.to_dict(), generation_fields):",
        "for fields in ():",
        "test_convert.py::test_ids_that_only_a_config_names_are_used",
    ),
    Mutant(
        "converted: added tokens are renumbered",
        TOKENIZER,
        ".token_to_id(token) != token_id:",
        ".token_to_id(token) is None:",
        "test_convert.py::test_ids_that_only_a_config_names_are_used",
    ),
    Mutant(
        "converted: the tokenizer is not loaded",
        CONVERT,
        "if moved or tokenizer.mask_token_id != mask_token_id:",
        "if False:",
        "test_convert.py::test_a_tokenizer_that_went_on_behind_mask_keeps_its_ids",
    ),
    Mutant(
        "converted: the way back keeps the row",
        CONVERT,
        "            config.vocab_size -= 1\n            num_rows = rows_of_vocabulary(shards, config.vocab_size)\n",
        "",
        BOTH_WAYS,
    ),
    Mutant(
        "converted: the way back drops any last row",
        CONVERT,
        "if mask_token_id != config.vocab_size - 1:",
        "if False:",
        "test_convert.py::test_rows_added_behind_mask_are_not_dropped",
    ),
    Mutant(
        "converted: the way back keeps window_size",
        CONVERT,
        "if generation_fields.keys() & DEFAULTS.keys():",
        "if False:",
        "test_convert.py::test_back_after_training",
    ),
    Mutant(
        "converted: Qwen2 gets Qwen3's head_dim",
        CONVERT,
        'if stock.get("head_dim") is None:',
        "if False:",
        BOTH_WAYS,
    ),
    Mutant(
        "converted: rope_theta is lost",
        CONVERT,
        'fields["rope_theta"] = rope.pop("rope_theta")',
        'rope.pop("rope_theta")',
        "test_convert.py::test_what_an_old_config_says_survives",
    ),
    Mutant(
        "converted: readers of text are not pointed out",
        CONVERT,
        "type(processor) not in PLAIN_PROCESSORS for",
        "False for",
        "test_convert.py::test_generation_configs_that_limit_parallel_decoding",
    ),
    Mutant(
        "converted: the source may be overwritten",
        CONVERT,
        "or out in folder.resolve().parents or",
        "or",
        "test_convert.py::test_places_that_are_refused",
    ),
    Mutant(
        "converted: any folder is overwritten",
        NEW_FOLDER,
        'if not (out / "config.json").exists():',
        "if False:",
        "test_convert.py::test_places_that_are_refused",
    ),
    Mutant(
        "converted: disk space is not checked",
        NEW_FOLDER,
        "if free < num_bytes:",
        "if False:",
        "test_convert.py::test_disk_space_is_checked_first",
    ),
    Mutant(
        "converted: the old folder goes first",
        NEW_FOLDER,
        "                out.rename(old)\n            else",
        "                shutil.rmtree(out)\n            else",
        MOMENTS,
    ),
    Mutant(
        "converted: the old folder does not come back",
        NEW_FOLDER,
        "                old.rename(out)\n",
        "                pass\n",
        MOMENTS,
    ),
    Mutant(
        "converted: Ctrl-C leaves the new folder",
        NEW_FOLDER,
        "        shutil.rmtree(new, ignore_errors=True)\n",
        "        pass\n",
        MOMENTS,
    ),
    Mutant(
        "converted: weights are asked of the Hub first",
        CONVERT,
        'folder = Path(source) if is_folder else from_hub(["config.json", INDEX_FILE, *COMPANIONS])',
        'folder = Path(source) if is_folder else from_hub(["config.json", "*.safetensors", INDEX_FILE, *COMPANIONS])',
        "test_convert.py::test_what_is_asked_of_the_hub",
    ),
    Mutant(
        "converted: bad input exits with 1",
        CLI,
        "raise typer.Exit(2)",
        "raise typer.Exit(1)",
        "test_cli.py::test_bad_input_is_one_sentence_on_standard_error_and_exit_code_2",
    ),
    Mutant(
        "converted: the command imports torch",
        CLI,
        "import typer\n\napp",
        "import torch  # noqa: F401\nimport typer\n\napp",
        "test_cli.py::test_help_is_fast_and_shows_every_command",
    ),
    Mutant(
        "a test problem may be in the training stream",
        f"{DEMO}/tasks.py",
        "if split_of(kind, drawn.key) == split:",
        "if drawn.key:",
        HELD_OUT,
    ),
    Mutant(
        "the phrasing decides the split",
        f"{DEMO}/tasks.py",
        "split_of(kind, drawn.key) == split",
        "split_of(kind, drawn.prompt) == split",
        HELD_OUT,
    ),
    Mutant(
        "an example depends on Python's hash",
        f"{DEMO}/tasks.py",
        'Random(f"{kind} {split} {index}")',
        "Random(hash((kind, split, index)))",
        "test_demo_tasks.py::test_an_example_depends_on_its_arguments_and_on_nothing_else",
    ),
    Mutant(
        "a held-out problem twice",
        f"{DEMO}/tasks.py",
        "by_key.setdefault(drawn.key, drawn)",
        "by_key.setdefault(index, drawn)",
        HELD_OUT,
    ),
    Mutant(
        "a stream always begins at the beginning",
        f"{DEMO}/tasks.py",
        "count(start))",
        "count())",
        "test_demo_tasks.py::test_a_stream_goes_on_where_it_stopped",
    ),
    Mutant(
        "all seeds give one stream",
        f"{DEMO}/tasks.py",
        "index = seed * MAX_POSITIONS + position",
        "index = position",
        "test_demo_tasks.py::test_a_stream_goes_on_where_it_stopped",
    ),
    Mutant(
        "every kind as often",
        f"{DEMO}/tasks.py",
        ".choices(KINDS, [WEIGHTS[kind] for kind in KINDS])",
        ".choices(KINDS)",
        "test_demo_tasks.py::test_the_stream_mixes_the_kinds_by_their_weights",
    ),
    Mutant(
        "a sequence may be written in any way",
        f"{DEMO}/counting_checker.py",
        'write = WORDS.__getitem__ if re.search(r"words?\\b", prompt) else str',
        'write = WORDS.__getitem__ if "e" in answer else str',
        WRONG,
    ),
    Mutant(
        "idle steps pass",
        f"{DEMO}/word_problems_checker.py",
        "return unused == Counter([result]) and last",
        "return last",
        ONE_PART,
    ),
    Mutant(
        "a line twice passes",
        f"{DEMO}/word_problems_checker.py",
        " or len(set(lines)) < len(lines)",
        "",
        ONE_PART,
    ),
    Mutant(
        "the question is not solved",
        f"{DEMO}/word_problems_checker.py",
        " and solution(prompt) == result",
        "",
        WRONG,
    ),
    Mutant(
        "a number that nothing reads is ignored",
        f"{DEMO}/word_problems_checker.py",
        'if match is None or re.search(r"\\d", prompt[place : match.start(1)]):',
        "if match is None:",
        WRONG,
    ),
    Mutant(
        "the steps are not computed",
        f"{DEMO}/word_problems_checker.py",
        "if not is_true(left, sign, right, result) or",
        "if",
        WRONG,
    ),
    Mutant(
        "numbers may come from nowhere",
        f"{DEMO}/word_problems_checker.py",
        " or not {left, right} <= known",
        "",
        WRONG,
    ),
    Mutant(
        "the answer is not put into the question",
        f"{DEMO}/equations_checker.py",
        "is_true(question, letter, number)\n            and ",
        "",
        WRONG,
    ),
    Mutant(
        "the check need not be of the question",
        f"{DEMO}/equations_checker.py",
        '            and [check.split(" = ")[0] for check in checks] == put_in\n',
        "",
        WRONG,
    ),
    Mutant(
        "no work needs to be shown",
        f"{DEMO}/equations_checker.py",
        "            and len(work) >= 2\n",
        "",
        WRONG,
    ),
    Mutant(
        "the lines of the work are not computed",
        f"{DEMO}/equations_checker.py",
        "for step in [*work, *checks])",
        "for step in checks)",
        ONE_CHARACTER,
    ),
    Mutant(
        "a line of the work may be without the unknown",
        f"{DEMO}/equations_checker.py",
        '            and all(letter in step.split(" = ")[0] for step in work)\n',
        "",
        WRONG,
    ),
    Mutant(
        "a step twice passes in an equation",
        f"{DEMO}/equations_checker.py",
        " or len(set(steps)) < len(steps)",
        "",
        ONE_PART,
    ),
    Mutant(
        "a key twice passes",
        f"{DEMO}/records_checker.py",
        "if len(row) < len(pairs):",
        "if False:",
        ONE_PART,
    ),
    Mutant(
        "the order of keys does not count",
        f"{DEMO}/records_checker.py",
        "json.dumps(result) == json.dumps(apply(instruction, rows))",
        "result == apply(instruction, rows)",
        WRONG,
    ),
    Mutant(
        "records may stay in their format",
        f"{DEMO}/records_checker.py",
        "return written == (target[1] if target else old) and ",
        "return ",
        WRONG,
    ),
    Mutant(
        "no docstring is needed",
        f"{DEMO}/functions_checker.py",
        '["docstring" in prompt, *',
        "[result.values[:1] == [True], *",
        WRONG,
    ),
    Mutant(
        "True and 1 are the same",
        f"{DEMO}/functions_checker.py",
        "[repr(value) for value in result.values] == [repr(value) for value in wanted]",
        "result.values == wanted",
        WRONG,
    ),
    Mutant(
        "functions are not run around their numbers",
        f"{DEMO}/functions_checker.py",
        "for edge in (number - 1, number, number + 1, 2 * number)",
        "for edge in (2 * number,)",
        WRONG,
    ),
    Mutant(
        "two friends pass",
        f"{DEMO}/stories_checker.py",
        "        and len(others) <= 1\n",
        "",
        ONE_STORY,
    ),
    Mutant(
        "a friend need not be introduced",
        f"{DEMO}/stories_checker.py",
        "        and introductions == ([first] if first else [])\n",
        "",
        ONE_STORY,
    ),
    Mutant(
        "he and she are the same",
        f"{DEMO}/stories_checker.py",
        "<= {gender}",
        '<= {"he", "she"}',
        ONE_STORY,
    ),
    Mutant(
        "two places pass",
        f"{DEMO}/stories_checker.py",
        "words & set(PLACES) == {place}",
        "place in words",
        ONE_STORY,
    ),
    Mutant(
        "two things pass",
        f"{DEMO}/stories_checker.py",
        "words & set(OBJECTS) == {thing}",
        "thing in words",
        ONE_STORY,
    ),
    Mutant(
        "a sentence may stay open",
        f"{DEMO}/stories_checker.py",
        '        and " ".join(sentences) == answer\n',
        "",
        ONE_STORY,
    ),
    Mutant(
        "a wrong article passes",
        f"{DEMO}/stories_checker.py",
        "        and not WRONG_ARTICLE.search(answer)\n",
        "",
        ONE_STORY,
    ),
    Mutant(
        "the sandbox is not guarded",
        f"{DEMO}/sandbox.py",
        "sys.addaudithook(guard)\n",
        "",
        SANDBOX,
    ),
    Mutant(
        "files may be written",
        f"{DEMO}/sandbox.py",
        "flags & 0o1103",
        "False",
        SANDBOX,
    ),
    Mutant(
        "any file may be read",
        f"{DEMO}/sandbox.py",
        "not str(path).startswith(library) or ",
        "",
        SANDBOX,
    ),
    Mutant(
        "modules that fork may be imported",
        f"{DEMO}/sandbox.py",
        'refused = arguments[0] in ("_ctypes", "_posixsubprocess", "_socket")',
        "refused = False",
        SANDBOX,
    ),
    Mutant(
        "memory is not limited",
        f"{DEMO}/sandbox.py",
        "    (resource.RLIMIT_AS, memory_bytes),\n",
        "",
        SANDBOX,
    ),
    Mutant(
        "output is not limited",
        f"{DEMO}/sandbox.py",
        "    (resource.RLIMIT_FSIZE, output_bytes),\n",
        "",
        "test_sandbox.py::test_output_is_bounded",
    ),
    Mutant(
        "the environment is seen",
        f"{DEMO}/sandbox.py",
        "env={},",
        "env=os.environ,",
        "test_sandbox.py::test_nothing_of_the_environment_is_seen",
    ),
    Mutant(
        "the sandbox reads standard input",
        f"{DEMO}/sandbox.py",
        "stdin=subprocess.DEVNULL,",
        "stdin=subprocess.PIPE,",
        SANDBOX,
    ),
    Mutant(
        "a process without values has finished",
        f"{DEMO}/sandbox.py",
        "isinstance(values, list) and len(values) == number",
        "isinstance(values, list)",
        "test_sandbox.py::test_code_that_ends_the_process_has_no_values",
    ),
    Mutant(
        "digits are merged",
        f"{DEMO}/tokenizer.py",
        'PIECES = r"\\d|',
        'PIECES = r"\\d+|',
        PIECES,
    ),
    Mutant(
        "the space before a digit stands alone",
        f"{DEMO}/tokenizer.py",
        "(?: (?=\\d))?",
        "",
        PIECES,
    ),
    Mutant(
        "the end of an answer has no loss",
        f"{DEMO}/tokenizer.py",
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}",
        "{% generation %}{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}",
        "test_demo_tokenizer.py::test_the_template_marks_the_answer_and_its_end",
    ),
    Mutant(
        "the roles are no tokens",
        f"{DEMO}/tokenizer.py",
        '    yield "user\\nassistant\\n" * NUM_SAMPLES  # the roles, as the template writes them\n',
        "",
        "test_demo_tokenizer.py::test_special_tokens",
    ),
    Mutant(
        "a word is a sentence",
        f"{DEMO}/stories_checker.py",
        " and len(words_of(sentence)) > 2",
        "",
        ONE_STORY,
    ),
]


def fails(tests: set[str], mutant: Mutant | None = None) -> bool:
    """Whether one of the tests fails on a copy of the repository, with the mutant in it if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("wedlm", "tests", *ROOMS):
            shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ROOMS:  # so that the copy is found before the installed package
            (copy / "wedlm" / name).symlink_to(copy / name)
        shutil.copy(REPOSITORY / "pyproject.toml", copy)
        if mutant is not None:
            source = (copy / mutant.file).read_text()
            if (found := source.count(mutant.old)) != 1:
                raise SystemExit(f"mutant {mutant.name!r}: its line stands {found} times in {mutant.file}")
            (copy / mutant.file).write_text(source.replace(mutant.old, mutant.new))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--hypothesis-profile=mutants",
        ]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        try:
            result = subprocess.run(
                [*command, *(f"tests/{test}" for test in sorted(tests))],
                cwd=copy,
                env=environment,
                capture_output=True,
                text=True,
                timeout=None if mutant is None else TIMEOUT_SECONDS,
            )
        except subprocess.TimeoutExpired:  # a decoder that never ends is noticed too
            return True
        if result.returncode not in (0, 1):
            raise SystemExit(f"pytest could not run {tests}\n{result.stdout}\n{result.stderr}")
        return result.returncode == 1


def main() -> None:
    wanted = " ".join(sys.argv[1:])
    mutants = [mutant for mutant in MUTANTS if wanted in mutant.name]
    if fails({mutant.test for mutant in mutants}):
        raise SystemExit("The tests fail without any mutant, so they would notice nothing.")
    alive = 0
    for mutant in mutants:
        noticed = fails({mutant.test}, mutant)
        alive += not noticed
        print(f"{'noticed' if noticed else 'ALIVE  '}  {mutant.name:50}  {mutant.test}", flush=True)
    raise SystemExit(1 if alive else 0)


if __name__ == "__main__":
    main()
