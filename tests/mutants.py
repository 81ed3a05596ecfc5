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


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str  # file::name, as pytest's arguments; every one of its cases is run


MODEL, CONFIG = "modeling_wedlm/modeling_wedlm.py", "modeling_wedlm/configuration_wedlm.py"
HUB_CODE, REGISTRATION = "modeling_wedlm/hub_code.py", "wedlm/registration.py"
GENERATION = "generation/generation_wedlm.py"

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
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        result = subprocess.run(
            [*command, *(f"tests/{test}" for test in sorted(tests))],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
        )
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
