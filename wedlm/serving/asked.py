"""A request as its text and its fields ask for it: tokens, settings, and what reads each of its texts."""

from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, LogitsProcessor, PreTrainedTokenizerBase
from transformers.cli.serving.utils import BaseHandler, Modality

from wedlm.checkpoints.errors import one_line
from wedlm.generation.call import check_length
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.serving.answer import Answer
from wedlm.serving.errors import unknown_model
from wedlm.serving.grammars import Grammars
from wedlm.serving.no_repeats import NoRepeats
from wedlm.serving.openai_form import ChatForm, CompletionForm
from wedlm.serving.penalties import Penalties
from wedlm.serving.request_settings import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    check_characters,
    check_fields,
    given_messages,
    num_logprobs,
    sends_usage,
    settings_of,
    shown,
    template_variables,
    tools_of,
)
from wedlm.serving.response_format import ANY_TEXT, grammar_of
from wedlm.serving.stop_strings import StopStrings, as_list
from wedlm.serving.token_scores import TokenScores
from wedlm.serving.tool_calls import UNFORCED, AnswerParser, grammar_of_choice


@dataclass
class Served:
    """The model of the server.

    Args:
        name (`str`): The name that requests call it by.
        model (`WeDLMForCausalLM`): The model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        created (`int`): When it was loaded, in seconds.
    """

    name: str
    model: WeDLMForCausalLM
    tokenizer: PreTrainedTokenizerBase
    created: int

    def __post_init__(self):
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list | None) else [ends]
        self.grammars = Grammars(self.tokenizer, self.model.config.vocab_size, ends)

    @property
    def record(self) -> dict:
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "wedlm"}


@dataclass
class Asked:
    """A request that was read and checked.

    Args:
        tokens (`list[int]`): The prompt.
        config (`GenerationConfig`): The settings of each text.
        seed (`int`, *optional*): The seed of the first text; each further text has the next one.
        streams (`bool`): Whether the answer comes in events.
        sends_usage (`bool`): Whether an event tells the number of tokens.
        answers (`list[Answer]`): The texts.
        processors (`list[list[LogitsProcessor]]`): The logits processors of each text, besides those of `config`.
        stop_strings (`list[str]`): The texts that end each text.
    """

    tokens: list[int]
    config: GenerationConfig
    seed: int | None
    streams: bool
    sends_usage: bool
    answers: list[Answer]
    processors: list[list[LogitsProcessor]]
    stop_strings: list[str]

    @property
    def number(self) -> int:
        return len(self.answers)

    def readers(self, index: int, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """The arguments of generate() for those who read a text while it is written."""
        arguments = {"logits_processor": self.processors[index]} if self.processors[index] else {}
        if self.stop_strings:
            self.answers[index].stop = StopStrings(tokenizer, self.stop_strings, self.tokens)
            arguments["stopping_criteria"] = [self.answers[index].stop]
            arguments["stop_strings"] = None  # in place of the config's, for which transformers has a criterion
        return arguments


class ChatRoute:
    """/v1/chat/completions."""

    fields, form = CHAT_FIELDS, ChatForm
    adds_special_tokens = False  # the template writes them

    @staticmethod
    def text_of(body: dict, tokenizer: PreTrainedTokenizerBase) -> str:
        messages, tools = given_messages(body), tools_of(body, tokenizer)
        variables = template_variables(body, tokenizer)
        try:
            return tokenizer.apply_chat_template(
                read_messages(messages), tools=tools, add_generation_prompt=True, tokenize=False, **variables
            )
        except RecursionError:
            raise
        except Exception as error:  # a template may fail in any way
            raise ValueError(
                f"The chat template cannot write these messages ({type(error).__name__}: {one_line(error)}); "
                "correct them."
            ) from error


def read_messages(messages: list[dict]) -> list[dict]:
    """The messages as templates read them; transformers leaves out names and thoughts, and text beside calls."""
    uncalled = [{name: value for name, value in each.items() if name != "tool_calls"} for each in messages]
    calls, texts = (
        BaseHandler.get_processor_inputs_from_messages(each, Modality.LLM) for each in (messages, uncalled)
    )
    return [
        {**message, **call, "content": text["content"]}
        for message, call, text in zip(messages, calls, texts, strict=True)
    ]


class CompletionRoute:
    """/v1/completions."""

    fields, form = COMPLETION_FIELDS, CompletionForm
    adds_special_tokens = True

    @staticmethod
    def text_of(body: dict, tokenizer: PreTrainedTokenizerBase) -> str:
        if not isinstance(prompt := body.get("prompt"), str):
            raise ValueError(f"prompt={shown(prompt)} is not a text; send one text.")
        return prompt


def read_request(served: Served, route: type[ChatRoute] | type[CompletionRoute], body: dict) -> Asked:
    """Checks a request and reads its text.

    Raises:
        `ValueError`: what is wrong with it.
        `HTTPException`: what is wrong with it, where that is not status 400.
    """
    try:
        return asked_by(served, route, body)
    except RecursionError as error:
        raise ValueError("The request is nested too deeply; flatten it.") from error


def asked_by(served: Served, route: type[ChatRoute] | type[CompletionRoute], body: dict) -> Asked:
    model, tokenizer = served.model, served.tokenizer
    check_fields(body, route.fields)
    if body.get("model") not in (None, served.name):
        raise unknown_model(shown(body["model"]), served.name)
    text = route.text_of(body, tokenizer)
    check_characters(text)
    tokens = tokenizer(text, add_special_tokens=route.adds_special_tokens)["input_ids"]
    if not tokens:
        raise ValueError("The request holds an empty prompt; send at least one character.")
    check_length(len(tokens), 0, model.config.max_position_embeddings)
    config = settings_of(body, model, len(tokens))
    sizes = [(config.no_repeat_ngram_size, None), (config.encoder_no_repeat_ngram_size, len(tokens))]
    config.no_repeat_ngram_size = config.encoder_no_repeat_ngram_size = 0  # instead of transformers' own processors
    tools = tools_of(body, tokenizer) if route is ChatRoute else None
    grammar = grammar_of_choice(body, tools, tokenizer, served.grammars)
    grammar = grammar or grammar_of(body.get("response_format"), served.grammars)
    penalties = [float(body.get(name) or 0) for name in ("presence_penalty", "frequency_penalty")]
    answers, processors = [], []
    for _ in range(body.get("n") or 1):
        of_text = [NoRepeats(size, length) for size, length in sizes if size]
        if grammar is not None:
            of_text.append(grammar.processor())
        if any(penalties):
            of_text.append(Penalties(*penalties, len(tokens)))
        scores = None
        if (number := num_logprobs(body)) is not None:
            scores = TokenScores(tokenizer, len(tokens), number)
            of_text.append(scores)
        parser = AnswerParser.of(tokenizer, model, tokens) if route is ChatRoute else None
        answers.append(Answer(tokenizer, config, parser, scores))
        processors.append(of_text)
    streams = bool(body.get("stream"))
    stop_strings = as_list(config.stop_strings)
    return Asked(tokens, config, body.get("seed"), streams, sends_usage(body), answers, processors, stop_strings)


def asks_for_grammar(body: dict) -> bool:
    """Whether a request may need a grammar, which takes seconds to compile."""
    return body.get("response_format") not in ANY_TEXT or body.get("tool_choice") not in UNFORCED
