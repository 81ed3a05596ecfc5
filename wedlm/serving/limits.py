"""The limits of the server, each with its reason."""

BODY_BYTES = 2**20  # more than a context of 131,072 tokens, and JSON that the event loop reads in a moment
BODY_SECONDS = 60  # a body that comes slower holds memory and a connection
BATCH_SIZE = 64  # rows of a forward, unless --max-batch-size says otherwise
WAITING = 256  # each holds the tokens of its prompt; --max-waiting sets another number
REQUEST_SECONDS = 600  # OpenAI's clients wait no longer; --request-timeout sets another number
FURTHER_CONNECTIONS = 256  # beside those of requests that run or wait; each may hold a body
SPARE_CONNECTIONS = 16  # beside all others, for /health
HEADER_SECONDS = 10  # until a connection has brought the header of a request
WRITE_SECONDS = 60  # in which a client has to take WRITE_BYTES of an answer that waits for it
WRITE_BYTES = 2**14  # 273 bytes a second; every modem is faster
ACCEPTED_AT_ONCE = 128  # before others make place for them
FILES = 64 + ACCEPTED_AT_ONCE  # that the process opens besides connections that have a place
LOG_SECONDS = 10  # between two lines that say the same
RETRY_AFTER = 1  # seconds, for clients that find the line full
PREPARED_AT_ONCE = 2  # the tokenizer takes a hundred times the memory of a text
CHOICES = 16  # texts of one request; each is a row of the batch
TOP_LOGPROBS = 20  # as many as OpenAI gives
STOP_STRINGS = 4  # as many as OpenAI takes; transformers compares each with every token of the vocabulary
STOP_CHARACTERS = 64  # the comparison takes time and memory for each character
BIASES = 300  # as many as OpenAI takes; each is compared with the text at each token
WINDOW_SIZE = 128  # sampling keeps two numbers for each slot and token of the vocabulary
LOOKED_UP = 127  # one less than the slots
MATCHED = 16  # the text is searched once for each length of a match
SENTENCE_CHARACTERS = 1000  # of an error, which may quote the request
