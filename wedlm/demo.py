"""`make demo`: a checkpoint saved, loaded through the Auto classes, and text generated from it."""

import tempfile
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, logging

from wedlm import WeDLMConfig, WeDLMForCausalLM

PROMPT = "The first ten numbers are"
MAX_NEW_TOKENS = 48
ENTROPY_THRESHOLD = (
    5.58  # a random model is never certain, its entropy near ln 259 = 5.56: the default would fill little
)


def save_random_checkpoint(folder: str) -> None:
    """A tiny untrained model with a tokenizer of single bytes: loads and runs like a real one, writes nonsense."""
    special_tokens = ["<|pad|>", "<|end|>", "<|mask|>"]
    tokens = special_tokens + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, end, mask = special_tokens
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, eos_token=end, mask_token=mask).save_pretrained(
        folder
    )

    torch.manual_seed(0)
    config = WeDLMConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=tokens.index(pad),
        eos_token_id=tokens.index(end),
        mask_token_id=tokens.index(mask),
    )
    WeDLMForCausalLM(config).save_pretrained(folder)


def main() -> None:
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        save_random_checkpoint(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    torch.manual_seed(0)
    start = time.perf_counter()
    output = model.generate(
        **inputs,
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=True,
        entropy_threshold=ENTROPY_THRESHOLD,
        return_dict_in_generate=True,
    )
    seconds = time.perf_counter() - start
    new_tokens = output.sequences[0, inputs["input_ids"].shape[1] :]
    print(
        "There is no trained demo checkpoint yet: this is a tiny model with random weights, so it writes nonsense.\n"
    )
    print(f"prompt     {PROMPT!r}")
    print(f"generated  {tokenizer.decode(new_tokens, skip_special_tokens=True)!r}")
    print(
        f"\n{len(new_tokens)} tokens in {output.forwards.item()} forwards, "
        f"{output.tokens_per_forward.item():.1f} per forward, and {seconds:.2f} s."
    )


if __name__ == "__main__":
    main()
