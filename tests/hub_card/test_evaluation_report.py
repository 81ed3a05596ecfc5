"""The measurements of `wedlm eval`, on the card and in the Hub's model-index."""

import json
import re

import pytest
from exports import refused, result_of, run, write_evaluation
from huggingface_hub import ModelCard

from wedlm.checkpoints.errors import CheckpointError
from wedlm.evaluation.provenance import digests
from wedlm.hub_card.reports import read_evaluation


def test_the_tables_and_the_metadata_of_an_evaluation(tmp_path, model, unchecked):
    strict = {"name": "exact_match", "filter": "strict|match", "value": 0.5, "stderr": None, "higher_is_better": True}
    one_each = {"decoding": "streaming, threshold none", "arguments": {"entropy_threshold": None}}
    results = [result_of(metrics=[*result_of()["metrics"], strict]), result_of(**one_each)]
    path = write_evaluation(tmp_path / "eval.json", model, results)
    result = run(model, tmp_path / "out", "--license", "mit", "--eval", path, "--name", "My | model")
    assert result.exit_code == 0, result.stderr
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (
        """
On A \\<device\\>, 2 threads, torch 2.13.0, lm_eval 0.4.13, apply chat template yes, batch size 1, \
commit 0123456789ab with changes:

```bash
wedlm eval model --out eval.json
```

### Counting

wedlm-demo/counting, split test: 1,000 examples, 0 shots.

| decoding | exact_match ↑ | exact_match, strict\\|match ↑ | tokens per pass | cacheable | tokens/s |
| --- | ---: | ---: | ---: | ---: | ---: |
| streaming, threshold 0.1 | 0.930 ± 0.010 | 0.500 | 2.35 | 0.50 | 1,234 |
| streaming, threshold none | 0.930 ± 0.010 |  | 2.35 | 0.50 | 1,234 |
"""
        in card.text
    )
    assert card.data.model_name == "My | model"
    counts = {"task": "demo_counting", "num_fewshot": 0, "num_examples": 1000}
    streaming = {"decoding": "streaming", "entropy_threshold": 0.1}
    assert {
        (r.metric_name, r.metric_value, json.dumps(r.metric_args, sort_keys=True)) for r in card.data.eval_results
    } == {
        (f"Counting: exact_match{name}", value, json.dumps({**counts, **arguments}, sort_keys=True))
        for name, value, arguments in (
            (" (streaming, threshold 0.1)", 0.93, {**streaming, "stderr": 0.01}),
            (", strict|match (streaming, threshold 0.1)", 0.5, streaming),
            (" (streaming, threshold none)", 0.93, {"entropy_threshold": "none", "stderr": 0.01}),
        )
    }


def test_the_score_of_a_partial_run_is_not_the_models(tmp_path, model, unchecked):
    part = write_evaluation(tmp_path / "part.json", model, settings={"limit": 20})
    whole = write_evaluation(tmp_path / "whole.json", model, [result_of(title="All")])
    only_part = run(model, tmp_path / "one", "--license", "mit", "--eval", part)
    both = run(model, tmp_path / "two", "--license", "mit", "--eval", part, "--eval", whole)
    note = (
        f"Note: {part} comes from a run with --limit 20; the card calls it partial, and the metadata leaves it out.\n"
    )
    for result, folder, entries, unmeasured in ((only_part, "one", 0, True), (both, "two", 1, False)):
        assert result.exit_code == 0 and result.stdout.count(note) == 1, result.output
        card = ModelCard.load(tmp_path / folder / "README.md")
        assert len(card.data.eval_results or []) == entries
        assert card.text.count("A partial run: only the first 20 questions of each task were asked") == 1
        assert ("Its quality has not been measured" in card.text) == unmeasured and "\n\n\n" not in card.text
    assert card.data.eval_results[0].metric_name.startswith("All: ")


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"weights_sha256": "0" * 64}, "measured other weights than those of MODEL; run `wedlm eval MODEL` again."),
        ({"results": []}, "is not a file of `wedlm eval` (ValueError: it has no results); pass one that is."),
        (
            {"results": [{"task": "counting"}]},
            "is not a file of `wedlm eval` (KeyError: 'metrics')",
        ),
    ],
)
def test_evaluation_files_that_are_refused(tmp_path, model, fields, sentence):
    path = write_evaluation(tmp_path / "eval.json", model, **fields)
    with pytest.raises(CheckpointError, match=re.escape(f"{path} {sentence}")):
        read_evaluation(path, digests(model, None), "MODEL")


def test_an_evaluation_file_that_cannot_be_read(tmp_path, model, unchecked):
    arguments = (model, tmp_path / "out", "--license", "mit", "--eval", tmp_path / "eval.json")
    assert "eval.json is not a file of `wedlm eval` (FileNotFoundError: [Errno 2] No" in refused(*arguments)
    metric = result_of()["metrics"][0] | {"value": float("nan")}
    write_evaluation(tmp_path / "eval.json", model, [result_of(metrics=[metric])])
    assert "(ValueError: exact_match of demo_counting is nan)" in refused(*arguments)
