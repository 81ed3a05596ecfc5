"""Grammars of JSON schemas and of calls, which xgrammar compiles in a process that can be ended."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import LogitsProcessor, PreTrainedTokenizerBase

from wedlm.checkpoints.limited_process import LimitedProcess, Refused

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, TokenizerInfo

COMPILE_SECONDS = 5  # a few hundred characters of schema can ask for minutes
COMPILED_CHARACTERS = 2**22  # of a compiled grammar as text
CACHED = 16  # compiled grammars
NOT_INSTALLED = 'needs xgrammar, which is not installed here; run: pip install -e ".[grammar]".'
SCHEMA_CHARACTERS = 2**15
SCHEMA_DEPTH = 32  # the compiler takes minutes for hundreds of levels
# Keywords that the compiler would leave out in silence.
NOT_ENFORCED = {
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if",
    "maxContains", "minContains", "not", "then", "unevaluatedProperties", "uniqueItems",
}  # fmt: skip
# Keywords that it leaves out where there is no type, except for those from which it tells one.
TYPE_TELLING = {"additionalProperties", "items", "prefixItems", "properties", "unevaluatedItems"}
TYPED = TYPE_TELLING | {
    "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength", "maxProperties", "maximum", "minItems",
    "minLength", "minProperties", "minimum", "multipleOf", "pattern", "patternProperties", "propertyNames", "required",
}  # fmt: skip
# Keywords beside each of which it leaves out some others.
COMBINATORS = ("$ref", "allOf", "anyOf", "oneOf")
VALUES = ("const", "enum")
EXCLUDED = {
    **{keyword: {*TYPED, *COMBINATORS, *VALUES, "type"} - {keyword} for keyword in COMBINATORS},
    **{keyword: {*TYPED, *VALUES} - {keyword} for keyword in VALUES},
    "format": {"maxLength", "minLength", "pattern"},
    "pattern": {"maxLength", "minLength"},
    "properties": {"patternProperties", "propertyNames"},
}
LOOKAROUNDS = ("(?=", "(?!", "(?<")  # of a pattern, likewise
# Keywords with schemas in them: under names, or as one or several.
NAMED = ("$defs", "definitions", "patternProperties", "properties")
NESTED = (
    "additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf", "prefixItems", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


class Schema(NamedTuple):
    """A schema that xgrammar can enforce: its JSON text, and whether objects hold only what it names."""

    text: str
    is_strict: bool

    @classmethod
    def from_request(cls, name: str, schema: dict, is_strict: bool | None) -> "Schema":
        """Checks a schema; `name` is what errors call it."""
        text = json.dumps(schema, ensure_ascii=False)
        if len(text) > SCHEMA_CHARACTERS:
            raise ValueError(f"{name} has {len(text)} characters, more than {SCHEMA_CHARACTERS}; shorten it.")
        level, depth = [schema], 0
        while level := [each for value in level for each in inside(value)]:
            depth += 1
            if depth > SCHEMA_DEPTH:
                raise ValueError(f"{name} is nested deeper than {SCHEMA_DEPTH} levels; flatten it.")
        for part in subschemas(schema):
            for fault in faults(part):
                raise ValueError(f"{name} {fault}")
        return cls(text, bool(is_strict))


ANY_OBJECT = Schema('{"type": "object"}', is_strict=False)


def inside(value: Any) -> list:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def subschemas(schema: Any) -> Iterator[dict]:
    """The schema and all schemas in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    children = [child for keyword in NAMED for child in inside(schema.get(keyword))]
    for keyword in NESTED:
        value = schema.get(keyword)
        children += value if isinstance(value, list) else [value]
    for child in children:
        yield from subschemas(child)


def faults(part: dict) -> Iterator[str]:
    """What of a schema cannot be enforced, and the remedy, behind the name of the whole."""
    for keyword in sorted(part.keys() & NOT_ENFORCED):
        yield f"has the keyword {keyword!r}, which this server cannot enforce; leave it out."
    for keyword in sorted(EXCLUDED.keys() & part.keys()):
        for other in sorted(EXCLUDED[keyword] & part.keys()):
            yield f"has {other!r} beside {keyword!r}, where this server cannot enforce it; leave one of them out."
    if not part.keys() & {"type", *COMBINATORS, *VALUES, *TYPE_TELLING}:
        for keyword in sorted(part.keys() & TYPED):
            yield f"has {keyword!r} without 'type', where this server cannot enforce it; add that."
    properties, required = part.get("properties", {}), part.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        for each in required:
            if isinstance(each, str) and each not in properties:
                yield f"requires {shown(each)}, which is not under 'properties'; add it there."
    if isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1:
        yield "has an 'allOf' of several schemas, which this server cannot enforce; join them."
    if isinstance(reference := part.get("$ref"), str) and not reference.startswith("#"):
        yield f"has $ref={shown(reference)}, which leads out of the schema; put it under $defs."
    if isinstance(pattern := part.get("pattern"), str) and any(mark in pattern for mark in LOOKAROUNDS):
        yield f"has pattern={shown(pattern)}, which looks ahead or behind, as this server cannot; write it without."


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
