"""The form that a request asks for."""


def grammar_of(response_format, tokenizer, vocab_size):
    if response_format not in (None, {"type": "text"}):
        raise ValueError("response_format is not offered yet; leave it out.")
