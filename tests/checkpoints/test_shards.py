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
    edit,
    refuse_access,
    save_stock,
    weights_of,
    write_header,
)

from wedlm import convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError


def test_the_order_of_a_file_is_that_of_its_bytes(tmp_path):
    """A header may list tensors in another order than their bytes have, and mix types and sizes."""
    source = tmp_path / "source"
    source.mkdir()
    save_stock(source, hidden_size=31, dtype=torch.bfloat16)
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            if name.endswith("norm.weight"):
                tensors[name] = tensors[name].float()
        if path == SHARD(source, 1):
            tensors["model.rotary_emb.inv_freq"] = torch.ones(())  # old checkpoints have it
        save_file(tensors, path)
        write_header(path, lambda header: [header.update({name: header.pop(name)}) for name in sorted(header)[::-1]])
    index = json.loads((source / INDEX).read_text())
    index["weight_map"]["model.rotary_emb.inv_freq"] = SHARD(source, 1).name
    (source / INDEX).write_text(json.dumps(index))
    convert_to_wedlm(source, tmp_path / "wedlm")
    old, new = weights_of(source), weights_of(tmp_path / "wedlm")
    for name in old:
        assert torch.equal(new[name][: len(old[name])] if old[name].ndim else new[name], old[name]), name
    for name in ("model.embed_tokens.weight", "lm_head.weight"):  # the sum has more digits than the weights
        assert torch.equal(new[name][-1], old[name].double().mean(dim=0).bfloat16())


def test_a_single_file_is_preferred_to_an_index(source, tmp_path):
    save_file(weights_of(source), source / "model.safetensors")
    (source / INDEX).write_text("{}")
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert [path.name for path in (tmp_path / "wedlm").glob("model*saf*")] == ["model.safetensors"]
    assert not (tmp_path / "wedlm" / INDEX).exists()


def test_mean_of_chunks(source, tmp_path, monkeypatch):
    """A large embedding is copied and averaged in parts."""
    convert_to_wedlm(source, tmp_path / "whole")
    monkeypatch.setattr("wedlm.checkpoints.shards.CHUNK_BYTES", 1000)
    convert_to_wedlm(source, tmp_path / "parts")
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=0, atol=1e-7)


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


def shrink(header):
    tensor = next(tensor for name, tensor in header.items() if name != "__metadata__")
    tensor["shape"] = [1, *tensor["shape"][1:]]


def swap_for_folder(path):
    path.unlink()
    path.mkdir()


def retype(header, dtype="F8_E4M3"):
    next(tensor for name, tensor in header.items() if name != "__metadata__")["dtype"] = dtype


def overlap(header):
    tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
    first, second = sorted(tensors, key=lambda tensor: tensor["data_offsets"])[:2]
    length = second["data_offsets"][1] - second["data_offsets"][0]
    second["data_offsets"] = [0, length]


def test_a_shard_that_may_not_be_read(source, tmp_path, monkeypatch):
    monkeypatch.setattr("wedlm.checkpoints.shards.open", refuse_access, raising=False)
    with pytest.raises(
        CheckpointError, match=r"model-00001-of-00003.safetensors cannot be read \(Permission denied\)"
    ):
        convert_to_wedlm(source, tmp_path / "wedlm")


# --- Refusals ---


REFUSED = {
    "pickles": (
        only_pickles,
        r"only pickled weights \(pytorch_model.bin\), and safetensors are wanted.*use_safetensors",
    ),
    "no weights": (
        lambda folder: [path.unlink() for path in folder.glob("model*")],
        "has neither model.safetensors nor .*if its weights are pickled .*use_safetensors",
    ),
    "a shard outside": (put_elsewhere, r"names the shard '../elsewhere.safetensors', which is no .*download"),
    "an absolute shard": (point("/etc/x.safetensors"), "names the shard '/etc/x.safetensors'"),
    "a shard of Windows": (point("..\\x.safetensors"), "names the shard"),
    "a shard that is a pickle": (point("model.bin"), "names the shard 'model.bin'"),
    "a shard that is no name": (point(3), "names the shard 3"),
    "an index without a map": (lambda folder: (folder / INDEX).write_text("{}"), "has no weight_map; copy"),
    "a missing shard": (
        lambda folder: SHARD(folder, 2).unlink(),
        "lacks model-00002-of-00003.safetensors, which its ind",
    ),
    "an index that is wrong": (point("model-00001-of-00003.safetensors"), "model.norm.weight lies in model-00001"),
    "a cut shard": (
        lambda folder: cut(SHARD(folder, 2), -1),
        "00002-of-00003.safetensors is cut short or damaged .*copy",
    ),
    "a cut header": (lambda folder: cut(SHARD(folder, 2), 30), "is cut short or damaged"),
    "a header beyond the limit": (
        lambda folder: SHARD(folder, 2).write_bytes((100_000_001).to_bytes(8, "little")),
        "its header has 100000001 bytes, and safetensors allows 100000000.; copy",
    ),
    "a header that is nested too deeply": (
        lambda folder: SHARD(folder, 2).write_bytes((20_000).to_bytes(8, "little") + b"[" * 20_000),
        "is cut short or damaged .maximum recursion depth",
    ),
    "integers": (
        lambda folder: write_header(SHARD(folder, 2), lambda header: retype(header, "I8")),
        "I8, and only BF16, F16, F32, F64 are supported; start from the checkpoint as it was before quantization",
    ),
    "metadata that is no text": (
        lambda folder: write_header(SHARD(folder, 2), lambda header: header.update(__metadata__={"format": 1})),
        "__metadata__ is {'format': 1}, and safetensors allows texts alone",
    ),
    "metadata that are a number": (
        lambda folder: write_header(SHARD(folder, 2), lambda header: header.update(__metadata__=5)),
        "__metadata__ is 5, and safetensors allows texts alone",
    ),
    "an empty shard": (lambda folder: cut(SHARD(folder, 2), 0), "is cut short or damaged"),
    "a longer shard": (lambda folder: SHARD(folder, 2).open("ab").write(b"x"), "is cut short or damaged"),
    "8 bits": (
        lambda folder: write_header(SHARD(folder, 2), retype),
        "F8_E4M3, and only BF16, F16, F32, F64 are supp",
    ),
    "tensors that overlap": (lambda folder: write_header(SHARD(folder, 2), overlap), "is cut short or damaged"),
    "a weight twice": (
        lambda folder: shutil.copy(SHARD(folder, 1), SHARD(folder, 2)),
        "stands in both model-00001-of-00003.safetensors and model-00002",
    ),
    "an odd byte count": (
        lambda folder: write_header(SHARD(folder, 2), shrink),
        "is cut short or damaged .* has a wrong number of bytes",
    ),
    "metadata that counts in words": (
        lambda folder: edit(folder / INDEX, metadata={"total_size": "much"}),
        "has metadata={'total_size': 'much'}; copy",
    ),
    "a shard that is a folder": (lambda folder: swap_for_folder(SHARD(folder, 2)), "lacks model-00002"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_sentence_and_nothing_is_written(source, tmp_path, name):
    assert_refused(source, tmp_path, *REFUSED[name])
