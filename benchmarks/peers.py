"""Another library as a process that answers lines of JSON, for common.py; it runs in an environment of its own.

    ENVIRONMENT/bin/python benchmarks/peers.py LIBRARY ANSWERS ARGUMENTS

The file descriptor ANSWERS gets a line once the library has loaded the model, and then a line {"tokens": [[...]]} for
each line {"prompts": [[...]], "new_tokens": 64} of the standard input. (Some libraries print on the standard output.)
ARGUMENTS, as JSON, are those of the library's function below.
"""

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Prompts = list[list[int]]
Write = Callable[[Prompts, int], list[list[int]]]  # the new tokens of each prompt


def padded(prompts: Prompts, pad: int) -> tuple[Prompts, Prompts]:
    """The prompts with padding on the left, and their attention mask."""
    width = max(map(len, prompts))
    ids = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
    return ids, [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]


def vllm(**arguments: Any) -> Write:
    """`arguments` are those of `vllm.LLM`."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # in GB; before the import
    from vllm import LLM, SamplingParams

    llm = LLM(**arguments)

    def write(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        parameters = SamplingParams(temperature=0, max_tokens=new_tokens, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return write


def economize(model: str, dtype: str, end: int, threads: int) -> Write:
    """Its look-up of drafts in the text, with its own defaults."""
    import torch
    from economize import apply
    from economize.techniques.lookup import LookupConfig
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    drafting = apply(AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval(), LookupConfig())

    def write(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        ids, mask = map(torch.tensor, padded(prompts, end))
        call = {"attention_mask": mask, "max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": end}
        return drafting.generate(ids, **call)[:, ids.shape[1] :].tolist()

    return write


def llama_cpp(model: str, drafts: bool, prompts_at_once: int, longest: int, threads: int) -> Write:
    """llama.cpp on a GGUF file, without and with drafts from n-grams of the same text.

    It tells how many tokens it wrote, not which.
    """
    from xllamacpp import CommonParams, Server, common_speculative_type

    parameters = CommonParams()
    parameters.model.path = model
    parameters.n_ctx, parameters.n_parallel = longest * prompts_at_once, prompts_at_once
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.n_gpu_layers, parameters.verbosity = 0, -1
    if drafts:
        parameters.speculative.types = [common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    server = Server(parameters)

    def complete(ids: list[int], new_tokens: int) -> list[int]:
        request = {"prompt": ids, "n_predict": new_tokens, "temperature": 0, "cache_prompt": False}
        return [-1] * server.handle_completions(request)["usage"]["completion_tokens"]

    def write(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        with ThreadPoolExecutor(len(prompts)) as requests:
            return list(requests.map(complete, prompts, [new_tokens] * len(prompts)))

    return write


def openvino(model: str, dtype: str, end: int, threads: int) -> Write:
    """OpenVINO GenAI on a folder that `optimum-cli export openvino` wrote."""
    import numpy as np
    from openvino import Tensor
    from openvino_genai import LLMPipeline, SchedulerConfig, TokenizedInputs

    scheduler = SchedulerConfig()
    scheduler.enable_prefix_caching, scheduler.max_num_batched_tokens = False, 2**16
    settings = {"INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype]}
    settings |= {"INFERENCE_NUM_THREADS": threads, "scheduler_config": scheduler}
    pipeline = LLMPipeline(model, "CPU", **settings)

    def write(prompts: Prompts, new_tokens: int) -> list[list[int]]:
        config = pipeline.get_generation_config()
        config.max_new_tokens, config.do_sample = new_tokens, False
        ids, mask = (Tensor(np.array(each)) for each in padded(prompts, end))
        return pipeline.generate(TokenizedInputs(ids, mask), config).tokens

    return write


LIBRARIES = {library.__name__: library for library in (vllm, economize, llama_cpp, openvino)}


def main() -> None:
    library, answers, arguments = sys.argv[1:]
    with open(int(answers), "w") as file:
        write = LIBRARIES[library](**json.loads(arguments))
        print("{}", file=file, flush=True)
        for line in sys.stdin:
            print(json.dumps({"tokens": write(**json.loads(line))}), file=file, flush=True)


if __name__ == "__main__":
    main()
