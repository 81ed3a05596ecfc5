"""Weight files as headers and bytes: copies, mean rows, and damaged files."""

import json

import torch
from safetensors.torch import load_file, save_file
from stock_checkpoints import INDEX, save_stock, weights_of, write_header

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
    metadata = json.loads((tmp_path / "wedlm" / INDEX).read_text())["metadata"]
    assert metadata["total_parameters"] == sum(tensor.numel() for tensor in new.values())
    assert metadata["total_size"] == sum(tensor.nbytes for tensor in new.values())


def test_a_single_file_is_preferred_to_an_index(source, tmp_path):
    save_file(weights_of(source), source / "model.safetensors")
    (source / INDEX).write_text("{}")
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert [path.name for path in (tmp_path / "wedlm").glob("model*saf*")] == ["model.safetensors"]
