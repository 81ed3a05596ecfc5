"""The code that the benchmarks share: tables, plots and fresh processes."""

import os


def test_a_table_is_aligned_to_the_right_but_for_names(load_benchmark):
    table = load_benchmark("common").markdown(
        ["decoding", "ms"], [["verified", 1.5], ["static", ""]], left={"decoding"}
    )
    assert table == "| decoding | ms |\n| --- | ---: |\n| verified | 1.5 |\n| static |  |"


def test_a_median_is_shown_with_its_range(load_benchmark):
    measured = {"median": 0.126, "min": 0.05, "max": 0.5}
    with_range = load_benchmark("common").with_range
    assert with_range(measured, ".2f") == "0.13 (0.05 - 0.50)"
    assert with_range(measured, ".1%") == "12.6% (5.0% - 50.0%)"


def test_results_and_plots_are_written(run, tmp_path):
    report = run("step", "--shape", "tiny", "--rows", 1, 8, "--lengths", 16, 64, "--repeats", 1)
    assert {"command", "commit", "versions", "device", "threads", "shape", "results"} <= set(report)
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


def test_a_fresh_process_is_another_one(load_benchmark):
    assert load_benchmark("common").in_fresh_process(os.getpid) != os.getpid()
