"""Renders chat templates, which are programs that come with a checkpoint, within limits of time and memory."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from wedlm.checkpoints.errors import one_line
from wedlm.checkpoints.limited_process import LimitedProcess, Refused

if TYPE_CHECKING:  # it takes seconds, and the process needs only a part of transformers
    from transformers import PreTrainedTokenizerBase

RENDER_SECONDS = 5
RENDERED_CHARACTERS = 2**26


def render(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[dict], tools: list | None = None, **arguments: Any
) -> str:
    """The text of `tokenizer.apply_chat_template()`; `Refused` says why there is none."""
    return ask(tokenizer, "apply_chat_template", messages, tools, arguments)


def render_with_spans(
    tokenizer: "PreTrainedTokenizerBase", messages: Sequence[dict], tools: list | None = None
) -> tuple[str, list[tuple[int, int]]]:
    """The text, and the spans of its characters that lie inside {% generation %} marks."""
    return ask(tokenizer, "render_jinja_template", messages, tools, {})


def ask(
    tokenizer: "PreTrainedTokenizerBase", function: str, messages: Sequence[dict], tools: list | None, arguments: dict
) -> Any:
    try:
        template = tokenizer.get_chat_template(tools=tools)
        variables = dict(tokenizer.special_tokens_map)
        return PROCESS.ask((function, template, variables, list(messages), tools, arguments), RENDER_SECONDS)
    except (ValueError, RecursionError) as error:  # no template, or messages too deep to be sent
        raise error if isinstance(error, Refused) else Refused(described(error)) from error


def described(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


# --- In the process ---


def renderer(_: None) -> Callable[[tuple], Any]:
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase, render_jinja_template

    def text_of(
        function: str, template: str, variables: dict, messages: list[dict], tools: list | None, arguments: dict
    ):
        if function == "apply_chat_template":
            tokenizer = SimpleNamespace(get_chat_template=lambda *_: template, special_tokens_map=variables)
            text = PreTrainedTokenizerBase.apply_chat_template(
                tokenizer, messages, tools=tools, tokenize=False, **arguments
            )
            return text, text
        texts, spans = render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **variables,
        )
        return texts[0], (texts[0], spans[0])

    def render(question: tuple) -> Any:
        try:
            text, answer = text_of(*question)
        except MemoryError:
            raise
        except Exception as error:  # a template may raise anything
            raise ValueError(described(error)) from error
        if len(text) > RENDERED_CHARACTERS:
            raise ValueError(f"its text has {len(text)} characters")
        return answer

    return render


PROCESS = LimitedProcess(renderer)
