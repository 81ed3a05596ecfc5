"""Memory is measured in a process of its own for each cell."""

import pytest


@pytest.mark.slow
def test_memory_rises_at_least_by_the_keys_and_values(run):
    cells = run("memory", "--shape", "tiny", "--batch-sizes", 8, "--prompt-lengths", 3000, "--new-tokens", 2)[
        "results"
    ]
    assert [cell["decoding"] for cell in cells] == ["autoregressive", "streaming", "verified", "blockwise"]
    for cell in cells:
        assert cell["cache_bytes"] == 2 * 4 * 8 * 3002 * 2 * 2 * 16 < cell["bytes"]
