"""Scripts in two processes that know each other."""

import subprocess
import sys


def run_two_processes(script, folder, *arguments):
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run([*command, folder / "script.py", *arguments], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
