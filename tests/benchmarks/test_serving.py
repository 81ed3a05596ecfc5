"""The benchmark of serving asks servers in processes of their own, and leaves none behind."""

import pytest

OURS, THEIRS, ALONE = "wedlm serve", "transformers serve", "generate()"
SMALL = ("--models", "demo", "--equal-clients", 2, "--requests", 1, "--new-tokens", 6, "--clients", 1, "--rounds", 1)


@pytest.fixture
def benchmark(load_benchmark):
    return load_benchmark("serving")


@pytest.mark.slow
def test_both_servers_write_the_texts_of_generate_and_are_killed(run, benchmark, tmp_path, monkeypatch):
    processes, start = [], benchmark.Server.__init__

    def started(server, *arguments):
        start(server, *arguments)
        processes.append(server.process)

    monkeypatch.setattr(benchmark.Server, "__init__", started)
    cells = run("serving", *SMALL, "--work", tmp_path / "work")["results"]
    assert len(processes) == 2 and all(process.returncode == -9 for process in processes)
    assert [list(cell["sides"]) for cell in cells] == [[OURS, THEIRS, ALONE], [OURS, ALONE]]
    assert cells[0]["same_as_transformers"]["same"] == cells[0]["same_as_transformers"]["texts"] > 0
    for cell in cells:
        for numbers in cell["sides"].values():
            assert numbers["same_as_generate"]["same"] == numbers["requests"]
