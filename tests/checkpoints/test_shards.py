"""Weight files as headers and bytes: copies, mean rows, and damaged files."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from stock_checkpoints import (
    INDEX,
    SHARD,
    assert_refused,
    cut,
    refuse_access,
    save_stock,
    weights_of,
    write_header,
)

from wedlm import convert_to_wedlm


def test_the_order_of_a_file_is_that_of_its_bytes(tmp_path):
    """A header may list tensors in another order than their bytes have, and mix types and sizes."""
    source = tmp_path / "source"
    save_stock(source, hidden_size=31, dtype=torch.bfloat16)
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            if name.endswith("norm.weight"):
                tensors[name] = tensors[name].float()
        save_file(tensors, path)
        write_header(path, lambda header: [header.update({name: header.pop(name)}) for name in sorted(header)[::-1]])
    convert_to_wedlm(source, tmp_path / "wedlm")
    old, new = weights_of(source), weights_of(tmp_path / "wedlm")
    for name in old:
        assert torch.equal(new[name][: len(old[name])], old[name]), name
    for name in ("model.embed_tokens.weight", "lm_head.weight"):  # the sum has more digits than the weights
        assert torch.equal(new[name][-1], old[name].double().mean(dim=0).bfloat16())


def test_a_single_file_is_preferred_to_an_index(source, tmp_path):
    save_file(weights_of(source), source / "model.safetensors")
    (source / INDEX).write_text("{}")
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert [path.name for path in (tmp_path / "wedlm").glob("model*saf*")] == ["model.safetensors"]


# --- Refusals ---


def only_pickles(folder):
    for path in (*folder.glob("*.safetensors"), folder / INDEX):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")


def point(name):
    def change(folder):
        content = json.loads((folder / INDEX).read_text())
        content["weight_map"]["model.norm.weight"] = name
        (folder / INDEX).write_text(json.dumps(content))

    return change


def put_elsewhere(folder):
    (folder.parent / "elsewhere.safetensors").write_bytes(SHARD(folder, 3).read_bytes())
    point("../elsewhere.safetensors")(folder)


def quantize(folder):
    tensors = load_file(SHARD(folder, 2))
    save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}, SHARD(folder, 2))


REFUSED = {
    "pickles": (only_pickles, r"lacks its weights \(model.safetensors\); .*use_safetensors=False"),
    "a missing shard": (lambda folder: SHARD(folder, 2).unlink(), r"lacks its weights \(model-00002-of-00003.safe"),
    "a shard outside": (put_elsewhere, r"names the shard '../elsewhere.safetensors', which is no .*download"),
    "a shard that is a pickle": (point("model.bin"), "names the shard 'model.bin'"),
    "a shard that is no name": (point(3), "names the shard 3"),
    "an index without a map": (lambda folder: (folder / INDEX).write_text("{}"), "has no weight_map, or odd"),
    "an index that is wrong": (point("model-00001-of-00003.safetensors"), "model.norm.weight lies in model-00001"),
    "a cut shard": (
        lambda folder: cut(SHARD(folder, 2), -1),
        "00002-of-00003.safetensors is cut short or damaged .*copy",
    ),
    "an empty shard": (lambda folder: cut(SHARD(folder, 2), 0), "is cut short or damaged"),
    "a longer shard": (lambda folder: SHARD(folder, 2).open("ab").write(b"x"), "is cut short or damaged"),
    "8 bits": (
        quantize,
        "F8_E4M3, and only BF16, F16, F32, F64 are supported; start from the checkpoint as it was before quantization",
    ),
    "a weight twice": (
        lambda folder: shutil.copy(SHARD(folder, 1), SHARD(folder, 2)),
        "stands in both model-00001-of-00003.safetensors and model-00002",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_sentence_and_nothing_is_written(source, tmp_path, name):
    assert_refused(source, tmp_path, *REFUSED[name])


def test_a_shard_that_may_not_be_read(source, tmp_path, monkeypatch):
    monkeypatch.setattr("wedlm.checkpoints.shards.safe_open", refuse_access)
    monkeypatch.setattr("wedlm.checkpoints.shards.open", refuse_access, raising=False)
    assert_refused(source, tmp_path, lambda folder: None, "00001-of-00003.safetensors cannot be read .*; allow it")
