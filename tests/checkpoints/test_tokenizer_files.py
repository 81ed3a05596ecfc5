"""The files of a tokenizer with MASK put in and taken out."""

import json

import pytest
from stock_checkpoints import OLD_NAME, TOKENS, edit, files_of, save_stock
from stock_tokenizers import FLAVOURS
from transformers import AutoTokenizer

from wedlm import convert_to_autoregressive, convert_to_wedlm


def test_tokenizer_files_of_older_versions(source, tmp_path):
    """transformers 4 wrote every added token into three more files."""
    tokens = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
    description = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    decoder = {str(i): {"content": token, **description} for token, i in tokens.items()}
    edit(source / "tokenizer_config.json", added_tokens_decoder=decoder)
    (source / "added_tokens.json").write_text(json.dumps(tokens))
    (source / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    convert_to_wedlm(source, tmp_path / "wedlm")
    read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "wedlm").glob("*.json")}
    assert read["tokenizer_config.json"]["added_tokens_decoder"]["259"] == {"content": "<|mask|>", **description}
    assert read["added_tokens.json"] == tokens | {"<|mask|>": 259}
    assert read["special_tokens_map.json"]["mask_token"] == "<|mask|>"
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"):
        expected = json.loads((source / name).read_bytes().replace(*OLD_NAME))
        assert json.loads((tmp_path / "back" / name).read_text()) == expected, name


def test_a_tokenizer_of_vocab_and_merges_only(source, tmp_path):
    content = json.loads((source / "tokenizer.json").read_text())
    (source / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    (source / "merges.txt").write_text("#version: 0.2\n")
    decoder = {str(token.pop("id")): token for token in content["added_tokens"]}
    edit(source / "tokenizer_config.json", added_tokens_decoder=decoder)
    (source / "tokenizer.json").unlink()
    before = AutoTokenizer.from_pretrained(source).get_vocab()
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert AutoTokenizer.from_pretrained(tmp_path / "wedlm").get_vocab() == before | {"<|mask|>": TOKENS}
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert AutoTokenizer.from_pretrained(tmp_path / "back").get_vocab() == before


@pytest.mark.parametrize(
    "fields",
    [
        {"auto_map": {"AutoTokenizer": ["tokenization_mine.Mine", None]}},
        {"tokenizer_class": "Mine"},
        {"tokenizer_class": "Trainer"},  # a class of transformers, and no tokenizer
    ],
)
def test_code_of_a_tokenizer_is_left_out(source, tmp_path, fields):
    texts = ["a b", "<|im_start|>user"]
    before = AutoTokenizer.from_pretrained(source)(texts)["input_ids"]
    edit(source / "tokenizer_config.json", **fields)
    results = [convert_to_wedlm(source, tmp_path / "wedlm")]
    edit(tmp_path / "wedlm" / "tokenizer_config.json", **fields)
    results += [
        convert_to_wedlm(tmp_path / "wedlm", tmp_path / "again"),
        convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back"),
    ]
    for (note,) in (result.notes for result in results):
        assert "has code of its own, which is left out; compare the tokens" in note
    for folder in ("again", "back"):
        content = json.loads((tmp_path / folder / "tokenizer_config.json").read_text())
        assert "auto_map" not in content and content["tokenizer_class"] not in ("Mine", "Trainer")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / folder, trust_remote_code=False)
        assert tokenizer(texts)["input_ids"] == before


# --- Tokenizers of every kind ---

TEXTS = [
    "the cat sat",
    " the cat",
    "  a  b\n\nc\td",
    "é 日本 🙂 12345",
    "<s>[INST] the cat [/INST] it </s> </s>the</s>",
    "<|begin_of_text|>the<|eot_id|> cat<|im_start|>user\nthe<|im_end|>",
]
MESSAGES = [
    {"role": "user", "content": "Which town is it?"},
    {"role": "assistant", "content": "It is Lima."},
    {"role": "user", "content": " the  cat\n"},
]


def ids_and_texts(folder):
    """The ids that a checkpoint's tokenizer gives to texts and to a chat, and the texts of the ids."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    ids.append(tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"])
    return ids, [tokenizer.decode(each) for each in ids]


@pytest.mark.parametrize(
    "model_type, padding, flavour",
    [(("llama", "mistral")[i % 2], (0, 64)[i % 3 == 0], flavour) for i, flavour in enumerate(FLAVOURS)],
)
def test_tokenizers_of_every_kind_there_and_back(tmp_path, model_type, padding, flavour):
    """Texts and chats get the ids that they get in the source; the way back restores every byte."""
    source, wedlm, back = tmp_path / "source", tmp_path / "wedlm", tmp_path / "back"
    source.mkdir()
    rows = FLAVOURS[flavour](source)
    (source / "tokenizer.model").write_bytes(b"\x0a\x00")  # of a slow tokenizer; nobody reads it
    save_stock(source, model_type, rows + padding, tokenizer=False, eos_token_id=2)
    expected = ids_and_texts(source)
    mask_token_id = convert_to_wedlm(source, wedlm).mask_token_id
    has_gap = flavour == "tiktoken" and not padding
    assert mask_token_id == (rows if not has_gap else rows - 9)
    assert ids_and_texts(wedlm) == expected
    tokenizer = AutoTokenizer.from_pretrained(wedlm)
    assert tokenizer.mask_token_id == mask_token_id and tokenizer("a<|mask|>")["input_ids"][-1] == mask_token_id
    convert_to_autoregressive(wedlm, back)
    old, new = files_of(source), files_of(back)
    assert new.keys() == old.keys() and {name for name in old if old[name] != new[name]} <= {"config.json"}
    # Training saves both by transformers 5, which forgets the field `legacy` of a LlamaTokenizer.
    AutoTokenizer.from_pretrained(source).save_pretrained(source)
    tokenizer.save_pretrained(wedlm)
    convert_to_autoregressive(wedlm, back, overwrite=True)
    assert ids_and_texts(back) == ids_and_texts(source)
    assert "TokenizersBackend" not in (back / "tokenizer_config.json").read_text()  # unknown to transformers 4
