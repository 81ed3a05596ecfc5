"""The benchmark on a real model runs on the demo, whose other half is a plain copy of it."""

import pytest

from wedlm.checkpoints.convert import convert_to_autoregressive
from wedlm.checkpoints.demo_folder import DEMO_FOLDER


@pytest.mark.full
def test_every_decoding_writes_the_text_of_transformers(run, tmp_path):
    convert_to_autoregressive(DEMO_FOLDER, tmp_path / "stock")
    arguments = ("--stock", tmp_path / "stock", "--model", DEMO_FOLDER, "--questions", 2, "--new-tokens", 8)
    cells = run("real_model", *arguments, "--repeats", 1)["results"]
    assert [cell["decoding"] for cell in cells][:2] == ["transformers", "autoregressive"] and len(cells) == 5
    for cell in cells:
        assert cell["same_texts"] == cell["questions"] == 2
        assert cell["tokens"] <= 16 and cell["tokens_per_forward"] >= 1 and cell["peak_bytes"] > 10**8
    assert cells[0]["tokens_per_forward"] == cells[1]["tokens_per_forward"] == 1
