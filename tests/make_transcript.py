"""docs/transcript.md: the code blocks of the README, typed in their order in a fresh clone with a fresh HOME.

    git clone . /tmp/wedlm && python3 tests/make_transcript.py /tmp/wedlm

Blocks that need the network, a GPU or a server are left out. Of `make test` the last line is kept; colours and
progress bars are cut.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from readme_blocks import BLOCKS, BY_HAND

HEAD = """\
# A newcomer's first hour

`tests/make_transcript.py` typed the code blocks of the README, in their order, in a fresh clone with a fresh HOME. It
left out the blocks that need the network, a GPU or a server.
"""
# A Python that stays, as a newcomer's would: code comes in as lines of JSON, and a mark ends what it printed.
PYTHON = """
import json, sys
space = {}
for line in sys.stdin:
    exec(json.loads(line), space)
    print("\\0", flush=True)
"""


def main() -> None:
    clone = Path(sys.argv[1]).resolve()
    lines, python = [HEAD], None
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "HOME": home,
            "PATH": f"{clone / '.venv' / 'bin'}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        }
        # Bytes, since text mode makes a line end of \\r, with which progress bars write over themselves.
        how = {"cwd": clone, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        for block in BLOCKS:
            if block.note not in ("", BY_HAND):
                continue
            if block.language == "python":
                if python is None:
                    python = subprocess.Popen(
                        [clone / ".venv" / "bin" / "python", "-u", "-c", PYTHON], stdin=subprocess.PIPE, **how
                    )
                python.stdin.write(json.dumps(block.code).encode() + b"\n")
                python.stdin.flush()
                printed = b""
                while not printed.endswith(b"\0\n"):
                    line = python.stdout.readline()
                    if not line:
                        raise SystemExit(f"The block failed:\n{block.code}\n{printed.decode()}")
                    printed += line
                lines += [fenced(block.code.rstrip(), "python"), fenced(shown(printed[:-2], clone)), ""]
                continue
            for command in filter(str.strip, block.lines()):
                result = subprocess.run(command, shell=True, **how)
                if result.returncode != 0:
                    raise SystemExit(f"$ {command}\n{result.stdout.decode()}")
                output = shown(result.stdout, clone)
                if command.startswith("make test"):
                    output = output.splitlines()[-1]
                typed = f"$ {command}\n{output}"
                lines += [fenced(typed), ""]
                print(typed, flush=True)
        if python is not None:
            python.stdin.close()
            python.wait()
    (Path(__file__).parents[1] / "docs" / "transcript.md").write_text("\n".join(lines), encoding="utf-8")


def fenced(text: str, language: str = "") -> str:
    """A block of Markdown; its fence is longer than the fences in the text, since a model may write some."""
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}\n{text}\n{fence}"


def shown(output: bytes, clone: Path) -> str:
    """As a terminal has it in the end: of a line that was written over, the last state; the clone is at ~/wedlm."""
    text = output.decode().replace("\r\n", "\n")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace(str(clone), "~/wedlm")
    text = re.sub(r"(?<!\S)/\S+/(python[\d.]*)(?= )", r"\1", text)
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")).strip("\n")


if __name__ == "__main__":
    main()
