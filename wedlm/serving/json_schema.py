"""JSON schemas of requests: what is checked of them before anybody compiles them."""

import json
from collections.abc import Iterator
from reprlib import repr as shown
from typing import NamedTuple

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
CHOICES = ("$ref", "allOf", "anyOf", "oneOf")
VALUES = ("const", "enum")
EXCLUDED = {
    **{keyword: {*TYPED, *CHOICES, *VALUES, "type"} - {keyword} for keyword in CHOICES},
    **{keyword: {*TYPED, *VALUES} - {keyword} for keyword in VALUES},
    "format": {"maxLength", "minLength", "pattern"},
    "pattern": {"maxLength", "minLength"},
    "properties": {"patternProperties", "propertyNames"},
}
LOOKS = ("(?=", "(?!", "(?<")  # of a pattern, likewise
MANY_BY_NAME = ("$defs", "definitions", "patternProperties", "properties")
MANY = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
ONE = (
    "additionalItems",
    "additionalProperties",
    "items",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)


class Schema(NamedTuple):
    """A schema that has been checked.

    Args:
        text (`str`): Its JSON text.
        is_strict (`bool`): Whether objects and arrays hold what the schema names and nothing else.
    """

    text: str
    is_strict: bool

    @classmethod
    def of(cls, name: str, schema: object, is_strict: bool | None) -> "Schema":
        """Checks a schema; `name` is what errors call it."""
        if not isinstance(schema, dict):
            raise ValueError(f"{name}={shown(schema)} is not a JSON schema, an object; correct it.")
        if not isinstance(is_strict, bool | None):
            raise ValueError(f"strict={shown(is_strict)} beside {name} is neither true nor false; correct it.")
        text = json.dumps(schema, ensure_ascii=False)
        if len(text) > SCHEMA_CHARACTERS:
            raise ValueError(f"{name} has {len(text)} characters, more than {SCHEMA_CHARACTERS}; shorten it.")
        check_depth(name, schema)
        for part in parts_of(schema):
            check_part(name, part)
        return cls(text, bool(is_strict))


ANY_OBJECT = Schema('{"type": "object"}', is_strict=False)


def check_depth(name: str, schema: dict) -> None:
    level, depth = [schema], 0
    while level := [each for value in level for each in inside(value)]:
        depth += 1
        if depth > SCHEMA_DEPTH:
            raise ValueError(f"{name} is nested deeper than {SCHEMA_DEPTH} levels; flatten it.")


def inside(value: object) -> list:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def parts_of(schema: object) -> Iterator[dict]:
    """The schema and all schemas in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    children = [schema[name] for name in ONE if name in schema]
    for name in MANY:
        children += schema[name] if isinstance(schema.get(name), list) else []
    for name in MANY_BY_NAME:
        children += schema[name].values() if isinstance(schema.get(name), dict) else []
    for child in children:
        yield from parts_of(child)


def check_part(name: str, part: dict) -> None:
    for keyword in sorted(part.keys() & NOT_ENFORCED):
        raise ValueError(f"{name} has the keyword {keyword!r}, which this server cannot enforce; leave it out.")
    for keyword in sorted(EXCLUDED.keys() & part.keys()):
        for other in sorted(EXCLUDED[keyword] & part.keys()):
            raise ValueError(
                f"{name} has {other!r} beside {keyword!r}, where this server cannot enforce it; leave one of them out."
            )
    if not part.keys() & {"type", *CHOICES, *VALUES, *TYPE_TELLING}:
        for keyword in sorted(part.keys() & TYPED):
            raise ValueError(f"{name} has {keyword!r} without 'type', where this server cannot enforce it; add that.")
    properties, required = part.get("properties", {}), part.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        for each in required:
            if isinstance(each, str) and each not in properties:
                raise ValueError(f"{name} requires {shown(each)}, which is not under 'properties'; add it there.")
    if isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1:
        raise ValueError(f"{name} has an 'allOf' of several schemas, which this server cannot enforce; join them.")
    if isinstance(reference := part.get("$ref"), str) and not reference.startswith("#"):
        raise ValueError(f"{name} has $ref={shown(reference)}, which leads out of the schema; put it under $defs.")
    if isinstance(pattern := part.get("pattern"), str) and any(look in pattern for look in LOOKS):
        raise ValueError(
            f"{name} has pattern={shown(pattern)}, which looks ahead or behind, and this server cannot enforce it; "
            "write it without."
        )
