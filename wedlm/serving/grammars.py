"""Grammars that force an answer into shape, compiled by xgrammar in a process that can be ended."""

import json
import re
import threading
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from transformers import LogitsProcessor, PreTrainedTokenizerBase

from wedlm.checkpoints.limited_process import LimitedProcess, Refused
from wedlm.serving.json_schema import Schema

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, TokenizerInfo

COMPILE_SECONDS = 5  # a few hundred characters of schema can ask for minutes
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

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, end_tokens: int | list[int] | None = None):
        self.tokenizer, self.vocab_size, self.end_tokens = tokenizer, vocab_size, end_tokens
        self.cached = lru_cache(CACHED)(self.compile)
        self.lock = threading.Lock()
        self.process: LimitedProcess | None = None

    def compiled(self, name: str, *sequences: Sequence) -> "CompiledGrammar":
        """The grammar that allows any of some sequences; compiling it takes up to `COMPILE_SECONDS`, without the GIL.

        Raises:
            `ValueError`: what is wrong with it, as a sentence about `name`.
        """
        with self.lock:
            return self.cached(name, *sequences)

    def compile(self, name: str, *sequences: Sequence) -> "CompiledGrammar":
        try:
            from xgrammar import CompiledGrammar
        except ImportError as error:
            raise ValueError(f"{name} {NOT_INSTALLED}") from error
        if self.process is None:
            self.process = LimitedProcess(compiler_of, self.info.serialize_json())
        try:
            text = self.process.ask(sequences, COMPILE_SECONDS)
        except Refused as error:
            raise ValueError(f"{name} cannot be compiled ({error}); correct or simplify it.") from error
        return CompiledGrammar.deserialize_json(text, self.info)

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
            stop_token_ids=info.stop_token_ids,
            add_prefix_space=info.add_prefix_space,
        )

    def close(self) -> None:
        """Ends the process, if there is one; the next grammar starts another."""
        if self.process is not None:
            self.process.close()


# --- In the process ---


def compiler_of(info: str) -> Callable[[tuple[Sequence, ...]], str]:
    """Returns the function that compiles grammars for these tokens."""
    from xgrammar import Grammar, GrammarCompiler, GrammarMatcher, TokenizerInfo, allocate_token_bitmask

    compiler = GrammarCompiler(TokenizerInfo.deserialize_json(info), max_threads=1, cache_enabled=False)

    def grammar_of(part: str | Schema) -> Grammar:
        if isinstance(part, Schema):
            return Grammar.from_json_schema(part.text, any_whitespace=False, strict_mode=part.is_strict)
        return Grammar.from_ebnf(f"root ::= {json.dumps(part, ensure_ascii=False)}")

    def compiled(sequences: tuple[Sequence, ...]) -> str:
        try:
            grammar = Grammar.union(*(Grammar.concat(*map(grammar_of, each)) for each in sequences))
            result = compiler.compile_grammar(grammar)
            allowed = allocate_token_bitmask(1, result.tokenizer_info.vocab_size)
            GrammarMatcher(result).fill_next_token_bitmask(allowed)
            text = result.serialize_json()
        except Exception as error:  # xgrammar has no exception of its own
            if isinstance(error, MemoryError) or "bad_alloc" in str(error):
                raise MemoryError from error
            words = re.sub(r"\[[\d:]+\] \S+:\d+: ", "", str(error))  # without the time and the line of its code
            raise ValueError(" ".join(words.split())[:200].rstrip(".: ")) from error
        if not allowed.any():
            raise ValueError("it allows no text")
        if len(text) > COMPILED_CHARACTERS:
            raise ValueError("it becomes too large")
        return text

    return compiled
