"""The demo model's own answers to questions that leave a choice, in place of the generators' answers.

Verified decoding accepts a draft if the model itself would choose it. So where a question has many right answers,
drafts learn from the one that the model chooses.
"""

from pathlib import Path

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from wedlm.demo.checkers import check
from wedlm.demo.inputs import MAX_NEW_TOKENS, batch_of
from wedlm.demo.tasks import Example
from wedlm.evaluation.decodings import BASELINE
from wedlm.evaluation.work_file import WorkFile, digest_of

KIND = "stories"  # the kind whose questions leave many choices
BATCH_SIZE = 128


@torch.no_grad()
def own_answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example], folder: Path, weights: str
) -> dict[str, str]:
    """Returns the greedy answers that a checker accepts, by prompt.

    Args:
        model (`PreTrainedModel`): The model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        examples (`list[Example]`): Examples; those of other kinds are left out.
        folder (`Path`): Where answers are kept, so that a stopped run goes on.
        weights (`str`): A digest of the model's weights.
    """
    asked = list({example.prompt: example for example in examples if example.kind == KIND}.values())
    work = WorkFile(folder, {"weights": weights, "batch_size": BATCH_SIZE, "max_new_tokens": MAX_NEW_TOKENS})
    answers = {}
    for start in tqdm(range(0, len(asked), BATCH_SIZE), unit=" batches", desc="own answers"):
        batch = asked[start : start + BATCH_SIZE]
        prompts = [example.prompt for example in batch]
        key = (digest_of(prompts),)
        if key not in work:
            work.add(key, texts_of(model, tokenizer, batch))
        answers.update(zip(prompts, work[key], strict=True))
    return {prompt: text for prompt, text in answers.items() if check(KIND, prompt, text)}


def texts_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, examples: list[Example]) -> list[str]:
    inputs = batch_of(tokenizer, examples, model.device)
    ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, decoding=BASELINE)
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def with_own_answers(examples: list[Example], answers: dict[str, str]) -> list[Example]:
    """The examples, with the model's own answer where there is one."""
    return [example._replace(answer=answers.get(example.prompt, example.answer)) for example in examples]
