"""Lists of phrases, and questions as parts of sentences."""


def items(text: str) -> list[str]:
    """The items of a text, which stand between semicolons or line ends."""
    return [item.strip() for line in text.strip().splitlines() for item in line.split(";")]


def third_person(phrase: str) -> str:
    """A phrase that begins with a verb, in the third person: "carry data" -> "carries data"."""
    verb, space, rest = phrase.partition(" ")
    if verb == "have":
        verb = "has"
    elif verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        verb += "es"
    elif verb.endswith("y") and verb[-2] not in "aeiou":
        verb = verb[:-1] + "ies"
    else:
        verb += "s"
    return verb + space + rest


def clause(word: str, question: str) -> str:
    """A question as a part of a sentence: ("why", "is the sky | blue") -> "why the sky is blue"."""
    start, _, rest = question.partition(" | ")
    auxiliary, _, subject = start.partition(" ")
    if auxiliary == "does":
        return f"{word} {subject} {third_person(rest)}"
    return f"{word} {subject} {rest}" if auxiliary == "do" else f"{word} {subject} {auxiliary} {rest}"


def direct(word: str, question: str) -> str:
    return f"{word.capitalize()} {question.replace(' | ', ' ')}?"
