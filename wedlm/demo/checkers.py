"""Judges an answer from the text of the question alone, by the checker of its kind."""

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
    """
    Whether the answer is right. The checkers share no code with the generators. A story is right if it is well-formed
    and agrees with the question.

        check("counting", "Count by 4 from 12 to 24.", "12, 16, 20, 24.") is True

    Args:
        kind (`str`): One of the demo's kinds.
        prompt (`str`): A question of that kind.
        answer (`str`): Any text.
    """
    return CHECK[kind](prompt, answer)
