"""Every decoding is measured in every cell and compared with autoregressive decoding."""

import pytest


def test_decodings_take_turns_and_are_counted(run, capsys):
    report = run(
        "decode", "--shape", "tiny", "--batch-sizes", 1, 2, "--prompt-lengths", 8, "--new-tokens", 6, "--repeats", 1
    )
    decodings = ["autoregressive", "static", "one slot", "streaming", "verified", "blockwise"]
    assert [cell["batch_size"] for cell in report["results"]] == [1, 2]
    for cell in report["results"]:
        assert list(cell["sides"]) == decodings
        assert cell["sides"]["autoregressive"]["times_autoregressive"] == 1
        assert cell["sides"]["autoregressive"]["tokens_per_forward"] == 1
        for numbers in cell["sides"].values():
            rate = numbers["tokens_per_second"]
            assert 0 < rate["min"] <= rate["median"] <= rate["max"]
            assert ("milliseconds_to_first_token" in numbers) == (cell["batch_size"] == 1)
            expected = numbers["times_autoregressive"] / numbers["tokens_per_forward"]
            assert numbers["share_kept"] == pytest.approx(expected)
    assert capsys.readouterr().out.count("\n") >= 2 * len(decodings)
