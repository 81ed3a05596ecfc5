"""A request on its way into the batch: its prompt, its generation config, and the callbacks of each of its texts."""

import inspect
from copy import deepcopy
from dataclasses import dataclass

from transformers import (
    GenerationConfig,
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
)
from transformers.cli.serving.utils import BaseHandler, Modality
from transformers.utils.chat_template_utils import render_jinja_template

from wedlm.checkpoints.errors import one_line
from wedlm.checkpoints.limited_process import Refused
from wedlm.checkpoints.prompt_ids import check_size
from wedlm.checkpoints.rendering import render
from wedlm.generation.call import check_length
from wedlm.generation.model_kind import max_positions_of, text_config_of
from wedlm.generation.parameters import check_parameters
from wedlm.serving.detokenizer import Detokenizer, StopStrings
from wedlm.serving.grammars import ANY_OBJECT, Grammars, Schema, grammar_processor
from wedlm.serving.http_errors import unknown_model
from wedlm.serving.logits_processors import NoRepeatNGrams, Penalties, TokenLogprobs
from wedlm.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    FunctionTools,
    JsonSchemaFormat,
    TextFormat,
    check_characters,
    shown,
    validated,
)
from wedlm.serving.tool_calls import OutputParser, forced_call, writes_calls

NEW_TOKENS = 1024  # of a text without a limit, as in transformers' own server


@dataclass
class ServedModel:
    """The model of the server."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    created: int

    def __post_init__(self):
        vocab_size, end_tokens = text_config_of(self.model).vocab_size, self.model.generation_config.eos_token_id
        self.grammars = Grammars(self.tokenizer, vocab_size, end_tokens)

    @property
    def card(self) -> dict:
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "wedlm"}


@dataclass
class Choice:
    """One of the texts of a request: what reads its tokens, and the callbacks that generate() takes for it."""

    detokenizer: Detokenizer
    logits_processor: list[LogitsProcessor]
    stopping_criteria: list[StoppingCriteria]


@dataclass
class PreparedRequest:
    """A request that was checked and tokenized; choice i has the seed plus i."""

    tokens: list[int]
    config: GenerationConfig
    seed: int | None
    stream: bool
    include_usage: bool
    choices: list[Choice]

    @property
    def usage(self) -> dict[str, int]:
        prompt, completion = len(self.tokens), sum(len(choice.detokenizer.tokens) for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def read_request(served: ServedModel, kind: type[ChatRequest | CompletionRequest], body: dict):
    """Checks the fields of a request; raises a ValueError with one sentence, or HTTPException for another model."""
    check_characters(body)
    request = validated(kind, body, vocab_size=text_config_of(served.model).vocab_size)
    if request.model not in (None, served.name):
        raise unknown_model(shown(request.model), served.name)
    return request


def prepare(served: ServedModel, request: ChatRequest | CompletionRequest) -> PreparedRequest:
    """Tokenizes a request and makes its callbacks, or raises a ValueError; compiling a grammar takes seconds."""
    model, tokenizer = served.model, served.tokenizer
    is_chat = isinstance(request, ChatRequest)
    text = chat_prompt(request, tokenizer) if is_chat else request.prompt
    check_characters(text)  # the arguments of a call are JSON once more
    check_size(text, model, tokenizer)
    tokens = tokenizer(text, add_special_tokens=not is_chat)["input_ids"]  # a chat template writes them
    if not tokens:
        raise ValueError("The request holds an empty prompt; send at least one character.")
    check_length(len(tokens), 0, max_positions_of(model))
    config = generation_config_of(request, model, len(tokens))
    # In place of transformers' own processors and criterion, which take time without bound.
    ngram_sizes = [(config.no_repeat_ngram_size, None), (config.encoder_no_repeat_ngram_size, len(tokens))]
    config.no_repeat_ngram_size = config.encoder_no_repeat_ngram_size = 0
    stop_strings, config.stop_strings = config.stop_strings or [], None
    stop_strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings  # of the checkpoint
    grammar = compiled_grammar(request, tokenizer, served.grammars) if request.needs_grammar else None
    choices = []
    for _ in range(request.n or 1):
        processors = [NoRepeatNGrams(size, length) for size, length in ngram_sizes if size]
        if grammar is not None:
            processors.append(grammar_processor(grammar))
        if request.presence_penalty or request.frequency_penalty:
            penalties = request.presence_penalty or 0.0, request.frequency_penalty or 0.0
            processors.append(Penalties(*penalties, len(tokens)))
        logprobs = None
        if request.num_logprobs is not None:
            logprobs = TokenLogprobs(tokenizer, len(tokens), request.num_logprobs)
            processors.append(logprobs)
        parser = OutputParser.from_prompt(tokenizer, model, tokens) if is_chat else None
        criterion = StopStrings(tokenizer, stop_strings, tokens) if stop_strings else None
        detokenizer = Detokenizer(tokenizer, config.eos_token_id, criterion, parser, logprobs)
        choices.append(Choice(detokenizer, processors, [criterion] if criterion else []))
    return PreparedRequest(tokens, config, request.seed, bool(request.stream), request.include_usage, choices)


def chat_prompt(request: ChatRequest, tokenizer: PreTrainedTokenizerBase) -> str:
    tools, variables = request.offered_tools, request.chat_template_kwargs or {}
    if tools and "tools" not in tokenizer.get_chat_template(tools=tools):
        raise ValueError("tools are not read by the chat template of this model; leave them out.")
    # Arguments of transformers' functions, and variables that they set themselves.
    reserved = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages", "self"}
    reserved |= {*inspect.signature(render_jinja_template).parameters, *tokenizer.special_tokens_map}
    if names := sorted(variables.keys() & reserved):
        raise ValueError(
            f"chat_template_kwargs sets {', '.join(names)}, and a request may set only variables of the chat "
            "template's own, such as enable_thinking; leave it out."
        )
    try:
        messages = template_messages(request.messages)
        return render(tokenizer, messages, tools, add_generation_prompt=True, **variables)
    except Exception as error:  # messages may have any form
        reason = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"The chat template cannot write these messages ({reason}); correct them.") from error


def template_messages(messages: list[dict]) -> list[dict]:
    """The messages as templates read them; transformers leaves out names and thoughts, and text beside calls."""
    processed = BaseHandler.get_processor_inputs_from_messages(messages, Modality.LLM)
    texts = [" ".join(part["text"] for part in message.get("content", [])) for message in messages]
    return [
        {**message, **inputs, "content": text}
        for message, inputs, text in zip(messages, processed, texts, strict=True)
    ]


def compiled_grammar(request: ChatRequest, tokenizer: PreTrainedTokenizerBase, grammars: Grammars):
    """Compiles the grammar of a forced call or of a response format."""
    if not request.forces_call:
        if not isinstance(request.response_format, JsonSchemaFormat):
            return grammars.compiled("response_format", (ANY_OBJECT,))
        given, name = request.response_format.json_schema, "response_format.json_schema.schema"
        return grammars.compiled(name, (Schema.from_request(name, given.schema_, given.strict),))
    choice = request.tool_choice
    functions = [tool.function for tool in validated(FunctionTools, {"tools": request.tools or []}).tools]
    if choice != "required":
        choice = choice.function.name
    chosen = [function for function in functions if choice in ("required", function.name)]
    if not chosen:
        names = [function.name for function in functions]
        raise ValueError(f"tool_choice={shown(choice)} names no tool of tools={shown(names)}; correct it.")
    if not writes_calls(tokenizer):
        raise ValueError(
            f"tool_choice={shown(choice)} is not offered for this model, whose form of calls is unknown; leave it out."
        )
    if not isinstance(request.response_format, TextFormat | None):
        raise ValueError(f"tool_choice={shown(choice)} excludes response_format; leave one of them out.")
    return grammars.compiled("tools", *map(forced_call, chosen))


def generation_config_of(
    request: ChatRequest | CompletionRequest, model: PreTrainedModel, prompt_length: int
) -> GenerationConfig:
    """The model's own settings, then those of the request, then those of its generation_config."""
    config, max_positions = deepcopy(model.generation_config), max_positions_of(model)
    config.max_new_tokens = request.max_completion_tokens or request.max_tokens
    if config.max_new_tokens is None:
        config.max_new_tokens = min(max(model.generation_config.max_new_tokens or 0, NEW_TOKENS), max_positions)
    if request.temperature is not None or request.top_p is not None:
        config.do_sample = request.temperature != 0
    if request.temperature is not None:
        # generation_config may ask for sampling, and transformers refuses to sample at temperature 0.
        config.temperature = request.temperature or None
    if request.top_p is not None:
        config.top_p = request.top_p
    if request.stop:
        config.stop_strings = request.stop
    if request.logit_bias:
        config.sequence_bias = {(token,): bias for token, bias in request.logit_bias.items()}
    if request.generation_config is not None:
        settings = request.generation_config.model_dump(exclude_unset=True)
        if settings.get("sequence_bias"):
            settings["sequence_bias"] = {tuple(tokens): bias for tokens, bias in settings["sequence_bias"]}
        config.update(**settings)
    if config.eos_token_id is None:
        config.eos_token_id = model.generation_config.eos_token_id  # as generate() does
    check_parameters(config)
    for number in (config.max_new_tokens, config.max_length):
        if number is not None and number > max_positions:  # the cache takes memory for all of them
            raise ValueError(
                f"{number} tokens are more than max_position_embeddings={max_positions} of this model; ask for fewer."
            )
    # No text is longer, and transformers would log a warning for each request.
    longest = config.max_new_tokens or max_positions
    if config.min_new_tokens is not None:
        config.min_new_tokens = min(config.min_new_tokens, longest)
    if config.min_length is not None:
        config.min_length = min(config.min_length, prompt_length + longest)
    config.return_dict_in_generate = False  # the batch returns tokens
    return config
