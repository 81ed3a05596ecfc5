"""The MASK token of a conversion: which row of the embedding it gets, and how it is taken out again."""

from dataclasses import dataclass, field

from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.fingerprint import EMBEDDING, HEAD
from wedlm.checkpoints.shards import Shard
from wedlm.checkpoints.tokenizer_files import TokenizerFiles, unused_row
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig


@dataclass
class MaskChange:
    """Everything besides the config that changes when MASK is put in or taken out."""

    files: dict[str, dict] = field(default_factory=dict)  # tokenizer files with their new content
    num_rows: dict[str, int] = field(default_factory=dict)  # of the weights that gain or lose a row
    tokens: dict[str, int] | None = None  # ids that the changed tokenizer must give; None if it does not change
    notes: list[str] = field(default_factory=list)


def put_mask_in(
    config: WeDLMConfig, tokenizer: TokenizerFiles, generation_fields: dict, shards: list[Shard], source: object
) -> MaskChange:
    """Chooses the MASK token of a stock checkpoint, sets it in `config`, and returns what else changes.

    A mask_token that the tokenizer has is kept. Otherwise MASK gets a row that no token uses, or one more row.

    Args:
        config (`WeDLMConfig`): The config of the result; `mask_token_id`, `mask_row` and `vocab_size` are set.
        tokenizer (`TokenizerFiles`): The tokenizer of the source.
        generation_fields (`dict`): The content of its generation_config.json.
        shards (`list[Shard]`): Its weight files.
        source (`str` or `os.PathLike`): Its name, for messages.
    """
    tokens = tokenizer.token_ids()
    end_ids = named_ids("eos_token_id", config, generation_fields, source)
    existing = tokenizer.mask_token()
    if existing is not None:
        check_existing_mask(existing, tokens, end_ids, config, source)
        config.mask_token_id = tokens[existing]
        note = f"The tokenizer has a mask_token, {existing!r} (id {tokens[existing]}); it is kept as MASK."
        return MaskChange(notes=[note])

    used = {*tokens.values(), *end_ids}
    for name in ("bos_token_id", "pad_token_id"):
        used |= named_ids(name, config, generation_fields, source)
    row = unused_row(used, config.vocab_size) if tokenizer.has_tokens() else None
    change = MaskChange()
    if row is None:
        row = config.vocab_size
        if row in used:
            raise CheckpointError(
                f"The tokenizer or config of {source} uses the token id {row}, and its model has {row} rows; correct "
                "vocab_size and resize the embeddings, or use the tokenizer that belongs to the model."
            )
        config.vocab_size += 1
        change.num_rows = rows_of_vocabulary(shards, config.vocab_size)
    config.mask_token_id, config.mask_row = row, "added" if change.num_rows else "unused"
    if tokenizer.has_tokens():
        name = tokenizer.unused_name()
        change.files, change.tokens = tokenizer.with_mask(name, row), {**tokens, name: row}
    else:
        change.notes.append(
            f"{source} has no tokenizer, and MASK gets row {row}; if a tokenizer is to name MASK, put it there and "
            "convert again."
        )
    return change


def named_ids(name: str, config: WeDLMConfig, generation_fields: dict, source: object) -> set[int]:
    """The token ids that the config and generation_config.json give for a field such as eos_token_id."""
    ids = set()
    for value in (getattr(config, name), generation_fields.get(name)):
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int for i in values):
            raise CheckpointError(f"{name} of {source} is {value!r}, which is no token id; correct it.")
        ids |= set(values)
    return ids


def check_existing_mask(
    token: str, tokens: dict[str, int], end_ids: set[int], config: WeDLMConfig, source: object
) -> None:
    token_id = tokens.get(token)
    if token_id is None or not 0 <= token_id < config.vocab_size:
        raise CheckpointError(
            f"The mask_token {token!r} of {source} has the id {token_id}, which is none of the {config.vocab_size} "
            "rows; correct or remove mask_token in tokenizer_config.json."
        )
    if token_id in {*end_ids, config.pad_token_id}:  # the padding row of an embedding learns nothing
        raise CheckpointError(
            f"The mask_token {token!r} of {source} also ends or pads the text; correct or remove mask_token in "
            "tokenizer_config.json."
        )


def take_mask_out(config: WeDLMConfig, tokenizer: TokenizerFiles, shards: list[Shard], source: object) -> MaskChange:
    """Undoes `put_mask_in`: unsets MASK in `config`, and returns what else changes.

    Args:
        config (`WeDLMConfig`): The config of the checkpoint; `mask_token_id` and `vocab_size` are set.
        tokenizer (`TokenizerFiles`): Its tokenizer.
        shards (`list[Shard]`): Its weight files.
        source (`str` or `os.PathLike`): Its name, for messages.
    """
    mask_token_id, change = config.mask_token_id, MaskChange()
    if config.mask_row is None:
        if mask_token_id is not None:
            change.notes.append(f"MASK, token {mask_token_id}, stays: no conversion to WeDLM added it.")
        return change
    if config.mask_row == "added":
        if mask_token_id != config.vocab_size - 1:
            raise CheckpointError(
                f"mask_token_id={mask_token_id} is not the last of the {config.vocab_size} rows of {source} any more, "
                'though its config says mask_row="added"; set mask_row to null there to keep MASK.'
            )
        config.vocab_size -= 1
        change.num_rows = rows_of_vocabulary(shards, config.vocab_size)
    config.mask_token_id = None
    if tokenizer.has_tokens():
        change.files = tokenizer.without_mask(mask_token_id)
        change.tokens = {token: i for token, i in tokenizer.token_ids().items() if i != mask_token_id}
    return change


def rows_of_vocabulary(shards: list[Shard], num_rows: int) -> dict[str, int]:
    return {name: num_rows for name in (EMBEDDING, HEAD) if any(name in shard.tensors for shard in shards)}
