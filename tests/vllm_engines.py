"""vLLM in this process, with and without a drafter; import it in tests of the tier `vllm` only."""

import os

os.environ |= {  # before vllm is imported
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

from vllm import LLM, SamplingParams

from wedlm.checkpoints.new_folder import DRAFTER, TARGET
from wedlm.for_vllm.vllm_export import SPECULATIVE

LONGEST = 1024
KEPT = []  # vLLM closes what all of its engines share when one of them goes


def engine(folder, with_drafter: bool, num_drafts: int = 8, max_num_seqs: int = 32, target=None, **options) -> LLM:
    """vLLM with the target in an export, or with another one, and with the drafter of the export."""
    if with_drafter:
        own = {"model": str(folder / DRAFTER), "num_speculative_tokens": num_drafts}
        options["speculative_config"] = SPECULATIVE | own
    fixed = {"dtype": "float32", "max_model_len": LONGEST, "disable_log_stats": False, "seed": 0}
    fixed |= {"enforce_eager": True, "max_num_seqs": max_num_seqs}
    KEPT.append(LLM(str(target or folder / TARGET), **{**fixed, **options}))
    return KEPT[-1]


def answers(llm: LLM, questions: list[str], **options) -> list:
    """The outputs for some questions, which are all asked at once."""
    parameters = SamplingParams(**{"temperature": 0, "max_tokens": 60, **options.pop("sampling", {})})
    chats = [[{"role": "user", "content": question}] for question in questions]
    return [answer.outputs[0] for answer in llm.chat(chats, parameters, use_tqdm=False, **options)]


def texts(llm: LLM, questions: list[str], **options) -> list[str]:
    return [answer.text for answer in answers(llm, questions, **options)]


def since(before: list[int], after: list[int]) -> list[int]:
    return [new - old for old, new in zip(before, after, strict=True)]


def drafter_of(llm: LLM):
    """The model that drafts."""
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    return worker.model_runner.drafter.model
