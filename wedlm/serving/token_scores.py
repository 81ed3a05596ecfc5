"""The log-probabilities of an answer."""


class TokenScores:
    def __init__(self, *arguments):
        raise ValueError("logprobs is not offered yet; leave it out.")
