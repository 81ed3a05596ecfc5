"""Plots of the ablations of decoding show the numbers of their files."""

import json

from helpers import REPOSITORY

from wedlm.evaluation.decodings import BASELINE


def test_plots_show_every_setting_with_its_bars(load_benchmark):
    report = json.loads((REPOSITORY / "benchmarks" / "results" / "ablation_threshold.json").read_text())
    together = report["results"]["all"]
    quality, speed = load_benchmark("ablations_plot").panels("entropy_threshold", together)
    summaries = [summary for label, summary in together.items() if label != BASELINE]
    (points,) = quality.lines.values()
    assert [point.x for point in points] == [summary["arguments"]["entropy_threshold"] for summary in summaries]
    assert [point.y for point in points] == [100 * summary["quality"] for summary in summaries]
    assert all(point.low <= point.y <= point.high for point in [*points, *speed.lines["streaming"]])
    assert quality.baseline == 100 * together[BASELINE]["quality"]
