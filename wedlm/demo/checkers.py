"""Whether an answer is right, found out from the text of the question alone."""

from wedlm.demo import (
    counting_checker,
    equations_checker,
    functions_checker,
    records_checker,
    stories_checker,
    word_problems_checker,
)

CHECK = {
    "counting": counting_checker.check,
    "word_problems": word_problems_checker.check,
    "equations": equations_checker.check,
    "records": records_checker.check,
    "functions": functions_checker.check,
    "stories": stories_checker.check,
}


def check(kind: str, prompt: str, answer: str) -> bool:
    """The checkers share no code with the generators.

    check("counting", "Count by 4 from 12 to 24.", "12, 16, 20, 24.") is True

    Any text may be given as the answer. Of a story, only form and agreement are checked: any well-formed one is right.
    """
    return CHECK[kind](prompt, answer)
