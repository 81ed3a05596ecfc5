"""Private names of other packages stand in one module, or in the short list below, each with its reason."""

import importlib
import inspect
from functools import cache

import pytest
from helpers import REPOSITORY
from import_graph import source_files
from private_names import overrides, private_uses

INTERNALS = REPOSITORY / "generation" / "transformers_internals.py"

# What WeDLMs override of transformers' generate().
OF_GENERATE = {
    "_sample": "the loop of greedy decoding and sampling; parallel decoding is another loop",
    "_prepare_generation_config": "resolves generation_config and keyword arguments; some parameters are ours",
    "_validate_generation_mode": "refuses what a decoding does not offer, before anything is computed",
    "_get_logits_processor": "makes the processors; MASK is suppressed in front of and behind them",
    "_prepare_cache_for_generation": "makes the cache; static steps have their own",
    "_prefill": "the first forward of transformers' own loops, behind which the cache must be filled",
}
# Outside of that module, by file: what our classes override, and what is no part of transformers' generation or
# modeling.
ELSEWHERE = {
    "generation/generation_wedlm.py": OF_GENERATE,
    "modeling_wedlm/modeling_wedlm.py": {
        **OF_GENERATE,
        "_backward_cls": "torch gives it to every autograd.Function",
        "_init_weights": "gives weights that a checkpoint lacks their first values; those of draft adapters are zeros",
        "_no_split_modules": "every model class of transformers states it",
        "_can_record_outputs": "every model class of transformers states it",
    },
    "wedlm/registration.py": {
        "_mapping": "as transformers lists its own config classes, by name: the public register() imports them",
        "_modules": "as transformers lists the modules of its classes",
        "_model_mapping": "as transformers lists its own model classes, by name",
        "_reverse_config_mapping": "the model_type of a config class",
    },
    "training/dual_stream.py": {
        "_scaled_dot_product_flash_attention_for_cpu": "torch's kernel, which the public function calls too",
        "_scaled_dot_product_flash_attention_for_cpu_backward": "its backward, for the gradient of several calls",
        "_backward_cls": "torch gives it to every autograd.Function",
    },
    "training/target_loss.py": {"_backward_cls": "torch gives it to every autograd.Function"},
    "training/draft_loss.py": {"_backward_cls": "torch gives it to every autograd.Function"},
    "training/draft_lora.py": {
        "_create_and_replace": "PEFT's LoraModel makes each layer in it",
        "_check_merge_allowed": "PEFT asks it before every merge",
        "_enable_peft_forward_hooks": "PEFT calls it in every forward, with the adapter_names of the rows",
    },
    "wedlm/batching/manager.py": {"_run_generation_loop": "the thread of transformers' manager; ours is another"},
    "wedlm/fused/native.py": {"_kernels": "our own module in C"},
    "wedlm/fused/layer.py": {
        "_modules": "the modules by name, read in each forward, where getattr() takes too long",
        "_parameters": "the weights by name, read in each forward",
        "_buffers": "weights in blocks by name, read in each forward",
        "_hf_hook": "accelerate has no other sign that it moves the weights of a module",
    },
    "wedlm/fused/packed.py": {"_backward_cls": "torch gives it to every autograd.Function"},
    "wedlm/fused/model.py": {"_hf_hook": "accelerate has no other sign that it moves the weights of a module"},
    "training/dataset.py": {"_fingerprint": "datasets has no public name for it, and map() must know the source's"},
    "training/packing.py": {"_fingerprint": "datasets has no public name for it"},
    "training/trainer.py": {
        "_get_num_items_in_batch": "Trainer calls it; the weights of a step are normalised already",
        "_push_from_checkpoint": "Trainer calls it; the code goes with the weights",
        "_prepare_inputs": "Trainer's own prediction_step() begins with it",
    },
    "wedlm/evaluation/tasks.py": {
        "_index": "lm_eval's TaskManager has no public way to the config of a task that is not loaded",
        "_metric_fn_list": "lm_eval checks its metrics only after everything has been generated",
        "_aggregation_list": "the same",
    },
    "wedlm/evaluation/lm.py": {"_model_generate": "lm_eval's HFLM calls generate() in it"},
    "wedlm/evaluation/code_eval.py": {
        "_info": "evaluate.Metric is written by overriding it",
        "_compute": "evaluate.Metric is written by overriding it",
    },
}


@cache
def in_source() -> set[tuple[str, int, str]]:
    return {
        (path.relative_to(REPOSITORY).as_posix(), use.line, use.name)
        for path in source_files().values()
        if path != INTERNALS
        for use in private_uses(path.read_text(encoding="utf-8"))
    }


@cache
def in_classes() -> set[tuple[str, str]]:
    """The overrides of every file but vLLM's drafters, which only vLLM can import."""
    found = set()
    for module, path in source_files().items():
        if path.stem == "__main__" or module == "wedlm.for_vllm.drafters":
            continue
        for value in vars(importlib.import_module(module)).values():
            if inspect.isclass(value) and value.__module__ == module:
                found |= {(path.relative_to(REPOSITORY).as_posix(), name) for name in overrides(value, "wedlm")}
    return found


def test_private_names_stand_in_one_module():
    outside = {(file, line, name) for file, line, name in in_source() if name not in ELSEWHERE.get(file, {})}
    assert sorted(outside) == []


def test_overrides_are_listed():
    missing = {(file, name) for file, name in in_classes() if name not in ELSEWHERE.get(file, {})}
    assert sorted(missing) == []


def test_nothing_is_listed_in_vain():
    found = {(file, name) for file, _, name in in_source()} | in_classes()
    assert {(file, name) for file, names in ELSEWHERE.items() for name in names} - found == set()


# --- The check itself, on made-up code ---


@pytest.mark.parametrize(
    "source, names",
    [
        ("a = model.config._attention", ["_attention"]),
        ("getattr(cache, '_layers', None)", ["_layers"]),
        ("def f():\n    from torch._dynamo import _lazy as lazy", ["_dynamo", "_lazy"]),
        ("make(_flag=True)", ["_flag"]),
        ("class A(B):\n    def f(self):\n        return super()._sample()", ["_sample"]),
        ("class A(B):\n    _own = 1\n    def _sample(self):\n        return super()._sample(self._own)", []),
        ("for _ in range(3): x.__dict__, p._asdict(), _local", []),
    ],
)
def test_uses_are_found(source, names):
    assert [use.name for use in private_uses(source)] == names


def test_overrides_are_found_in_classes_that_are_put_together():
    theirs = type("Theirs", (), {"_sample": None, "_left": None, "public": None, "__module__": "transformers.x"})
    mixin = type("Mixin", (), {"_sample": None, "_own": None, "__module__": "wedlm.x"})
    ours = type("Ours", (mixin, theirs), {"public": None, "__module__": "wedlm.x"})
    assert overrides(mixin, "wedlm") == set() and overrides(ours, "wedlm") == {"_sample"}
