"""vLLM as a process that answers lines of JSON, for common.py; it runs in an environment of its own.

    .venv-vllm/bin/python benchmarks/vllm_worker.py ANSWERS ARGUMENTS

ARGUMENTS are those of `vllm.LLM` as JSON. The file descriptor ANSWERS gets a line once vLLM has loaded the model, and
then a line {"tokens": [[...]]} for each line {"prompts": [[...]], "new_tokens": 64} of the standard input. (vLLM
prints on the standard output.)
"""

import json
import os
import sys

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # before vllm is imported; in GB

import vllm


def main() -> None:
    with open(int(sys.argv[1]), "w") as answers:
        llm = vllm.LLM(**json.loads(sys.argv[2]))
        print("{}", file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            parameters = vllm.SamplingParams(temperature=0, max_tokens=asked["new_tokens"], detokenize=False)
            prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
            outputs = llm.generate(prompts, parameters, use_tqdm=False)
            tokens = [list(output.outputs[0].token_ids) for output in outputs]
            print(json.dumps({"tokens": tokens}), file=answers, flush=True)


if __name__ == "__main__":
    main()
