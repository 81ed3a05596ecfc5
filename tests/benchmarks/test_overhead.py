"""The overhead of a step is what one more forward adds, and no look of the host escapes."""

import pytest

from wedlm.generation.window import Window


@pytest.mark.full
def test_operations_are_counted_for_one_more_forward(run, load_benchmark, capsys):
    results = run("overhead", "--shape", "tiny", "--batch-sizes", 1, 2, "--new-tokens", 12, "--repeats", 2)["results"]
    decodings = ["autoregressive", "streaming", "verified", "blockwise"]
    assert [(numbers["batch_size"], numbers["decoding"]) for numbers in results] == [
        (b, d) for b in (1, 2) for d in decodings
    ]
    for numbers in results:
        share = numbers["share_outside_forward"]
        assert 0 < share["min"] <= share["median"] <= share["max"] < 1
        counts = numbers["per_step"]
        assert 20 < counts["inside"] < 200
        if numbers["decoding"] == "autoregressive":
            assert counts["outside"] < 30
        else:
            most = 240 if numbers["decoding"] == "verified" else 130
            assert 30 < counts["outside"] < most and counts["looks"] == 1
    by = {(numbers["batch_size"], numbers["decoding"]): numbers["per_step"] for numbers in results}
    assert by[1, "streaming"]["outside"] < by[1, "verified"]["outside"]
    assert load_benchmark("overhead").table(results) in capsys.readouterr().out


def test_one_more_look_of_the_host_would_be_counted(run, monkeypatch):
    new_run = Window.new_run

    def looking(self, *arguments):
        self.alive.sum().item()
        return new_run(self, *arguments)

    monkeypatch.setattr(Window, "new_run", looking)
    results = run("overhead", "--shape", "tiny", "--batch-sizes", 1, "--new-tokens", 12, "--repeats", 1)["results"]
    assert {numbers["decoding"]: numbers["per_step"].get("looks") for numbers in results}["streaming"] == 2
