"""Requests in OpenAI's protocol, as pydantic models, and the sentence for a request that does not fit them."""

import json
from collections.abc import Iterable
from itertools import islice
from reprlib import repr as shown  # of a value that may be megabytes
from typing import Annotated, Any, ClassVar, Literal, Required

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import from_json
from transformers import GenerationConfig
from typing_extensions import TypedDict

CHOICES = 16  # texts of one request; each is a row of the batch
TOP_LOGPROBS = 20  # as many as OpenAI gives
STOP_STRINGS = 4  # as many as OpenAI takes
STOP_CHARACTERS = 64
BIASES = 300  # as many as OpenAI takes; each is compared with the text at each token
WINDOW_SIZE = 128  # sampling keeps two numbers for each slot and token of the vocabulary
LOOKUP_TOKENS = 127  # one less than the slots
MATCHING_NGRAM = 16  # the text is searched once for each length of a match


def as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def parse_json_text(value: Any) -> Any:
    return from_json(value) if isinstance(value, str) else value


def as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def in_vocabulary(token: int, info: ValidationInfo) -> int:
    if token >= (vocab_size := info.context["vocab_size"]):
        raise ValueError(f"the tokens of this model are 0 to {vocab_size - 1}")
    return token


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**63)]
Length = Annotated[int, Field(ge=1, le=2**63)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Token = Annotated[int, Field(ge=0), AfterValidator(in_vocabulary)]
TokenList = Annotated[list[Token], Field(fail_fast=True, min_length=1)]
Tokens = Annotated[TokenList, BeforeValidator(as_list)]
TokenText = Annotated[Token, BeforeValidator(int)]  # a key of a JSON object
Bias = Annotated[float, Field(ge=-100, le=100)]
SequenceBias = Annotated[tuple[TokenList, float], Strict(False)]  # JSON has no tuples
StopString = Annotated[str, Field(min_length=1, max_length=STOP_CHARACTERS)]
StopStrings = Annotated[list[StopString], Field(fail_fast=True, max_length=STOP_STRINGS), BeforeValidator(as_list)]


class StrictModel(BaseModel):
    """A model that converts no types, and refuses unknown fields unless they have no effect."""

    model_config = ConfigDict(strict=True, extra="forbid")
    ignored: ClassVar[Iterable[str]] = ()
    no_effect: ClassVar[dict[str, Any]] = {}  # fields that are not offered, and the value besides null that is allowed

    @model_validator(mode="before")
    @classmethod
    def leave_out_without_effect(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        refused = (
            name
            for name, value in given.items()
            if name not in fields
            and name not in cls.ignored
            and (name not in cls.no_effect or value not in (None, cls.no_effect[name]))
        )
        kept = fields.keys() & given.keys() | set(islice(refused, 1))  # one is refused; there may be thousands
        return {name: value for name, value in given.items() if name in kept}


class GenerationSettings(StrictModel):
    """`generation_config` of a request: settings of generate() that bound memory and time, and load no code."""

    ignored = ("transformers_version",)  # GenerationConfig.to_json_string() writes it
    no_effect = dict.fromkeys(vars(GenerationConfig())) | {
        "cache_implementation": "dynamic",
        "num_beams": 1,
        "num_return_sequences": 1,
        "output_attentions": False,
        "output_hidden_states": False,
        "output_logits": False,
        "output_scores": False,
        "return_dict_in_generate": False,
        "use_cache": True,
    }

    decoding: str = None
    window_size: Annotated[int, Field(ge=1, le=WINDOW_SIZE)] | None = None
    entropy_threshold: float | None = None
    distance_penalty: float = None
    acceptance_ratio: float = None
    query_cost: float | None = None
    prompt_lookup_num_tokens: Annotated[int, Field(ge=0, le=LOOKUP_TOKENS)] | None = None
    max_matching_ngram_size: Annotated[int, Field(ge=1, le=MATCHING_NGRAM)] | None = None
    max_new_tokens: Length | None = None
    max_length: Length | None = None
    min_new_tokens: Count | None = None
    min_length: Count | None = None
    max_time: Amount | None = None
    stop_strings: StopStrings | None = None
    do_sample: bool | None = None
    temperature: Amount | None = None
    top_k: Count | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    top_h: Share | None = None
    typical_p: Share | None = None
    epsilon_cutoff: Share | None = None
    eta_cutoff: Share | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    encoder_repetition_penalty: Amount | None = None
    no_repeat_ngram_size: Count | None = None
    encoder_no_repeat_ngram_size: Count | None = None
    bos_token_id: Token | None = None
    pad_token_id: Token | None = None
    forced_bos_token_id: Token | None = None
    eos_token_id: Tokens | None = None
    forced_eos_token_id: Tokens | None = None
    suppress_tokens: Tokens | None = None
    begin_suppress_tokens: Tokens | None = None
    bad_words_ids: Annotated[list[TokenList], Field(fail_fast=True, min_length=1, max_length=BIASES)] | None = None
    sequence_bias: Annotated[list[SequenceBias], Field(fail_fast=True, min_length=1, max_length=BIASES)] | None = None
    remove_invalid_values: bool | None = None
    renormalize_logits: bool | None = None


class StreamOptions(StrictModel):
    no_effect = {"include_obfuscation": False}
    include_usage: bool | None = None


class GenerationRequest(StrictModel):
    """The fields that chats and completions share."""

    ignored = {
        "metadata", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "user",
    }  # fmt: skip
    no_effect = {
        "audio": None,
        "best_of": 1,
        "echo": False,
        "function_call": "none",
        "functions": [],
        "modalities": ["text"],
        "moderation": None,
        "reasoning_effort": None,
        "suffix": "",
        "verbosity": "medium",
        "web_search_options": None,
    }

    model: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Length | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    temperature: Amount | None = None
    top_p: Share | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopStrings | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenText, Bias], Field(max_length=BIASES)] | None = None
    generation_config: Annotated[GenerationSettings, BeforeValidator(parse_json_text)] | None = None

    @model_validator(mode="after")
    def check_stream_options(self) -> "GenerationRequest":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only for stream=true; leave it out.")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class TextPart(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow", strict=True)
    type: Literal["text", "input_text", "output_text"]
    text: str


class Message(TypedDict, total=False):
    """A message, with whatever else a chat template may read of it."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)
    role: Required[str]
    content: Annotated[list[TextPart], BeforeValidator(as_parts)]


def without_empty_fields(message: Any) -> Any:
    """Leaves out what openai's client writes as null: transformers reads no text beside `"tool_calls": null`."""
    if not isinstance(message, dict):
        return message
    return {name: value for name, value in message.items() if value is not None and value != []}


class JsonSchema(StrictModel):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    description: Any = None


class TextFormat(StrictModel):
    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    type: Literal["json_object"]


class JsonSchemaFormat(StrictModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class Function(BaseModel):
    model_config = ConfigDict(strict=True)
    name: Annotated[str, Field(min_length=1)]
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    function: Function


class FunctionTools(BaseModel):
    """Tools that an answer can be forced to call; a chat template may know others."""

    tools: list[Tool]


class ToolChoice(Tool):
    type: Literal["function"]


class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions."""

    messages: Annotated[
        list[Annotated[Message, BeforeValidator(without_empty_fields)]], Field(fail_fast=True, min_length=1)
    ]
    max_completion_tokens: Length | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    response_format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None
    ) = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_combinations(self) -> "ChatRequest":
        if self.top_logprobs and not self.logprobs:
            raise ValueError(f"top_logprobs={self.top_logprobs} needs logprobs=true; set it.")
        if self.offered_tools and not self.forces_call:  # without a grammar, which alone could keep these
            if self.parallel_tool_calls is False:
                raise ValueError("parallel_tool_calls=false needs tool_choice='required' or a named function; set it.")
            functions = [tool.get("function") for tool in self.offered_tools]
            if any(isinstance(function, dict) and function.get("strict") for function in functions):
                raise ValueError("strict=true of a tool needs tool_choice='required' or a named function; set it.")
        return self

    @property
    def offered_tools(self) -> list[dict] | None:
        """The tools that the chat template writes into the prompt."""
        return None if self.tool_choice == "none" else self.tools or None

    @property
    def num_logprobs(self) -> int | None:
        """The number of likely tokens beside each token; None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def forces_call(self) -> bool:
        return self.tool_choice not in (None, "auto", "none")

    @property
    def needs_grammar(self) -> bool:
        return self.forces_call or not isinstance(self.response_format, TextFormat | None)


class CompletionRequest(GenerationRequest):
    """The body of /v1/completions."""

    prompt: str
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    needs_grammar: ClassVar[bool] = False
    max_completion_tokens: ClassVar[None] = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


def validated(kind: type[BaseModel], given: dict, **context: Any) -> BaseModel:
    """Reads what a request holds as a pydantic model.

    Raises:
        `ValueError`: pydantic's first error as a sentence with the parameter, its value and the remedy.
    """
    try:
        return kind.model_validate(given, context=context)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"] if "[" not in str(part))  # pydantic names members of unions so
    reason = first["msg"].removeprefix("Value error, ")
    if not name:
        raise ValueError(reason)
    if first["type"] == "missing":
        raise ValueError(f"{name} is missing; add it.")
    if first["type"] == "extra_forbidden":
        raise ValueError(f"{name}={shown(first['input'])} is not offered by this server; leave it out.")
    raise ValueError(f"{name}={shown(first['input'])} is refused ({reason}); correct it.")


def check_characters(value: Any) -> None:
    """Refuses half a surrogate pair, which JSON can write and no tokenizer reads."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{error.object[error.start]!r} in the request is half of a surrogate pair and no character; take it out."
        ) from error
