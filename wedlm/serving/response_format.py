"""`response_format`: answers in JSON, by a grammar."""

import re
from reprlib import repr as shown

from wedlm.serving.grammars import Grammar, Grammars
from wedlm.serving.json_schema import ANY_OBJECT, Schema

KINDS = {  # the fields of each
    "text": {"type"},
    "json_object": {"type"},
    "json_schema": {"type", "json_schema"},
}
ANY_TEXT = (None, {"type": "text"})  # no grammar is needed
SCHEMA_FIELDS = {"description", "name", "schema", "strict"}
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def grammar_of(response_format: object, grammars: Grammars) -> Grammar | None:
    """The grammar of an answer; None where any text will do.

    Args:
        response_format (`object`): The field of the request, in OpenAI's form.
        grammars (`Grammars`): The compiler.

    Raises:
        `ValueError`: what is wrong with it.
    """
    if response_format in ANY_TEXT:
        return None
    if not isinstance(response_format, dict) or response_format.get("type") not in tuple(KINDS):
        raise ValueError(
            f"response_format={shown(response_format)} is not an object of type 'text', 'json_object' or "
            "'json_schema'; correct it."
        )
    refuse_unknown("response_format", response_format, KINDS[response_format["type"]])
    if response_format["type"] == "json_object":
        return grammars.compiled("response_format", (ANY_OBJECT,))
    given = response_format.get("json_schema")
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or not NAME.fullmatch(given["name"]):
        raise ValueError(
            f"response_format.json_schema={shown(given)} is not an object with a name, up to 64 letters, digits, "
            "_ and -, and a schema; correct it."
        )
    refuse_unknown("response_format.json_schema", given, SCHEMA_FIELDS)
    name = "response_format.json_schema.schema"
    return grammars.compiled(name, (Schema.of(name, given.get("schema"), given.get("strict")),))


def refuse_unknown(name: str, value: dict, fields: set[str]) -> None:
    for field in sorted(value.keys() - fields):
        raise ValueError(f"{name} has a field {shown(field)}, which this server does not know; leave it out.")
