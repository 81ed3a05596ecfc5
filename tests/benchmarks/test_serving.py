"""The benchmark of serving asks servers in processes of their own, and leaves none behind."""

import pytest

OURS, THEIRS, ALONE = "wedlm serve", "transformers serve", "generate()"
SMALL = ("--models", "demo", "--equal-clients", 2, "--requests", 1, "--new-tokens", 6, "--clients", 1, "--rounds", 1)


@pytest.fixture
def benchmark(load_benchmark):
    return load_benchmark("serving")


@pytest.fixture
def started(benchmark, monkeypatch):
    """The processes of the servers that were started."""
    processes = []

    class Server(benchmark.Server):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            processes.append(self.process)

    monkeypatch.setattr(benchmark, "Server", Server)
    return processes


@pytest.mark.slow
def test_both_servers_write_the_texts_of_generate_and_are_killed(run, benchmark, started, tmp_path, monkeypatch):
    add, calls = benchmark.WorkFile.add, []

    def stopping(*arguments):
        add(*arguments)
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(benchmark.WorkFile, "add", stopping)
        run("serving", *SMALL, "--work", tmp_path / "work")
    assert len(started) == 2 and all(process.returncode == -9 for process in started)

    cells = run("serving", *SMALL, "--work", tmp_path / "work")["results"]
    assert len(started) == 4 and all(process.returncode == -9 for process in started)
    assert [list(cell["sides"]) for cell in cells] == [[OURS, THEIRS, ALONE], [OURS, ALONE]]
    assert cells[0]["same_as_transformers"]["same"] == cells[0]["same_as_transformers"]["texts"] > 0
    for cell in cells:
        for numbers in cell["sides"].values():
            assert numbers["same_as_generate"]["same"] == numbers["requests"]
