"""How the tasks of an evaluation are asked, and the error of an evaluation that is impossible."""

from dataclasses import dataclass
from typing import Any


class EvaluationError(ValueError):
    """An evaluation that is impossible as asked; the message is one sentence with the remedy, shown as it is."""


@dataclass(frozen=True)
class Choices:
    """How tasks are asked. A value of None leaves the choice to the task.

    Args:
        num_fewshot (`int`, *optional*):
            Number of solved examples in front of each question.
        limit (`int`, *optional*):
            Ask only the first `limit` questions of each task.
        batch_size (`int`, defaults to 8):
            Number of questions that are answered at once.
        seed (`int`, defaults to 1234):
            Seed of the solved examples, of tasks that draw their questions, and of sampling.
        apply_chat_template (`bool`, defaults to `False`):
            Ask each question as a turn of a chat.
        system_instruction (`str`, *optional*):
            Text of the system in front of each question.
        max_new_tokens (`int`, *optional*):
            Largest number of tokens of an answer.
        temperature (`float`, *optional*):
            Temperature of sampling; 0 decodes greedily.
        run_code (`bool`, defaults to `False`):
            Allow tasks that run the code that the model writes, in a sandbox against accidents, not attackers.
    """

    num_fewshot: int | None = None
    limit: int | None = None
    batch_size: int = 8
    seed: int = 1234
    apply_chat_template: bool = False
    system_instruction: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    run_code: bool = False

    def generation_arguments(self) -> dict[str, Any]:
        """Returns the choices about generation under lm-eval's names."""
        arguments = {} if self.max_new_tokens is None else {"max_gen_toks": self.max_new_tokens}
        if self.temperature is not None:
            arguments |= {"do_sample": self.temperature > 0, "temperature": self.temperature}
        return arguments
