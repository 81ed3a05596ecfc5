"""Grammars that force an answer into shape, compiled by xgrammar in a process that can be ended."""

import json
import multiprocessing
import re
import signal
import threading
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import LogitsProcessor, PreTrainedTokenizerBase

from wedlm.serving.json_schema import Schema

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarCompiler, TokenizerInfo

START_SECONDS = 120  # the process imports torch
COMPILE_SECONDS = 5  # a few hundred characters of schema can ask for minutes
COMPILE_BYTES = 2**30  # or for more memory than there is
COMPILED_CHARACTERS = 2**22  # of a compiled grammar as text
CACHED = 16  # compiled grammars
NOT_INSTALLED = 'needs xgrammar, which is not installed here; run: pip install -e ".[grammar]".'

# A grammar is any of some sequences of texts and schemas.
Sequence = tuple[str | Schema, ...]


def grammar_processor(grammar: "CompiledGrammar") -> LogitsProcessor:
    """A new logits processor; each text needs one of its own."""
    from xgrammar.contrib.hf import LogitsProcessor as GrammarProcessor

    return GrammarProcessor(grammar)


class Grammars:
    """Compiles grammars for one tokenizer, and keeps those used last.

    JSON is written on one line, with a space behind each comma and colon, as `json.dumps` writes it and as chat
    templates show it. A model that may choose its whitespace can write whitespace without end.

    No special token is part of a grammar, however its name is spelled, and no token with a control character: JSON
    must not hold one in a string, and xgrammar allows some there. `vocab_size` is the model's number of scores.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, end_tokens: list[int] | None = None):
        self.tokenizer, self.vocab_size = tokenizer, vocab_size
        self.end_tokens = [tokenizer.eos_token_id] if end_tokens is None else end_tokens
        self.cache: OrderedDict[tuple[Sequence, ...], CompiledGrammar] = OrderedDict()  # the one used last is the last
        self.lock = threading.Lock()
        self.process: multiprocessing.Process | None = None
        self.connection: Connection | None = None

    def compiled(self, name: str, *sequences: Sequence) -> "CompiledGrammar":
        """The grammar that allows any of some sequences; it takes up to `COMPILE_SECONDS`, without the GIL.

        Raises:
            `ValueError`: what is wrong with it, as a sentence about `name`.
        """
        with self.lock:
            if sequences not in self.cache:
                try:
                    info = self.info
                except ImportError as error:
                    raise ValueError(f"{name} {NOT_INSTALLED}") from error
                from xgrammar import CompiledGrammar

                text = self.compiled_text(name, sequences)
                self.cache[sequences] = CompiledGrammar.deserialize_json(text, info)
            self.cache.move_to_end(sequences)
            while len(self.cache) > CACHED:
                self.cache.popitem(last=False)
            return self.cache[sequences]

    @cached_property
    def info(self) -> "TokenizerInfo":
        """The tokens that a grammar may have, as xgrammar describes them."""
        from xgrammar import TokenizerInfo

        info = TokenizerInfo.from_huggingface(
            self.tokenizer, vocab_size=self.vocab_size, stop_token_ids=self.end_tokens
        )
        added = self.tokenizer.added_tokens_decoder.items()
        special = {*self.tokenizer.all_special_ids, *(token for token, each in added if each.special)}
        return TokenizerInfo(
            [
                b"" if token in special or min(piece, default=0) < 0x20 else piece
                for token, piece in enumerate(info.decoded_vocab)
            ],
            vocab_size=self.vocab_size,
            stop_token_ids=self.end_tokens,
            add_prefix_space=info.add_prefix_space,
        )

    def compiled_text(self, name: str, sequences: tuple[Sequence, ...]) -> str:
        if self.process is None or not self.process.is_alive():
            self.close()
            self.start()
        connection = self.connection
        try:
            connection.send(sequences)
            if not connection.poll(COMPILE_SECONDS):
                self.close()
                raise ValueError(f"{name} takes longer than {COMPILE_SECONDS} seconds to compile; simplify it.")
            text, reason = connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise ValueError(f"{name} takes more memory to compile than there is; simplify it.") from error
        if reason is not None:
            raise ValueError(f"{name} cannot be compiled ({reason}); correct or simplify it.")
        return text

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
        self.connection, other = context.Pipe()
        self.process = context.Process(target=compile_on_demand, args=(other, self.info.serialize_json()), daemon=True)
        self.process.start()
        other.close()  # so that the process's end is seen here
        if not self.connection.poll(START_SECONDS):
            self.close()
            raise RuntimeError(f"The process that compiles grammars has not started in {START_SECONDS} seconds.")
        self.connection.recv()

    def close(self) -> None:
        """Ends the process, if there is one; the next grammar starts another."""
        process, connection = self.process, self.connection
        self.process = self.connection = None  # first, since a thread that compiles sees the end and closes, too
        if process is not None:
            process.kill()
            process.join()
            connection.close()


# --- In the process ---


def compile_on_demand(connection: Connection, info: str) -> None:
    """Answers each grammar with its compiled text, or with the reason why there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which ends this process
    from xgrammar import GrammarCompiler, TokenizerInfo

    compiler = GrammarCompiler(TokenizerInfo.deserialize_json(info), max_threads=1, cache_enabled=False)
    limit_memory()
    connection.send(None)
    with suppress(EOFError):  # the server has ended
        while True:
            sequences = connection.recv()
            try:
                answer = compiled_by(compiler, sequences), None
            except Exception as error:  # xgrammar has no exception of its own
                answer = None, reason_of(error)
            connection.send(answer)


def limit_memory() -> None:
    with suppress(ImportError, OSError):  # only Linux has both
        import resource

        num_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = num_pages * resource.getpagesize() + COMPILE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def compiled_by(compiler: "GrammarCompiler", sequences: tuple[Sequence, ...]) -> str:
    from xgrammar import Grammar, GrammarMatcher, allocate_token_bitmask

    def grammar_of(part: str | Schema) -> Grammar:
        if isinstance(part, Schema):
            return Grammar.from_json_schema(part.text, any_whitespace=False, strict_mode=part.is_strict)
        return Grammar.from_ebnf(f"root ::= {json.dumps(part, ensure_ascii=False)}")

    compiled = compiler.compile_grammar(Grammar.union(*(Grammar.concat(*map(grammar_of, each)) for each in sequences)))
    allowed = allocate_token_bitmask(1, compiled.tokenizer_info.vocab_size)
    GrammarMatcher(compiled).fill_next_token_bitmask(allowed)
    if not allowed.any():
        raise ValueError("it allows no text")
    text = compiled.serialize_json()
    if len(text) > COMPILED_CHARACTERS:
        raise ValueError("it becomes too large")
    return text


def reason_of(error: Exception) -> str:
    """xgrammar's words, without the time and the line of its code."""
    words = " ".join(re.sub(r"\[[\d:]+\] \S+:\d+: ", "", str(error)).split())
    if isinstance(error, MemoryError) or "bad_alloc" in words:
        return "it takes too much memory"
    return words[:200].rstrip(".: ")
