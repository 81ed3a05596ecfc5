"""JSON schemas of requests, and what of them xgrammar cannot enforce."""

import json
from collections.abc import Iterator
from reprlib import repr as shown
from typing import Any, NamedTuple

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
