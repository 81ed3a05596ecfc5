"""Bad calls of generate() and of the commands: each is refused in one sentence."""

import json
import os
import re
import shlex
import shutil

import pytest
import torch
from draft_models import save_adapter
from helpers import CHECKPOINTS, load, run_python
from stock_checkpoints import save_stock
from transformers import DynamicCache, StaticCache
from typer.testing import CliRunner

from wedlm import convert_to_wedlm
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands import cli
from wedlm.generation.transformers_internals import CACHE

MODEL = load(CHECKPOINTS / "q3")


def is_one_sentence(text: str) -> bool:
    return text.endswith((".", "?")) and "\n" not in text and "Traceback" not in text


# --- generate() ---

# Those that tests/generation/ has not; in a sentence, * stands for any words.
CALLS = [
    ({"cache_implementation": "quantized"}, "cache_implementation='quantized' is not offered by *; leave it out *."),
    ({CACHE: StaticCache(MODEL.config, 8)}, f"{CACHE}=StaticCache is not offered by *; pass a *."),
    (
        {"use_cache": False, CACHE: DynamicCache()},
        f"{CACHE} is a cache and use_cache=False wants none; leave out one of the two.",
    ),
]


def matches(sentence: str, text: str) -> bool:
    return re.fullmatch(re.escape(sentence).replace(r"\*", ".*"), text) is not None


@pytest.mark.parametrize(("arguments", "sentence"), CALLS, ids=[sentence[:40] for _, sentence in CALLS])
def test_generate_refuses_in_one_sentence(arguments, sentence):
    with pytest.raises(ValueError) as refused:
        MODEL.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, pad_token_id=0, **arguments)
    text = str(refused.value)
    assert is_one_sentence(text) and matches(sentence, text), text


# --- The commands ---

GONE = "gone is not a folder here and was not downloaded before, and https://huggingface.co/gone cannot be reached *."
NARROW = (
    "The weight model.layers.0.mlp.down_proj.weight of narrow is [256, 682], and by its config [256, 64] (18 such "
    "weights in all); correct one of the two."
)
# The words behind `wedlm`, in the folder that `folder` makes, and the sentence. Nobody waits for torch to read these.
COMMANDS = [
    ("generate gone Hi", GONE),
    ("generate empty Hi", "empty has no config.json, so it is not a checkpoint; give the folder of one."),
    ("generate wordless Hi", "wordless has no tokenizer (neither tokenizer.json nor vocab.json); copy *."),
    ("generate q2 Hi", "q2 has no tokenizer (neither tokenizer.json nor vocab.json); copy *."),
    ("eval q2 --tasks a", "q2 is of model_type 'qwen2', and this needs WeDLM; `wedlm convert q2 OUT` makes a *."),
    ("generate adapter Hi", "adapter is an adapter; `wedlm merge adapter OUT` makes a whole *."),
    ("generate broken Hi", "broken/config.json cannot be read as JSON (*); copy or download it again."),
    ("generate ranked Hi", "r=-1 in ranked/adapter_config.json is not an integer from 1 to 65536; correct *."),
    ("info based", "The checkpoint [1], which based was trained on, cannot be loaded ([1] is not a name); *."),
    ("info mapped", "model_type={'a': 1} in mapped/config.json is not a name; correct it, or copy *."),
    ("info listed", "model_type=[] in listed/config.json is not a name; correct it, or copy or download *."),
    ("info ended", "eos_token_id='a' in ended/generation_config.json is not a token id; correct it."),
    ("generate Hi --decoding fast", "decoding='fast' is unknown; choose one of 'streaming', 'blockwise', *."),
    ("generate Hi --entropy-threshold low", "--entropy-threshold low is neither a number of nats nor none."),
    ("generate Hi --temperature -1", "--temperature -1.0 is not a temperature; give 0 or a finite number."),
    ("generate Hi --max-new-tokens 0", "--max-new-tokens 0 leaves no room for an answer; give 1 or more."),
    ("generate model", "model is a checkpoint, and no PROMPT follows it; give one."),
    ("generate model Why is it", "'is' follows the prompt 'Why', and this command takes one; put quotes around a *."),
    ("generate ''", "The prompt is empty; give it some text."),
    ("compare Hi --seed -1", "--seed -1 is not a seed; give a whole number from 0 to 2**63 - 1."),
    ("trace Hi --html gone/x.html", "--html gone/x.html cannot be written; give the name of a file in a folder *."),
    ("convert q2 q2/out", "*q2/out and the source *q2 are the same folder, or one lies in the other; choose *."),
    ("adapt gpt2 out", "gpt2 has no tokenizer (neither tokenizer.json nor vocab.json); copy *."),
    ("adapt model out --prompts plain.jsonl", "--prompts plain.jsonl has 1 different prompts, too few to hold *."),
    ("adapt model out --answers plain.jsonl --prompts plain.jsonl", "--prompts * and --answers * exclude each *."),
    ("adapt model out --minutes 0", "--minutes 0.0 is not a number above 0; pass one."),
    ("adapt model out --start-from model", "--start-from model is not a folder of a draft adapter; give one, or *."),
    ("merge empty out", "empty is not an adapter of PEFT (*adapter_config.json*); give the folder it was saved to."),
    ("merge adapter out", "The checkpoint None, which adapter was trained on, cannot be loaded (*); *."),
    ("eval --tasks a --out plain.jsonl", "--out plain.jsonl exists; choose another file, or pass --overwrite."),
    ("eval --recipe gone", "--recipe gone is neither one of speed, *, table2-instruct nor a file; give one of them."),
    ("eval --recipe text.yaml", "--recipe text.yaml cannot be used (*); it needs `tasks:` with the shots of each, *."),
    ("eval", "No task is named; pass --tasks NAME,NAME or --recipe NAME."),
    ("eval --tasks a --window-size 4", "--window-size and its like need a --decoding that reads them; name one, *."),
    ("eval --tasks a --include-path gone", "--include-path gone is not a folder; give one with YAML files of tasks."),
    ("eval --tasks a --metadata {", "--metadata { is not JSON (*); write it as '{\"seed\": 1}'."),
    ("tune model --data empty.jsonl", "--data empty.jsonl holds no examples; write a line of JSON for each."),
    ("tune model --data plain.jsonl --measure exact", "--measure exact needs answers, and the examples have none; *."),
    ("tune model --data plain.jsonl --max-quality-loss 2", "--max-quality-loss 2 is not a share of the examples; *."),
    ("tune gone --data plain.jsonl", "gone is not a folder, and generation_config.json is written into one; *."),
    ("train gone.yaml", "There is no file gone.yaml; give the YAML file of a run, as in training/configs."),
    ("train broken.yaml", "broken.yaml cannot be read as YAML (*); correct the name or the file."),
]  # fmt: skip
# These need torch, or transformers' arguments.
SLOWER_COMMANDS = [
    ("export model out", "There is no licence, neither in model/README.md nor in the options; pass --license, *."),
    ("export model out --license mit --eval gone.json", "gone.json is not a file of `wedlm eval` (*); pass *."),
    ("train run.yaml --train_data empty.jsonl", "There is no record in empty.jsonl; give a file with at least one."),
    ("train run.yaml --train_data broken.jsonl", "broken.jsonl, line 2 is not JSON (*); correct it."),
    ("train run.yaml --output_dir run.yaml", "output_dir=run.yaml cannot be written (Not a directory: *); choose *."),
    ("generate Hi --device warp", "* cannot be put on the device 'warp' (*); choose another, such as 'cpu'."),
    ("generate Hi --device meta", "The device 'meta' holds no weights; choose another, such as 'cpu'."),
    ("generate Hi --max-new-tokens 9999", "--max-new-tokens 9999 is more than max_position_embeddings=2048 *."),
    ("generate <|mask|>", "The prompt holds <|mask|>, the MASK token, which stands for an open slot; take it out."),
    ("train run.yaml --output_dir weightless", "output_dir=weightless holds a checkpoint; pass --overwrite to *."),
    ("train run.yaml --lora_r -1", "lora_r=-1 is not a rank; pass 1 or more, or 0 to train the whole model."),
    ("train run.yaml --learning_rat 1", "There is no argument 'learning_rat'; did you mean *?"),
    ("train run.yaml --gradient_accumulation_steps 0", "gradient_accumulation_steps=0 leaves nothing to train on; *."),
    ("train run.yaml --train_data deep.jsonl", "deep.jsonl, line 1 is nested too deeply; flatten or remove it."),
    ("train run.yaml --train_data deep.json", "deep.json has a record that is nested too deeply; flatten or *."),
    ("generate cut Hi", "The chat template of cut cannot write the prompt (TemplateSyntaxError: *); correct it, *."),
    ("compare huge Hi", "The chat template of huge cannot write the prompt (it takes too much memory); *."),
    ("trace huge Hi", "The chat template of huge cannot write the prompt (it takes too much memory); correct it, *."),
    ("tune huge --data answers.jsonl", "answers.jsonl, line 1: The chat template of huge cannot write the prompt *."),
    ("generate silent Hi", "The prompt has no tokens; give it some text (a chat template may have written none)."),
    *((words.format("mapped"), "model_type={'a': 1} in mapped/config.json is not a name; correct it, or copy *.")
      for words in ("generate {} Hi", "convert {} out", "export {} out --license mit", "eval {} --tasks a",
                    "export {} out --vllm", "adapt {} out", "serve {}", "train run.yaml --model {}",
                    "tune {} --data plain.jsonl")),
    *((words.format("ended"), "eos_token_id='a' in ended/generation_config.json is not a token id; correct it.")
      for words in ("generate {} Hi", "export {} out --license mit", "train run.yaml --model {}")),
    ("generate foreign Hi", "foreign is of model_type 'foreign', which transformers * does not know; update *."),
    ("train run.yaml --model foreign", "foreign is of model_type 'foreign'; supported is a dense causal *."),
    ("generate coded Hi", "The tokenizer in coded cannot be loaded (it needs code of its own, *); correct *."),
    ("generate lettered Hi", "generation_config.json of lettered has a value that generate() cannot work with *."),
    *((words.format("stretched"), "The tokenizer in stretched cannot be loaded (*); correct its files, or copy *.")
      for words in ("generate {} Hi", "train run.yaml --model {}")),
    ("generate narrow Hi", NARROW),
]  # fmt: skip


# Copies of the demo checkpoint in which a file is another one, or has other fields.
SPOILED = {
    "cut": ("chat_template.jinja", "{% for message in messages %}{{ message.con"),
    "huge": ("chat_template.jinja", "{{ 'a' * 10**10 }}"),
    "silent": ("chat_template.jinja", ""),
    "mapped": ("config.json", {"model_type": {"a": 1}}),
    "listed": ("config.json", {"model_type": []}),
    "foreign": ("config.json", {"model_type": "foreign"}),
    "narrow": ("config.json", {"intermediate_size": 64}),
    "ended": ("generation_config.json", {"eos_token_id": "a"}),
    "lettered": ("generation_config.json", {"top_k": "a", "do_sample": True}),
    "stretched": ("tokenizer_config.json", {"model_max_length": "a"}),
    "coded": ("tokenizer_config.json", {"tokenizer_class": "A", "auto_map": {"AutoTokenizer": ["a.A", None]}}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with checkpoints and files of which most are wrong."""
    folder = tmp_path_factory.mktemp("folder")
    shutil.copytree(DEMO_FOLDER, folder / "model", ignore=shutil.ignore_patterns("README.md"))
    for name, left_out in (("weightless", "*.safetensors"), ("wordless", "tokenizer.json"), ("broken", "config.json")):
        shutil.copytree(folder / "model", folder / name, ignore=shutil.ignore_patterns(left_out))
    for name in ("empty", "q2", "gpt2", "adapter", "ranked", "based"):
        (folder / name).mkdir()
    for name, text in {
        "broken/config.json": "{", "q2/config.json": '{"model_type": "qwen2"}',
        "gpt2/config.json": '{"model_type": "gpt2"}',
        "adapter/adapter_config.json": '{"base_model_name_or_path": null}',
        "ranked/adapter_config.json": '{"peft_type": "WEDLM_DRAFT", "r": -1}',
        "based/adapter_config.json": '{"peft_type": "WEDLM_DRAFT", "r": 1, "lora_alpha": 1, "target_modules": [], '
        '"base_model_name_or_path": [1]}',
        "empty.jsonl": "\n", "plain.jsonl": '{"prompt": "a"}', "broken.jsonl": '{"prompt": "a"}\n{',
        "broken.yaml": "a: [", "text.yaml": "text",
        "run.yaml": "model: model\ntrain_data: plain.jsonl\noutput_dir: out",
        "deep.jsonl": '{"prompt": ' + "[" * 10**5 + "]" * 10**5 + "}", "deep.json": "[" * 10**5 + "]" * 10**5,
        "chat.jsonl": json.dumps({"messages": [{"role": role, "content": "a"} for role in ("user", "assistant")]}),
        "answers.jsonl": '{"prompt": "a", "answer": "b"}\n' * 8, "full.jsonl": '{"prompt": "a", "completion": "b"}',
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    for name, (file, change) in SPOILED.items():
        shutil.copytree(folder / "model", folder / name, copy_function=os.link)
        is_text = isinstance(change, str)
        text = change if is_text else json.dumps(json.loads((folder / name / file).read_text()) | change)
        (folder / name / file).unlink()
        (folder / name / file).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"), [*COMMANDS, *SLOWER_COMMANDS], ids=[words for words, _ in [*COMMANDS, *SLOWER_COMMANDS]]
)
def test_a_command_refuses_in_one_sentence(folder, monkeypatch, words, sentence):
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(cli.app, shlex.split(words))
    said = result.stderr.removesuffix("\n")
    assert (result.exit_code, result.stdout) == (2, ""), (said, result.exception)
    assert is_one_sentence(said) and matches(sentence, said), said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--model cut --train_data chat.jsonl", "chat.jsonl, line 1: the chat template refuses the messages (*); *."),
        ("--model narrow --train_data full.jsonl", NARROW),
    ],
)
def test_training_refuses_in_one_sentence_what_it_sees_behind_the_data(folder, monkeypatch, words, sentence):
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(cli.app, ["train", "run.yaml", *words.split()])
    said = result.stderr.splitlines()[-1]
    assert result.exit_code == 2 and is_one_sentence(said) and matches(sentence, said), said


def test_nothing_was_written(folder):
    names = {path.name for path in folder.iterdir()}
    assert not names & {"out", "gone", "x.html"} and not (folder / "q2" / "out").exists()


IMPORTED = """
import sys
from typer.testing import CliRunner
from wedlm.commands.cli import app
for words in {commands}:
    code = CliRunner().invoke(app, words).exit_code
    print(words, code, "torch" in sys.modules or "transformers" in sys.modules, flush=True)
"""


@pytest.mark.full
def test_who_mistypes_does_not_wait_for_torch(folder):
    commands = [shlex.split(words) for words, _ in COMMANDS]
    printed = run_python(IMPORTED.format(commands=commands), folder).splitlines()
    assert printed == [f"{words} 2 False" for words in commands]


def test_who_asks_about_a_checkpoint_does_not_wait_for_torch(tmp_path):
    save_stock(tmp_path / "stock")
    convert_to_wedlm(tmp_path / "stock", tmp_path / "converted")
    save_adapter(tmp_path / "drafts", base=tmp_path / "converted")
    commands = [["info"], *(["info", name] for name in ("stock", "converted", "drafts"))]
    printed = run_python(IMPORTED.format(commands=commands), tmp_path).splitlines()
    assert printed == [f"{words} 0 False" for words in commands]
