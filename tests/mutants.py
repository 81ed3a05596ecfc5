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
REFERENCE = "test_generation_wedlm.py::test_any_batch_equals_the_reference_row_by_row"

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
        "padding is not moved", PROMPT, "padding = input_ids.shape[1] - lengths", "padding = 0 * lengths", REFERENCE
    ),
    Mutant(
        "padding is moved one too far",
        PROMPT,
        "padding = input_ids.shape[1] - lengths",
        "padding = input_ids.shape[1] - lengths + 1",
        REFERENCE,
    ),
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
        "finished rows stay in the batch",
        GENERATION,
        "if 2 * num_alive <= len(batch_rows):",
        "if False:",
        "test_generation_wedlm.py::test_finished_rows_leave_the_batch",
    ),
    Mutant(
        "rows that left are forgotten", GENERATION, "                batch.put(batch_rows, window)\n", "", REFERENCE
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
        "other limits of the caller are ignored",
        GENERATION,
        "return criterion.max_length == generation_config.max_length",
        "return True",
        "test_generation_wedlm.py::test_what_is_not_offered_is_refused_by_name",
    ),
    Mutant(
        "learned prompts are dropped",
        GENERATION,
        "(owner := self.prepare_inputs_for_generation.__self__) is not self",
        "False",
        "test_generation_wedlm.py::test_prompt_learning_is_refused_by_name",
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
