"""The limits of the server, each with its reason."""

BODY_BYTES = 2**20  # more than a context of 131,072 tokens, and JSON that the event loop reads in a moment
BODY_SECONDS = 60  # a body that comes slower holds memory and a connection
CONNECTIONS = 256  # each may hold a body
REQUESTS_IN_LINE = 64  # each holds the tokens of its prompt
PREPARED_AT_ONCE = 2  # the tokenizer takes a hundred times the memory of a text
STOP_STRINGS = 4  # as many as OpenAI takes; transformers compares each with every token of the vocabulary
STOP_CHARACTERS = 64  # the comparison takes time and memory for each character
BIASES = 300  # as many as OpenAI takes; each is compared with the text at each token
WINDOW_SIZE = 128  # sampling keeps two numbers for each slot and token of the vocabulary
LOOKED_UP = 127  # one less than the slots; autoregressive decoding judges as many tokens in a forward
MATCHED = 16  # autoregressive decoding searches the text once for each length of a match
BEAMS = 8  # each has a cache of its own
SENTENCE_CHARACTERS = 1000  # of an error, which may quote the request
