"""The ways in which evidence_real.py lets the real model answer: transformers' own Llama, WeDLM, and vLLM."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from wedlm.checkpoints.new_folder import DRAFTER, TARGET
from wedlm.evaluation.work_file import WorkFile, digest_of
from wedlm.for_vllm.export import SPECULATIVE, export_for_vllm

PLAIN, LOOK_UP = "transformers: generate()", "transformers: prompt look-up"
PLAIN_PACKED, LOOK_UP_PACKED = f"{PLAIN}, packed", f"{LOOK_UP}, packed"
TOKEN_BY_TOKEN, VERIFIED, ADAPTED = "WeDLM: token by token", "WeDLM: verified", "WeDLM: verified, adapter"
UNPACKED = f"{ADAPTED}, unpacked"
VLLM, VLLM_DRAFTING = "vLLM: token by token", "vLLM: our drafter"
BATCH_OF_ONE = {LOOK_UP, LOOK_UP_PACKED}  # transformers refuses a batch
WORKER = Path(__file__).with_name("evidence_real_vllm.py")


class Written(NamedTuple):
    """What a way has written for a batch: the new tokens of each prompt, the end token included."""

    tokens: list[list[int]]
    forwards: list[int] | None = None  # of each prompt, where the way counts them


Way = Callable[[list[list[int]], int], Written]  # from the ids of the prompts, and the largest number of new tokens


def ends_of(model: PreTrainedModel) -> list[int]:
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [ends]


def up_to_end(tokens: list[int], ends: list[int]) -> list[int]:
    """up_to_end([5, 6, 2, 2], [2]) == [5, 6, 2]"""
    return tokens[: next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))]


def way_of(model: PreTrainedModel, **arguments: Any) -> Way:
    """generate() of a model with these arguments, greedily."""
    ends = ends_of(model)

    def write(prompts: list[list[int]], new_tokens: int) -> Written:
        width = max(map(len, prompts))
        output = model.generate(
            torch.tensor([[ends[0]] * (width - len(ids)) + ids for ids in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]),
            pad_token_id=ends[0],
            max_new_tokens=new_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            **arguments,
        )
        rows = [up_to_end(row, ends) for row in output.sequences[:, width:].tolist()]
        return Written(rows, output.forwards.tolist() if "forwards" in output else None)

    return write


def in_batches(
    way: Way, ids: list[list[int]], new_tokens: int, batch_size: int, work: WorkFile, key: tuple[str, ...]
) -> list[tuple[list[int], int | None]]:
    """What a way writes for the prompts in batches; a batch that is in `work` is not asked again.

    Args:
        way (`Way`): The way.
        ids (`list[list[int]]`): The ids of the prompts.
        new_tokens (`int`): The most tokens of a text.
        batch_size (`int`): The number of prompts of a batch.
        work (`WorkFile`): Where the texts are kept.
        key (`tuple[str, ...]`): The name of the texts there; the progress bar shows all but its first part.

    Returns:
        `list[tuple]`: The tokens for each prompt, and the number of forwards where the way counts them.
    """
    texts = []
    for start in tqdm(range(0, len(ids), batch_size), unit=" batches", desc=", ".join(key[1:])):
        batch = ids[start : start + batch_size]
        place = (*key, digest_of(batch))
        if place not in work:
            work.add(place, way(batch, new_tokens))
        tokens, forwards = work[place]
        texts += zip(tokens, forwards or [None] * len(batch), strict=True)
    return texts


class VLLMProcess:
    """vLLM in an environment and a process of its own, which sleeps until it is asked.

    Args:
        environment (`Path`): The virtual environment with vLLM.
        arguments (`dict[str, Any]`): The arguments of `vllm.LLM`.
        threads (`int`): The number of its threads.
        log (`Path`): The file for what it prints.
    """

    def __init__(self, environment: Path, arguments: dict[str, Any], threads: int, log: Path):
        self.log = log
        openmp = environment / "lib" / "libiomp5.so"  # vLLM wants it loaded first
        answers, answers_of_child = os.pipe()
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [environment / "bin" / "python", WORKER, str(answers_of_child), json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=[answers_of_child],
                env=os.environ
                | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
                | ({"LD_PRELOAD": str(openmp.resolve())} if openmp.exists() else {}),
                text=True,
            )
        os.close(answers_of_child)
        self.answers = open(answers)
        self.receive()

    def receive(self) -> dict[str, Any]:
        if line := self.answers.readline():
            return json.loads(line)
        raise RuntimeError(
            f"vLLM has ended ({self.process.wait()}); repair its environment, or remove it to go on without vLLM:\n"
            f"{self.log.read_text()[-3000:]}"
        )

    def write(self, prompts: list[list[int]], new_tokens: int) -> Written:
        print(json.dumps({"prompts": prompts, "new_tokens": new_tokens}), file=self.process.stdin, flush=True)
        return Written(self.receive()["tokens"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.answers.close()


def vllm_version(environment: Path) -> str | None:
    """The version of vLLM in an environment; None if there is no such environment."""
    python = environment / "bin" / "python"
    code = "import importlib.metadata as m; print(m.version(m.packages_distributions()['vllm'][0]))"
    return subprocess.check_output([python, "-c", code], text=True).strip() if python.exists() else None


@contextmanager
def vllm_ways(
    environment: Path, adapter: Path, dtype: str, longest: int, batch_size: int, threads: int, eager: bool
) -> Iterator[dict[str, Way]]:
    """vLLM without and with the drafter as ways by name.

    Args:
        environment (`Path`): The virtual environment with vLLM.
        adapter (`Path`): The draft adapter, which `wedlm export --vllm` exports with its base.
        dtype (`str`): The dtype of the weights.
        longest (`int`): The tokens of the longest prompt and its answer.
        batch_size (`int`): The most prompts at once.
        threads (`int`): The threads of vLLM.
        eager (`bool`): Whether vLLM compiles nothing.
    """
    # Without a cache of prefixes: a prompt is asked again in each round, and the other ways read it again too.
    fixed = {"dtype": dtype, "max_model_len": longest, "max_num_seqs": batch_size, "seed": 0}
    fixed |= {"enforce_eager": eager, "enable_prefix_caching": False}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        exported = Path(folder, "exported")
        export_for_vllm(str(adapter), exported)
        fixed["model"] = str(exported / TARGET)
        drafting = {"speculative_config": SPECULATIVE | {"model": str(exported / DRAFTER)}}
        ways = {}
        for name, arguments in ((VLLM, fixed), (VLLM_DRAFTING, fixed | drafting)):
            log = Path(folder, f"{len(ways)}.log")
            ways[name] = stack.enter_context(VLLMProcess(environment, arguments, threads, log)).write
        yield ways
