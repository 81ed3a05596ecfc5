"""Small tokenizers of the kinds that stock checkpoints have, in the files that transformers 4 wrote."""

import json

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "the cat sat on the mat and the dog sat on the log, which town is it? It is Lima.",
    "user assistant system [INST] [/INST] 12 + 30 = 42\n\n a  b",
] * 3
# The template of Llama 2 and Mistral, which writes the first token itself.
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
# That of Llama 3.
HEADERS = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# That of SmolLM2, without a first token.
IM = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def special(*tokens):
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


def trained(pre_tokenizer, trainer, model):
    """The vocabulary of a model, and the merges of a BPE."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(CORPUS, trainer)
    content = json.loads(tokenizer.to_str())["model"]
    return content["vocab"], [tuple(merge) for merge in content.get("merges", [])]


def save(tokenizer, folder, chat_template, **config):
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"clean_up_tokenization_spaces": False, "model_max_length": 10**30, **config}
    config["chat_template"] = chat_template
    text = json.dumps(dict(sorted(config.items())), indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text)
    return tokenizer.get_vocab_size()


def first_token(token, token_id):
    """The post-processor that puts a token in front of a text."""
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, token_id)]
    )


def save_sentencepiece(folder, is_legacy=True, is_unigram=False, has_bos=True, tokenizer_class="LlamaTokenizer"):
    """Pieces with a ▁ for each space and in front of each text, and bytes for unknown characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = pre_tokenizers.Metaspace("▁", prepend_scheme="first")  # no piece goes across words
    if is_unigram:
        trainer = trainers.UnigramTrainer(
            vocab_size=340, special_tokens=pieces, unk_token="<unk>", show_progress=False
        )
        pieces, _ = trained(words, trainer, models.Unigram())
        tokenizer = Tokenizer(models.Unigram([tuple(piece) for piece in pieces], unk_id=0, byte_fallback=True))
    else:
        trainer = trainers.BpeTrainer(vocab_size=360, special_tokens=pieces, show_progress=False)
        vocabulary, merges = trained(words, trainer, models.BPE())
        tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if is_legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    if has_bos:
        tokenizer.post_processor = first_token("<s>", 1)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": tokenizer_class}
    return save(tokenizer, folder, INST, **names, legacy=is_legacy, add_bos_token=has_bos, add_eos_token=False)


def save_tiktoken(folder):
    """Bytes that are split by a regular expression, and added tokens behind a gap, as in Llama 3."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    vocabulary, merges = trained(split, trainer, models.BPE())
    names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"]
    first = len(vocabulary) + 4  # tokenizers numbers added tokens without gaps, unless the vocabulary has them
    vocabulary |= {name: first + i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.add_special_tokens(special(*names))
    tokenizer.post_processor = first_token(names[0], first)
    named = {"bos_token": names[0], "eos_token": names[3], "tokenizer_class": "PreTrainedTokenizerFast"}
    save(tokenizer, folder, HEADERS, **named)
    return first + len(names)


def save_smollm(folder):
    """Bytes with single digits, and no token in front, as in SmolLM2."""
    split = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    tokenizer = Tokenizer(models.BPE(*trained(split, trainer, models.BPE())))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.add_special_tokens(special(*names))
    named = {"bos_token": names[1], "eos_token": names[2], "pad_token": names[2], "unk_token": names[0]}
    return save(tokenizer, folder, IM, **named, tokenizer_class="GPT2Tokenizer")


# Each writes the files of a tokenizer into a folder, and returns the number of rows that its ids need.
FLAVOURS = {
    "sentencepiece": save_sentencepiece,
    "sentencepiece, not legacy": lambda folder: save_sentencepiece(folder, is_legacy=False),
    "sentencepiece without a first token": lambda folder: save_sentencepiece(folder, has_bos=False),
    "unigram": lambda folder: save_sentencepiece(folder, is_unigram=True, tokenizer_class="PreTrainedTokenizerFast"),
    "tiktoken": save_tiktoken,
    "smollm": save_smollm,
}
