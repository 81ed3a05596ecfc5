"""Is everything right on a GPU? Checked there on the demo checkpoint, one line for each feature.

    python benchmarks/gpu_checks.py [--questions 60] [--new-tokens 160] [--only captured] [--minutes 8]
                                    [--out benchmarks/results/gpu/checks.json]

`benchmarks/gpu_kit.py` measures speed; this script measures none. A check says what it found. Where it raises, the
exception is written down and the others go on; where a package is missing, it says so. Without a GPU the checks that
need none run. A run that was stopped, or whose minutes are over, goes on where its record ends; what failed is checked
again.
"""

import argparse
import importlib.util
import math
import time
import traceback
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch
from common import DEVICE, earlier_results, markdown, new_parser, stock_model
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import AutoTokenizer, BitsAndBytesConfig, PreTrainedModel

import wedlm
from examples.demo.model import random_model
from examples.demo.tasks import KINDS, batch_of, conversation, held_out_examples, messages_of
from training import batch_of as random_batch
from training import new_step
from wedlm import DualStreamCollator, WeDLMForCausalLM, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.provenance import write_report
from wedlm.generation.static_steps import KEPT
from wedlm.training.target_loss import scale_weights, weight_sums

STATIC = {"cache_implementation": "static"}
PASSED, FAILED, MISSING = "passed", "failed", "not there"
PARALLEL = ("streaming", "verified", "blockwise")


class NotThere(Exception):
    """A package or a device that a check needs is missing."""


def needs_gpu() -> None:
    if DEVICE != "cuda":
        raise NotThere("a GPU")


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise NotThere(f"the package {package}")


def demo(**options) -> PreTrainedModel:
    return WeDLMForCausalLM.from_pretrained(DEMO_FOLDER, **options).to(DEVICE).eval()


class Questions:
    """Held-out questions of the demo, of all kinds in turns, in one batch."""

    def __init__(self, number: int, new_tokens: int):
        self.tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER, padding_side="left")
        self.new_tokens = new_tokens
        per_kind = [held_out_examples(kind, math.ceil(number / len(KINDS))) for kind in KINDS]
        self.examples = [example for examples in zip(*per_kind, strict=True) for example in examples][:number]

    def answers(
        self, model: PreTrainedModel, one_by_one: bool = False, sampled: bool = False, **settings
    ) -> list[str]:
        size = 1 if one_by_one else len(self.examples)
        texts = []
        for start in range(0, len(self.examples), size):
            inputs = batch_of(self.tokenizer, self.examples[start : start + size], model.device)
            ids = model.generate(**inputs, max_new_tokens=self.new_tokens, do_sample=sampled, **settings)
            texts += self.tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return texts


def same(texts: list[str], others: list[str], least: float = 1.0) -> str:
    """Says how many texts are the same, and raises where they are fewer than `least` of them."""
    number = sum(text == other for text, other in zip(texts, others, strict=True))
    said = f"{number} of {len(texts)} texts are the same"
    if number < least * len(texts):
        raise AssertionError(f"{said}; at least {least:.0%} were expected")
    return said


# --- The checks: each takes the questions, and returns what it found ---


def verified_in_float32(questions: Questions) -> str:
    model = demo()
    return same(questions.answers(model, decoding="verified"), questions.answers(model, decoding="autoregressive"))


def verified_in_bfloat16(questions: Questions) -> str:
    """Rounding may change a text where two tokens are about as likely."""
    model = demo(dtype=torch.bfloat16)
    texts, expected = (questions.answers(model, decoding=name) for name in ("verified", "autoregressive"))
    return same(texts, expected, least=0.9)


def captured_steps(questions: Questions) -> str:
    """The texts of captured steps beside those of ordinary ones, twice, since the second call has its graphs."""
    needs_gpu()
    found = []
    for dtype, least in ((torch.float32, 1.0), (torch.bfloat16, 0.9)):
        model = demo(dtype=dtype)
        for decoding in PARALLEL:
            expected = questions.answers(model, decoding=decoding)
            for _ in range(2):
                said = same(questions.answers(model, decoding=decoding, **STATIC), expected, least)
            graphs = len(KEPT[model].graphs)
            found.append(f"{decoding}, {str(dtype).removeprefix('torch.')}, {graphs} graphs: {said}")
    return "; ".join(found)


def captured_stock(questions: Questions) -> str:
    """Those of transformers' own class, as it is and fused; twice, since the second call has its graphs."""
    needs_gpu()
    found = []
    for name in ("as it is", "fused"):
        model = stock_model(demo())
        model = wedlm.fuse(model) if name == "fused" else model
        settings = {"custom_generate": wedlm.verified, "decoding": "verified"}
        expected = questions.answers(model, **settings)
        for _ in range(2):
            said = same(questions.answers(model, **settings, **STATIC), expected)
        found.append(f"{name}, {len(KEPT[model].graphs)} graphs: {said}")
        wedlm.free_static_memory(model)
    return "; ".join(found)


def captured_forwards(questions: Questions) -> str:
    """Forwards alone are captured where processors read the text, and in a running batch."""
    needs_gpu()
    model, found = demo(), []
    for decoding in ("streaming", "verified"):
        settings = {"decoding": decoding, "repetition_penalty": 1.1}
        expected = questions.answers(model, **settings)
        for _ in range(2):
            said = same(questions.answers(model, **settings, **STATIC), expected)
        found.append(f"{decoding}, {len(KEPT[model].forward.graphs)} graphs: {said}")
    return "; ".join([*found, f"a running batch: {running_batch(questions, **STATIC)}"])


def captured_sampling(questions: Questions) -> str:
    """With the same seed captured and ordinary steps draw the same text."""
    needs_gpu()
    model, texts = demo(), []
    for cache in ({}, STATIC, STATIC):
        torch.manual_seed(0)
        texts.append(questions.answers(model, decoding="verified", sampled=True, **cache))
    same(texts[1], texts[0])
    return same(texts[2], texts[0])


def no_graph(questions: Questions) -> str:
    """A forward that waits for the device takes ordinary steps, and nothing is broken behind it."""
    needs_gpu()
    found = []
    for name, wait in {
        "item()": lambda ids: ids.sum().item(),
        "synchronize()": lambda _: torch.cuda.synchronize(),
    }.items():
        model = demo()
        expected = questions.answers(model, decoding="verified")
        forward = model.model.forward

        def waiting(*args, wait=wait, forward=forward, **kwargs):
            wait(kwargs["input_ids"])
            return forward(*args, **kwargs)

        model.model.forward = waiting
        found.append(f"{name}: {same(questions.answers(model, decoding='verified', **STATIC), expected)}")
        questions.answers(demo(), decoding="verified", sampled=True, **STATIC)
    return "; ".join(found)


def compiled_model(questions: Questions) -> str:
    needs_gpu()
    model = demo()
    expected = questions.answers(model, decoding="verified")
    model.forward = torch.compile(model.forward, dynamic=True)
    return same(questions.answers(model, decoding="verified"), expected, least=0.9)


def flash_attention(questions: Questions) -> str:
    needs_gpu()
    needs("flash_attn")
    model, flash = (demo(dtype=torch.bfloat16, attn_implementation=name) for name in ("sdpa", "flash_attention_2"))
    found = []
    for decoding in PARALLEL:
        texts = questions.answers(flash, one_by_one=True, decoding=decoding)
        expected = questions.answers(model, one_by_one=True, decoding=decoding)
        found.append(f"{decoding}: {same(texts, expected, least=0.8)}")
    return "; ".join(found)


def four_bits(questions: Questions) -> str:
    """Verified decoding writes nearly all texts as the quantized model does; its matrix products round by shape."""
    needs_gpu()
    needs("bitsandbytes")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16")
    model = WeDLMForCausalLM.from_pretrained(DEMO_FOLDER, quantization_config=config, device_map="auto").eval()
    texts, expected = (questions.answers(model, decoding=name) for name in ("verified", "autoregressive"))
    return same(texts, expected, least=0.9)


def running_batch(questions: Questions, **settings) -> str:
    model, tokenizer = demo(), questions.tokenizer
    prompts = [
        tokenizer.apply_chat_template(example.messages[:1], add_generation_prompt=True)["input_ids"]
        for example in questions.examples
    ]
    settings |= {"max_new_tokens": questions.new_tokens, "do_sample": False, "decoding": "verified"}
    outputs = model.generate_batch(prompts, **settings)
    by_prompt = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
    texts = [tokenizer.decode(by_prompt[tuple(prompt)], skip_special_tokens=True) for prompt in prompts]
    return same(texts, questions.answers(model, one_by_one=True, decoding="verified"))


def gradients(questions: Questions) -> str:
    """The backward pass of FlexAttention beside that of the dense mask."""
    needs_gpu()
    found = {}
    tokenizer = questions.tokenizer
    sample = tokenizer.apply_chat_template(messages_of(conversation(1, 0)), return_dict=True)["input_ids"]
    collator = DualStreamCollator(mask_token_id=tokenizer.mask_token_id, block_size=16)
    row = {"input_ids": sample, "labels": sample, "sample_lengths": [len(sample)], "sample_indices": [0]}
    batch = collator([row])
    batch = {name: values.to(DEVICE) for name, values in scale_weights(batch, weight_sums(batch)).items()}
    for name in ("sdpa", "flex_attention", "dual_stream"):
        model = demo(attn_implementation=name).train()
        model(**batch).loss.backward()
        found[name] = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    expected = found.pop("sdpa")
    return close({name: float((one - expected).norm() / expected.norm()) for name, one in found.items()})


def close(distances: dict[str, float]) -> str:
    """Tells the relative distances of gradients to those of sdpa, and raises where one is large or no number."""
    told = ", ".join(f"{name} {distance:.1e}" for name, distance in distances.items())
    if not all(distance <= 1e-3 for distance in distances.values()):
        raise AssertionError(f"relative distances of the gradients to those of sdpa: {told}")
    return told


def long_training_step(questions: Questions) -> str:
    """A step of a sample that is too long for a dense mask."""
    needs_gpu()
    step = new_step("dual_stream")
    step(random_batch(8192, "dual_stream"))
    loss = step(random_batch(8192, "dual_stream"))
    if not math.isfinite(loss):
        raise AssertionError(f"the loss of the second step is {loss}")
    return "two steps of 8,192 tokens"


def training(questions: Questions) -> str:
    """A few steps of the Trainer from random weights, in bfloat16 on a GPU: the loss falls."""
    rows = Dataset.from_list([{"messages": messages_of(conversation(1, number))} for number in range(64)])
    with TemporaryDirectory() as folder:
        arguments = WeDLMTrainingArguments(
            folder, packing=True, max_length=192, block_size=16, learning_rate=1e-3, num_train_epochs=4,
            bf16=DEVICE == "cuda", use_cpu=DEVICE != "cuda", logging_steps=1, save_strategy="no",
            report_to="none", disable_tqdm=True,
        )  # fmt: skip
        model = random_model(questions.tokenizer, hidden_size=128, num_layers=2)
        trainer = WeDLMTrainer(model, arguments, train_dataset=rows, processing_class=questions.tokenizer)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    first, last = (sum(map(float, part)) / len(part) for part in (losses[:3], losses[-3:]))
    if not last < first:
        raise AssertionError(f"the loss went from {first:.3f} to {last:.3f}")
    return f"the loss went from {first:.3f} to {last:.3f}"


CHECKS: dict[str, Callable[[Questions], str]] = {
    "verified texts are the autoregressive ones, float32": verified_in_float32,
    "verified texts are the autoregressive ones, bfloat16": verified_in_bfloat16,
    "captured steps": captured_steps,
    "captured steps of stock models": captured_stock,
    "captured forwards": captured_forwards,
    "captured steps of sampled texts": captured_sampling,
    "flash-attn": flash_attention,
    "4-bit weights": four_bits,
    "a running batch": running_batch,
    "gradients of FlexAttention": gradients,
    "a long training step": long_training_step,
    "training with Trainer": training,
    "no captured steps where a forward waits": no_graph,
    "a compiled model": compiled_model,  # last, since it is compiled for minutes
}


def outcome(check: Callable[[Questions], str], questions: Questions) -> dict[str, str]:
    try:
        return {"outcome": PASSED, "found": check(questions)}
    except NotThere as missing:
        return {"outcome": MISSING, "found": str(missing)}
    except Exception as error:  # whatever it is, the other checks have to be told too
        traceback.print_exc()
        return {"outcome": FAILED, "found": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def table(results: list[dict[str, str]]) -> str:
    lines = [[result["check"], result["outcome"], result["found"].replace("|", "/")] for result in results]
    return markdown(["check", "outcome", "found"], lines, left={"check", "outcome", "found"})


def parse_arguments() -> argparse.Namespace:
    parser = new_parser(__doc__, "gpu/checks")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--only", default="", help="make only the checks whose name holds this")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no other check begins")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    questions, end = Questions(given.questions, given.new_tokens), time.perf_counter() + 60 * given.minutes
    about = {"questions": given.questions, "new_tokens": given.new_tokens}
    results = [each for each in earlier_results(given.out, about, DEVICE) or [] if each["outcome"] != FAILED]
    made = {result["check"] for result in results}
    checks = {name: check for name, check in CHECKS.items() if given.only in name and name not in made}
    for name, check in tqdm(checks.items(), unit=" checks"):
        if time.perf_counter() > end:
            break
        results.append({"check": name, **outcome(check, questions)})
        write_report(given.out, results, DEVICE, **about)  # each time, because a check may take the process with it
    print(table(results))
    if failed := sum(result["outcome"] == FAILED for result in results):
        raise SystemExit(f"{failed} of {len(results)} checks failed.")


if __name__ == "__main__":
    main()
