"""A tokenizer that has read its request already, for handlers that would read it on the event loop."""

from transformers import BatchEncoding, PreTrainedTokenizerBase


class PreparedTokenizer:
    """Returns the tokens of the request, whatever it is asked to read.

    Args:
        whole (`PreTrainedTokenizerBase`): The tokenizer, which does everything else.
        inputs (`BatchEncoding`): The tokens of the request.
    """

    def __init__(self, whole: PreTrainedTokenizerBase, inputs: BatchEncoding):
        self.whole, self.inputs = whole, inputs

    def __call__(self, *_, **__) -> BatchEncoding:
        return self.inputs

    def apply_chat_template(self, *_, **__) -> BatchEncoding:
        return self.inputs

    def __getattr__(self, name: str):
        return getattr(self.whole, name)
