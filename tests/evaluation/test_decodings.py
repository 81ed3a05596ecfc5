"""Decodings by label, with all parameters that they read."""

import pytest

from wedlm.evaluation.decodings import check_decoding, combinations, is_exact, label_of, with_defaults


def test_decodings_are_combined_with_what_they_read():
    made = combinations(["autoregressive", "verified", "streaming"], window_size=[4, 8], entropy_threshold=[0.1, None])
    assert list(made) == [
        "autoregressive", "verified, window 4", "verified, window 8",
        "streaming, window 4, threshold 0.1", "streaming, window 4, threshold none",
        "streaming, window 8, threshold 0.1", "streaming, window 8, threshold none",
    ]  # fmt: skip
    assert made["verified, window 4"] == {"decoding": "verified", "window_size": 4}
    assert all(label_of(arguments) == label for label, arguments in made.items())


def test_verified_decoding_with_a_ratio_is_not_exact():
    made = combinations(["autoregressive", "verified", "streaming"], acceptance_ratio=[1.0, 0.5])
    assert {label: is_exact(arguments) for label, arguments in made.items()} == {
        "autoregressive": True, "verified, ratio 1.0": True, "verified, ratio 0.5": False, "streaming": False
    }  # fmt: skip
    assert is_exact({"decoding": "verified"})


def test_missing_parameters_come_from_the_checkpoint_or_the_device(demo, monkeypatch):
    model, _ = demo
    said = model.generation_config
    expected = {"decoding": "verified", "window_size": said.window_size, "query_cost": 0.1, "acceptance_ratio": 1.0}
    assert with_defaults({"decoding": "verified"}, model) == expected
    monkeypatch.setattr(said, "window_size", None)
    monkeypatch.setattr(said, "query_cost", 0.3)
    assert with_defaults({"decoding": "verified"}, model) == expected | {"window_size": 8, "query_cost": 0.3}
    assert with_defaults({"decoding": "blockwise"}, model)["window_size"] == 8
    given = {"decoding": "streaming", "window_size": 4, "entropy_threshold": None}
    assert with_defaults(given, model) == {**given, "distance_penalty": said.distance_penalty}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"decoding": "fast"}, "decoding='fast' is unknown"),
        ({"decoding": "streaming", "entropy_threshold": -1}, "entropy_threshold=-1 is not an entropy"),
        ({"decoding": "autoregressive", "window_size": 8}, "'window_size'; leave it out (it reads no parameters)."),
    ],
)
def test_parameters_that_a_decoding_does_not_take_are_refused(arguments, words):
    check_decoding({"decoding": "streaming", "window_size": 8, "entropy_threshold": None})
    with pytest.raises(ValueError) as refused:
        check_decoding(arguments)
    assert words in str(refused.value)
    with pytest.raises(ValueError, match="decoding='fast' is unknown"):
        combinations(["fast"])
