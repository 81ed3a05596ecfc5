"""A tokenizer that returns the tokens of its request."""

from tiny_tokenizer import make_tokenizer

from wedlm.serving.prepared_tokenizer import PreparedTokenizer


def test_it_returns_the_tokens_and_does_everything_else():
    whole = make_tokenizer()
    tokens = object()
    prepared = PreparedTokenizer(whole, tokens)
    assert prepared("the cat", return_tensors="pt") is prepared.apply_chat_template([], tools=None) is tokens
    assert prepared.decode(whole("the cat")["input_ids"]) == "the cat" and prepared.eos_token == whole.eos_token
