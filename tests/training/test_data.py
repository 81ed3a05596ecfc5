import dataclasses
import json
import re

import datasets
import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from datasets.distributed import split_dataset_by_node
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tiny_tokenizer import COLON, END, INSTRUCT, MARKED, QWEN3, QWEN25, THINKING, make_tokenizer
from tokenizers import normalizers
from torch.utils.data import DataLoader
from transformers import HfArgumentParser

from wedlm.training import data, samples
from wedlm.training.data import DataSummary, prepare_dataset
from wedlm.training.data_options import DataOptions
from wedlm.training.errors import TrainingError
from wedlm.training.rows import load_rows
from wedlm.training.samples import IGNORED, tokenize_row

TOKENIZER = make_tokenizer()
datasets.disable_progress_bars()


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder


def prepare(rows, tokenizer=TOKENIZER, **options):
    names = {name: None for row in rows for name in row}
    return prepare_dataset(Dataset.from_list([names | row for row in rows]), tokenizer, DataOptions(**options))


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def answers(row, tokenizer=TOKENIZER):
    """The runs of tokens with loss, as texts."""
    runs, previous = [], IGNORED
    for label in row["labels"]:
        if label != IGNORED:
            if previous == IGNORED:
                runs.append([])
            runs[-1].append(label)
        previous = label
    return [tokenizer.decode(run) for run in runs]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


CHAT = [user("the cat"), assistant("sat"), user("the dog"), assistant("on the mat")]

# --- Which tokens of a conversation have loss ---


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (QWEN25, ["sat<|im_end|>", "on the mat<|im_end|>"]),
        (QWEN3, ["sat<|im_end|>", "<think>\n\n</think>\n\non the mat<|im_end|>"]),
        (INSTRUCT, [" sat<|endoftext|>", " on the mat<|endoftext|>"]),
        (COLON, [" sat<|im_end|>", " on the mat<|im_end|>"]),
        (MARKED, ["sat<|im_end|>", "on the mat<|im_end|>"]),
    ],
    ids=["qwen2.5", "qwen3", "instruct", "colon", "marked"],
)
@pytest.mark.parametrize("trim_offsets", [False, True], ids=["whole offsets", "trimmed offsets"])
def test_loss_is_on_what_the_assistant_writes(template, expected, trim_offsets):
    tokenizer = make_tokenizer(template, trim_offsets)
    whole = tokenizer.apply_chat_template(CHAT)["input_ids"]
    for loss_on, shown in (("all", expected), ("last", expected[-1:])):
        (row,), _ = prepare([{"messages": CHAT}], tokenizer, loss_on=loss_on)
        assert answers(row, tokenizer) == shown
        assert row["input_ids"] == whole[: len(row["input_ids"])]
        assert all(label in (IGNORED, token) for label, token in zip(row["labels"], row["input_ids"], strict=True))
        assert row["labels"][-1] != IGNORED  # nothing stands behind the last answer


def written(template, messages):
    """A conversation as its template writes it, in plain Python: pieces, and whether the assistant writes them."""
    last_user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    pieces = []
    if template == QWEN25 and messages[0]["role"] != "system":
        pieces.append(("<|im_start|>system\nthe dog<|im_end|>\n", False))
    for i, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if template == INSTRUCT:
            pieces.append(
                (f" {content}<|endoftext|>", True) if role == "assistant" else (f"[INST] {content} [/INST]", False)
            )
        elif template == COLON:
            pieces.append((f"{role.upper()}: ", False))
            pieces.append((f"{content}<|im_end|>", True) if role == "assistant" else (f"{content}\n", False))
        else:
            if template == QWEN3 and role == "assistant":
                thought = ""
                if "</think>" in content:
                    thought, content = content.split("</think>")
                    thought, content = thought.removeprefix("<think>").strip("\n"), content.lstrip("\n")
                if i > last_user and (thought or i == len(messages) - 1):
                    content = f"<think>\n{thought}\n</think>\n\n" + content.lstrip("\n")
            pieces += [(f"<|im_start|>{role}\n", False), (f"{content}<|im_end|>", role == "assistant"), ("\n", False)]
    return pieces


CHARACTERS = st.text(st.sampled_from("abcthe dog\n\n  .:é€😀"), min_size=1, max_size=12)
CONTENTS = CHARACTERS.filter(str.strip)
THOUGHTS = st.builds("<think>\n{}\n</think>\n\n{}".format, CONTENTS, CONTENTS)
ROUNDS = st.lists(st.tuples(CHARACTERS, st.one_of(CONTENTS, THOUGHTS)), min_size=1, max_size=4)
TEMPLATES = {template: make_tokenizer(template) for template in (QWEN25, QWEN3, INSTRUCT, COLON, MARKED)}


@pytest.mark.parametrize("template", TEMPLATES, ids=["qwen2.5", "qwen3", "instruct", "colon", "marked"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(has_system=st.booleans(), rounds=ROUNDS, loss_on=st.sampled_from(["all", "last"]))
@example(has_system=False, rounds=[("the cat", "sat"), ("the dog", "on the mat")], loss_on="all")
@example(has_system=False, rounds=[("the cat", "sat"), ("the dog", "on the mat")], loss_on="last")
def test_any_conversation_has_loss_where_the_slow_reference_has_it(template, has_system, rounds, loss_on):
    """The reference counts bytes: a token has loss if one of its bytes belongs to an answer."""
    tokenizer = TEMPLATES[template]
    messages = [message for question, answer in rounds for message in (user(question), assistant(answer))]
    if has_system:
        messages.insert(0, {"role": "system", "content": "the log"})
    owners = []
    pieces = written(template, messages)
    last = max(i for i, (_, is_answer) in enumerate(pieces) if is_answer)
    for i, (piece, is_answer) in enumerate(pieces):
        owners += [is_answer and (loss_on == "all" or i == last)] * len(piece.encode())
    sample = tokenize_row({"messages": messages}, 0, tokenizer, DataOptions(loss_on=loss_on))
    place, expected = 0, []
    for token in sample["input_ids"]:
        num_bytes = len(tokenizer.convert_ids_to_tokens(token))  # a character of its name stands for a byte
        expected.append(token if any(owners[place : place + num_bytes]) else IGNORED)
        place += num_bytes
    assert sample["labels"] == expected
    assert not any(owners[place:])
    text = "".join(piece for piece, _ in pieces)
    assert text.startswith(tokenizer.decode(sample["input_ids"], clean_up_tokenization_spaces=False))


def test_turns_that_the_template_changes_are_counted():
    chat = [user("a"), assistant("<think>\nb\n</think>\n\nc"), user("d"), assistant("<think>\ne\n</think>\n\nf")]
    tokenizer = make_tokenizer(QWEN3)
    (row,), summary = prepare([{"messages": chat}], tokenizer)
    assert answers(row, tokenizer) == ["c<|im_end|>", "<think>\ne\n</think>\n\nf<|im_end|>"]
    assert summary.num_rewritten == 1
    _, summary = prepare([{"messages": chat}], tokenizer, loss_on="last")
    assert summary.num_rewritten == 0


@pytest.mark.parametrize("content", ["", None, "the cat"])
def test_tool_calls_belong_to_the_turn(content):
    call = [{"name": "log"}]
    chat = [user("a"), assistant(content, tool_calls=call), {"role": "tool", "content": "d"}, assistant("e")]
    tools = [{"name": "log"}]
    tokenizer = make_tokenizer(QWEN3)
    (row,), _ = prepare([{"messages": chat, "tools": tools}], tokenizer)
    (same,), _ = prepare([{"messages": chat, "tools": json.dumps(tools)}], tokenizer)
    called = f"{content}\n<tool_call>log</tool_call><|im_end|>" if content else "<tool_call>log</tool_call><|im_end|>"
    assert answers(row, tokenizer) == [called, "<think>\n\n</think>\n\ne<|im_end|>"]
    assert tokenizer.decode(row["input_ids"]).startswith('<|im_start|>system\n[{"name": "log"}]<|im_end|>')
    assert row == same


def test_conversational_prompt_and_completion():
    row = {"prompt": CHAT[:3], "completion": CHAT[3:]}
    for loss_on in ("all", "last"):
        (sample,), _ = prepare([row], loss_on=loss_on)
        assert answers(sample) == ["on the mat<|im_end|>"]
    tokenizer = make_tokenizer(MARKED)
    (sample,), _ = prepare([row], tokenizer)
    assert answers(sample, tokenizer) == ["on the mat<|im_end|>"]


def test_extra_end_tokens_follow_the_last_turn():
    (row,), _ = prepare([{"messages": CHAT}], extra_end_tokens=2)
    assert answers(row) == ["sat<|im_end|>", "on the mat<|im_end|><|endoftext|><|endoftext|>"]


def test_normalized_text_keeps_its_answers():
    """The normalizer shortens the text in front of the answer; offsets speak of the text before."""
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    (row,), _ = prepare([{"messages": [user("e\u0301" * 9), assistant("e\u0301a"), user("a")]}], tokenizer)
    assert answers(row, tokenizer) == ["\u00e9a<|im_end|>"]


@pytest.mark.parametrize("num_extra", [0, 1])
def test_answers_that_a_template_does_not_end_are_counted(num_extra):
    unmarked_end = MARKED.replace(" + '<|im_end|>' }}{% endgeneration %}", " }}{% endgeneration %}{{ '<|im_end|>' }}")
    for template in (unmarked_end, COLON.replace("'<|im_end|>'", "'\n'")):
        _, summary = prepare([{"messages": CHAT}] * 3, make_tokenizer(template), extra_end_tokens=num_extra)
        assert summary.num_without_end == (0 if num_extra else 3)
    assert prepare([{"messages": CHAT}])[1].num_without_end == 0
    sentence = (
        "Conversations whose last answer has no end token in the chat template: 3; a model learns no end from them "
        "without extra_end_tokens=1."
    )
    assert (sentence in str(summary)) == (num_extra == 0)


# --- Prompt and completion, text ---


@pytest.mark.parametrize("num_extra", [0, 2])
def test_prompt_and_completion(num_extra):
    (row,), _ = prepare([{"prompt": "the cat", "completion": "sat on"}], extra_end_tokens=num_extra)
    prompt, completion = TOKENIZER("the cat")["input_ids"], TOKENIZER("sat on")["input_ids"]
    end = [END] * (1 + num_extra)
    assert row["input_ids"] == prompt + completion + end
    assert row["labels"] == [IGNORED] * len(prompt) + completion + end
    assert (row["sample_lengths"], row["sample_indices"]) == ([len(row["input_ids"])], [0])


def test_no_token_lies_across_the_border_of_prompt_and_completion():
    assert len(TOKENIZER("the cat")["input_ids"]) == 2
    (row,), _ = prepare([{"prompt": "the ca", "completion": "t"}])
    assert answers(row) == ["t<|endoftext|>"]
    assert TOKENIZER.decode(row["input_ids"]) == "the cat<|endoftext|>"


@pytest.mark.parametrize("num_extra", [0, 2])
def test_text(num_extra):
    (row,), _ = prepare([{"text": "the cat sat"}], extra_end_tokens=num_extra)
    assert row["input_ids"] == row["labels"] == TOKENIZER("the cat sat")["input_ids"] + [END] * (1 + num_extra)


def test_an_end_token_in_the_data_is_not_doubled():
    rows, _ = prepare([{"text": "the cat<|endoftext|>"}])
    assert rows[0]["input_ids"] == TOKENIZER("the cat<|endoftext|>")["input_ids"]


# --- What does not fit ---


@pytest.mark.parametrize(
    "row", [{"messages": CHAT}, {"prompt": "the cat", "completion": "sat on the mat"}, {"text": "the cat sat on"}]
)
@pytest.mark.parametrize("num_extra", [0, 1])
def test_what_is_truncated_is_a_beginning_without_end_token_and_counted(row, num_extra):
    (whole,), _ = prepare([row], extra_end_tokens=num_extra)
    last_answer = len(whole["input_ids"]) - 1 - num_extra  # the place of its end token
    for max_length in range(2, len(whole["input_ids"]) + 1):
        try:
            (cut,), summary = prepare([row], max_length=max_length, extra_end_tokens=num_extra)
        except TrainingError as error:
            assert "(dropped: 1 for cut before the first token with loss)" in str(error)
            assert all(label == IGNORED for label in whole["labels"][:max_length])
            continue
        length = len(cut["input_ids"])
        assert cut["input_ids"] == whole["input_ids"][:length] and cut["labels"] == whole["labels"][:length]
        assert length <= max_length and cut["labels"][-1] != IGNORED
        assert all(label == IGNORED for label in whole["labels"][length:max_length])
        assert summary.num_truncated == (max_length < len(whole["input_ids"])) and not summary.dropped
        if max_length <= last_answer:
            assert (END if "messages" not in row else 2) not in cut["input_ids"][-1:] or "messages" in row


def test_what_is_too_long_is_dropped_when_asked():
    rows = [{"text": "the cat sat " * count} for count in (1, 50, 2)]
    kept, summary = prepare(rows, max_length=20, overlong="drop")
    assert [row["sample_indices"] for row in kept] == [[0], [2]]
    assert (summary.num_read, summary.num_samples, summary.num_truncated) == (3, 2, 0)
    assert summary.dropped == {"longer than max_length": 1}


def test_a_sample_of_exactly_max_length_is_whole():
    length = len(TOKENIZER("the cat sat")["input_ids"]) + 1
    (row,), summary = prepare([{"text": "the cat sat"}], max_length=length, overlong="drop")
    assert len(row["input_ids"]) == length and summary.num_truncated == 0


def test_mask_is_never_a_target():
    rows = [{"text": "a <|mask|> b"}, {"prompt": "<|mask|>", "completion": "a"}, {"text": "a"}]
    kept, summary = prepare(rows)
    assert [row["sample_indices"] for row in kept] == [[2]]
    assert summary.dropped == {"the MASK token in the data": 2}


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.booleans(), st.sampled_from(["truncate", "drop"]))
def test_every_token_is_in_a_row_or_its_sample_is_counted(num_words, packing, overlong):
    """Nothing is cut silently: rows hold each sample whole, except for those that the summary counts."""
    given_rows = [{"text": "the cat " * n} for n in num_words] + [{"text": "the"}]
    whole = {row["sample_indices"][0]: row["input_ids"] for row in prepare(given_rows)[0]}
    is_long = {index: len(tokens) > 16 for index, tokens in whole.items()}
    rows, summary = prepare(given_rows, max_length=16, packing=packing, overlong=overlong)
    found = {}
    for row in rows:
        start = 0
        for length, index in zip(row["sample_lengths"], row["sample_indices"], strict=True):
            assert index not in found
            found[index] = row["input_ids"][start : start + length]
            start += length
        assert start == len(row["input_ids"]) == len(row["labels"]) <= 16
    num_long = sum(is_long.values())
    if overlong == "truncate":
        assert found == {index: tokens[:16] for index, tokens in whole.items()}
        assert summary.num_truncated == num_long and not summary.dropped
    else:
        assert found == {index: tokens for index, tokens in whole.items() if not is_long[index]}
        assert summary.num_truncated == 0 and sum(summary.dropped.values()) == num_long
    assert summary.num_read == len(given_rows)


# --- The summary ---

MIXED = [
    {"text": "the cat sat"},
    {"text": "the dog " * 30},
    {"text": " \n"},
    {"prompt": "the " * 40, "completion": "cat"},
    {"text": "<|mask|>"},
    {"text": "the log"},
]


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_the_summary_counts_everything(tmp_path, streaming):
    file = write_lines(tmp_path / "mixed.jsonl", MIXED)
    rows, summary = prepare_dataset(
        str(file), TOKENIZER, DataOptions(max_length=16, packing=True, streaming=streaming)
    )
    rows = list(rows)
    num_tokens = sum(len(row["input_ids"]) for row in rows)
    num_loss_tokens = sum(label != IGNORED for row in rows for label in row["labels"])
    assert str(summary) == (
        f"6 rows read, 3 samples: {num_tokens} tokens, {num_loss_tokens} of them with loss.\n"
        "Truncated to max_length=16: 1 samples.\n"
        "Dropped: 1 (blank text).\n"
        "Dropped: 1 (cut before the first token with loss).\n"
        "Dropped: 1 (the MASK token in the data).\n"
        f"Packed into {len(rows)} rows, {num_tokens / (16 * len(rows)):.1%} full."
    )
    assert sorted(index for row in rows for index in row["sample_indices"]) == [0, 1, 5]


def test_the_summary_names_turns_that_change():
    summary = DataSummary(16, num_rewritten=2)
    assert (
        "Earlier assistant turns that the chat template changes (thinking left out, say): 2; "
        "loss_on='last' leaves them without loss." in str(summary)
    )
    assert summary.fill_ratio is None


# --- Sources ---

SOURCE = [{"text": "the cat"}, {"text": "the dog sat"}, {"text": "log"}]


def as_jsonl(folder):
    return write_lines(folder / "a.jsonl", SOURCE)


def as_json_list(folder):
    (folder / "a.json").write_text(json.dumps(SOURCE, indent=1))
    return folder / "a.json"


def as_json_lines(folder):
    return write_lines(folder / "a.json", SOURCE)


def as_parquet(folder):
    Dataset.from_list([{**row, "id": 3.5} for row in SOURCE]).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def as_several(folder):
    return [write_lines(folder / "b.jsonl", SOURCE[:1]), write_lines(folder / "a.jsonl", SOURCE[1:])]


def as_folder(folder):
    (folder / "notes.txt").write_text("no data")
    write_lines(folder / "a.jsonl", SOURCE[:2])
    (folder / "b.json").write_text(json.dumps(SOURCE[2:]))
    return folder


def as_pattern(folder):
    as_folder(folder)
    return str(folder / "*.json*")


def as_dataset(folder):
    return Dataset.from_list(SOURCE)


def as_dataset_with_other_columns(folder):
    return Dataset.from_list([{**row, "id": i, "prompt": None} for i, row in enumerate(SOURCE)]).with_format("numpy")


def as_stream(folder):
    return Dataset.from_list(SOURCE).to_iterable_dataset()


def as_generator(folder):
    return IterableDataset.from_generator(lambda: iter(SOURCE))


@pytest.mark.parametrize("packing", [False, True], ids=["unpacked", "packed"])
@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
@pytest.mark.parametrize(
    "source",
    [
        as_jsonl,
        as_json_list,
        as_json_lines,
        as_parquet,
        as_several,
        as_folder,
        as_pattern,
        as_dataset,
        as_dataset_with_other_columns,
        as_stream,
        as_generator,
    ],
)
def test_every_source_gives_the_same_rows(tmp_path, source, streaming, packing):
    options = DataOptions(max_length=8, packing=packing, streaming=streaming)
    rows, _ = prepare_dataset(source(tmp_path), TOKENIZER, options)
    is_stream = source in (as_stream, as_generator) or (
        streaming and source not in (as_dataset, as_dataset_with_other_columns)
    )
    assert isinstance(rows, IterableDataset if is_stream else Dataset)
    expected, _ = prepare(SOURCE, max_length=8, packing=packing)
    assert list(rows) == list(expected)
    assert list(rows) == list(expected)  # a second pass
    assert rows.column_names == ["input_ids", "labels", "sample_lengths", "sample_indices"]


def test_rows_of_different_shapes_stand_in_one_file(tmp_path):
    """Arrow would need one type for all."""
    rows = [
        {"messages": CHAT},
        {"text": "a"},
        {"prompt": CHAT[:1], "completion": CHAT[1:2]},
        {"prompt": "a", "completion": "b"},
    ]
    file = write_lines(tmp_path / "a.jsonl", rows)
    kept, _ = prepare_dataset(file, TOKENIZER, DataOptions())
    assert [row["sample_indices"] for row in kept] == [[0], [1], [2], [3]]


def test_nothing_that_arrow_fills_in_reaches_the_template():
    calls = [[{"name": "log", "arguments": {"a": 1}}], [{"name": "log", "arguments": {"b": 2}}]]
    template = "{% for message in messages %}{{ message | tojson }}<|im_end|>{% endfor %}"
    rows = [{"messages": [user("a"), assistant("b", tool_calls=call)]} for call in calls]
    tokenizer = make_tokenizer(template)
    kept, _ = prepare(rows, tokenizer)
    assert all("null" not in tokenizer.decode(row["input_ids"]) for row in kept)


def test_a_row_has_the_number_it_has_in_the_data_whatever_is_packed_or_dropped(tmp_path):
    file = write_lines(tmp_path / "mixed.jsonl", MIXED)
    alone, _ = prepare_dataset(file, TOKENIZER, DataOptions(max_length=16))
    packed, _ = prepare_dataset(file, TOKENIZER, DataOptions(max_length=64, packing=True))
    by_index = {row["sample_indices"][0]: row["input_ids"] for row in alone}
    assert set(by_index) == {0, 1, 5}
    start = 0
    (row,) = [row for row in packed if 5 in row["sample_indices"]]
    for length, index in zip(row["sample_lengths"], row["sample_indices"], strict=True):
        if index in (0, 5):
            assert row["input_ids"][start : start + length] == by_index[index]
        start += length


def test_several_processes_give_the_same_rows(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", [{"text": "the cat " * count} for count in range(1, 9)])
    one, _ = prepare_dataset(file, TOKENIZER, DataOptions(max_length=16, packing=True))
    two, _ = prepare_dataset(file, TOKENIZER, DataOptions(max_length=16, packing=True, num_proc=2))
    assert list(one) == list(two)
    write_lines(file, [{"text": "a"}, {"text": "b"}, {"txt": "c"}, {"text": "d"}])
    with pytest.raises(TrainingError, match=re.escape(f"{file}, line 3 has none of the fields")):
        prepare_dataset(file, TOKENIZER, DataOptions(num_proc=2))


def test_a_stream_reads_no_more_than_it_must():
    num_read = 0

    def endless():
        nonlocal num_read
        while True:
            num_read += 1
            yield {"text": "the cat"}

    rows, summary = prepare_dataset(
        IterableDataset.from_generator(endless), TOKENIZER, DataOptions(max_length=8, packing=True)
    )
    assert num_read < 10
    next(iter(rows))
    assert num_read <= 2 * data.STREAM_BUFFER
    assert summary.num_read >= data.STREAM_BUFFER


def test_a_stream_is_shuffled_and_read_by_workers(tmp_path):
    files = [
        write_lines(tmp_path / f"{name}.jsonl", [{"text": f"the cat {name} {i}"} for i in range(20)]) for name in "ab"
    ]
    rows, summary = prepare_dataset(files, TOKENIZER, DataOptions(max_length=16, streaming=True))
    in_order = list(rows)
    assert [row["sample_indices"] for row in in_order] == [[i] for i in range(40)]
    shuffled = list(rows.shuffle(seed=1, buffer_size=10))
    assert summary.num_read == 80  # both passes
    loaded = list(DataLoader(rows, num_workers=2, batch_size=None))
    assert shuffled != in_order
    for others in (shuffled, loaded):
        assert sorted(others, key=lambda row: row["sample_indices"]) == in_order
    state = iter(rows)
    half = [next(state) for _ in range(15)]
    resumed = prepare_dataset(files, TOKENIZER, DataOptions(max_length=16, streaming=True))[0].skip(15)
    assert half + list(resumed) == in_order


def test_the_number_of_a_row_of_a_stream_depends_on_no_worker_and_no_rank():
    source = Dataset.from_list([{"text": f"the cat {i}"} for i in range(10)]).to_iterable_dataset(num_shards=2)
    rows, _ = prepare_dataset(source, TOKENIZER, DataOptions(max_length=16))
    numbers = {tuple(row["input_ids"]): row["sample_indices"] for row in rows}
    assert sorted(numbers.values()) == [[i] for i in range(10)]
    by_rank = [row for rank in range(2) for row in split_dataset_by_node(rows, rank, 2)]
    by_worker = list(DataLoader(rows, num_workers=2, batch_size=None))
    for others in (by_rank, by_worker):
        assert len(others) == 10
        assert {tuple(row["input_ids"]): row["sample_indices"] for row in others} == numbers


# --- Caches ---


def fingerprints(file, tokenizer=TOKENIZER, **options):
    rows, _ = prepare_dataset(file, tokenizer, DataOptions(**options))
    return rows._fingerprint, list(rows)


def test_what_was_tokenized_before_is_found_again(tmp_path, monkeypatch):
    file = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}])
    before = fingerprints(file, packing=True)
    TOKENIZER(["a", "a b"], padding=True)  # leaves its padding in the tokenizer's state
    monkeypatch.setattr(samples, "tokens_of", None)  # would fail if it were called
    for tokenizer in (TOKENIZER, make_tokenizer()):
        assert fingerprints(file, tokenizer, packing=True) == before


@pytest.mark.parametrize("packing", [False, True], ids=["unpacked", "packed"])
def test_a_change_of_template_tokenizer_option_or_data_is_never_missed(tmp_path, packing):
    file = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}])
    tokenizer = make_tokenizer()
    _, before = fingerprints(file, tokenizer, packing=packing)
    tokenizer.chat_template = QWEN25.replace("the dog", "the cat")
    _, other_template = fingerprints(file, tokenizer, packing=packing)
    assert other_template[0]["input_ids"] != before[0]["input_ids"]
    tokenizer.chat_template = QWEN25
    for options in ({"loss_on": "last"}, {"extra_end_tokens": 1}, {"max_length": 30}):
        _, rows = fingerprints(file, tokenizer, packing=packing, **options)
        assert rows[0]["labels"] != before[0]["labels"], options
    tokenizer.eos_token = "<|im_start|>"
    _, rows = fingerprints(file, tokenizer, packing=packing, extra_end_tokens=1)
    assert rows[0]["input_ids"][-1] == 1
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["cat"])
    _, rows = fingerprints(file, tokenizer, packing=packing)
    assert rows[0]["input_ids"] != before[0]["input_ids"]
    write_lines(file, [{"messages": [user("the dog"), *CHAT[1:]]}])
    _, rows = fingerprints(file, packing=packing)
    assert rows[0]["input_ids"] != before[0]["input_ids"]
    write_lines(file, [{"messages": CHAT}])
    assert fingerprints(file, packing=packing)[1] == before


# --- What is refused ---

REFUSED_ROWS = [
    ({}, "{where} has none of the fields messages, prompt and completion, or text; add one."),
    ({"txt": "a"}, "{where} has none of the fields messages, prompt and completion, or text; add one."),
    ({"messages": CHAT, "text": "a"}, "{where} has both messages and text; leave only one kind of field."),
    ({"messages": CHAT, "prompt": "a", "completion": "b"},
     "{where} has both messages and prompt; leave only one kind of field."),
    ({"prompt": "a"}, "{where} has a prompt without a completion; add one, or call the field text."),
    ({"completion": "a"}, "{where} has a completion without a prompt; add one, or call the field text."),
    ({"prompt": "a", "completion": " "}, "{where} has an empty completion; write one, or remove the row."),
    ({"prompt": "a", "completion": 3}, "{where} has a completion of type int; it must be a text."),
    ({"prompt": CHAT[:1], "completion": "a"}, "{where} has a prompt of type list; it must be a text."),
    ({"prompt": CHAT[:2], "completion": CHAT[:1]},
     "{where} has no assistant turn in its completion, so nothing to learn; add one."),
    ({"text": ["a"]}, "{where} has a text of type list; it must be a text."),
    ({"messages": []}, "{where} has no messages; it must be a list of them, each with role and content."),
    ({"messages": "a"}, "{where} has messages of type str; it must be a list of them, each with role and content."),
    ({"messages": CHAT[:1]}, "{where} has no assistant turn in its messages, so nothing to learn; add one."),
    ({"messages": [CHAT[0], "a"]}, "{where}: messages[1] must be an object with a role and a content."),
    ({"messages": [{"content": "a"}]}, "{where}: messages[0] must be an object with a role and a content."),
    ({"messages": [{"role": "user"}]}, "{where}: the content of messages[0] must be a text, not NoneType."),
    ({"messages": [user([{"type": "text"}])]}, "{where}: the content of messages[0] must be a text, not list."),
    ({"messages": [CHAT[0], assistant(" ")]},
     "{where}: messages[1] is an assistant turn with empty content; write it, or remove it."),
    ({"messages": CHAT[1:]},
     "{where}: messages[0] is an assistant turn with nothing to answer; put a system or user message in front of it, "
     "or use loss_on='last'."),
    ({"messages": CHAT, "tools": "{{"},
     "{where}: its tools are no JSON (Expecting property name enclosed in double quotes)."),
    ({"messages": CHAT, "tools": ["a"]}, "{where}: its tools must be a list of objects."),
]  # fmt: skip


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
@pytest.mark.parametrize(("row", "sentence"), REFUSED_ROWS)
def test_rows_that_are_refused(tmp_path, row, sentence, streaming):
    file = tmp_path / "a.jsonl"
    file.write_text(f'{{"text": "a"}}\n\n{json.dumps(row)}\n')
    with pytest.raises(TrainingError) as error:
        list(prepare_dataset(file, TOKENIZER, DataOptions(streaming=streaming))[0])
    assert str(error.value) == sentence.format(where=f"{file}, line 3")


def test_rows_of_a_dataset_are_named_by_their_number():
    with pytest.raises(TrainingError, match="^row 1 has none of the fields"):
        prepare([{"text": "a"}, {"text": None}])
    with pytest.raises(TrainingError, match="^row 1 has none of the fields"):
        list(
            prepare_dataset(
                Dataset.from_list([{"text": "a"}, {"text": None}]).to_iterable_dataset(), TOKENIZER, DataOptions()
            )[0]
        )


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "{file}, line 2 is no JSON (Expecting value, column 1)."),
        ("a.jsonl", b'{"text": "a"}\n3\n', "{file}, line 2 is a JSON int; a row must be an object with fields."),
        ("a.jsonl", b'{"text": "\xff"}\n', "{file}, line 1 is no UTF-8 text; save the file as UTF-8."),
        ("a.jsonl", b'{"text": "\\ud8"}', "{file}, line 1 is no JSON (Invalid \\uXXXX escape, column 12)."),
        ("a.jsonl", b'["\\ud800"]', "{file}, line 1 has half of a surrogate pair, which is no text; remove it."),
        ("a.jsonl", b"\n", "The data has no rows; give a file or a dataset with at least one."),
        ("a.json", b'[{"text": "a"},\n{"text": }]', "{file}, line 2 is no JSON (Expecting value)."),
        ("a.json", b'[{"text": "\xff"}]', "{file} is no UTF-8 text; save the file as UTF-8."),
        ("a.json", b'[{"text": "a"}, 3]', "{file}, row 1 is a JSON int; a row must be an object with fields."),
        ("a.csv", b"text\na\n", "{file} is of no known kind; the extension must be one of .jsonl, .json, .parquet."),
    ],
)  # fmt: skip
def test_files_that_are_refused(tmp_path, name, content, sentence, streaming):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TrainingError) as error:
        list(prepare_dataset(file, TOKENIZER, DataOptions(streaming=streaming))[0])
    assert str(error.value) == sentence.format(file=file)


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_a_file_that_is_no_parquet(tmp_path, streaming):
    (tmp_path / "a.parquet").write_text("{}")
    with pytest.raises(TrainingError, match=r"^\S*a.parquet cannot be read as Parquet: [^\n]*[^.]\.$"):
        list(prepare_dataset(tmp_path / "a.parquet", TOKENIZER, DataOptions(streaming=streaming))[0])


def test_paths_that_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for paths, sentence in (
        (tmp_path / "none.jsonl", f"There is no file {tmp_path}/none.jsonl; give a path that exists."),
        ([], "No data file is given; name at least one."),
        (str(tmp_path / "empty"), f"The folder {tmp_path}/empty holds no .jsonl, .json, .parquet file."),
    ):
        with pytest.raises(TrainingError) as error:
            load_rows(paths)
        assert str(error.value) == sentence


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    file = write_lines(tmp_path / "a.jsonl", SOURCE)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(TrainingError) as error:
        load_rows(file)
    assert str(error.value) == f"{file} cannot be read: Permission denied."


def test_a_dict_of_splits_is_refused():
    with pytest.raises(TrainingError) as error:
        prepare_dataset(
            DatasetDict(train=Dataset.from_list(SOURCE), test=Dataset.from_list(SOURCE)), TOKENIZER, DataOptions()
        )
    assert str(error.value) == "The data has the splits 'train', 'test'; give one of them."


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_a_dataset_that_is_empty_after_filtering(streaming):
    rows = Dataset.from_list([{"text": "the cat sat"}, {"text": "a <|mask|>"}, {"text": " "}])
    with pytest.raises(TrainingError) as error:
        prepare_dataset(
            rows.to_iterable_dataset() if streaming else rows, TOKENIZER, DataOptions(max_length=2, overlong="drop")
        )
    assert str(error.value) == (
        "No sample is left of 3 rows (dropped: 1 for blank text, 1 for longer than max_length, "
        "1 for the MASK token in the data); change the data, max_length=2 or overlong."
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_length": 1}, "max_length=1 is too small; a row needs at least 2 tokens."),
        ({"extra_end_tokens": -1}, "extra_end_tokens=-1 must be 0 or more."),
        ({"num_proc": 0}, "num_proc=0 must be 1 or more, or None."),
        ({"overlong": "cut"}, "overlong='cut' must be one of 'truncate', 'drop'."),
        ({"loss_on": "first"}, "loss_on='first' must be one of 'all', 'last'."),
    ],
)
def test_options_that_are_refused(options, sentence):
    with pytest.raises(TrainingError) as error:
        DataOptions(**options)
    assert str(error.value) == sentence


def test_options_are_arguments_of_a_command_line(capsys):
    parser = HfArgumentParser(DataOptions)
    (options,) = parser.parse_args_into_dataclasses(["--max_length", "64", "--loss_on", "last", "--packing"])
    assert options == DataOptions(max_length=64, loss_on="last", packing=True)
    with pytest.raises(SystemExit):
        parser.parse_args_into_dataclasses(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(DataOptions):
        assert field.metadata["help"] in shown


def test_tokenizers_that_are_refused():
    for tokenizer, row, sentence in (
        (make_tokenizer(mask_token=None), {"text": "a"},
         "The tokenizer has no mask token; take a checkpoint from `wedlm convert`, or set tokenizer.mask_token."),
        (make_tokenizer(eos_token=None), {"text": "a"}, "The tokenizer has no end token; set tokenizer.eos_token."),
        (make_tokenizer(None), {"messages": CHAT},
         "row 0 has messages, and the tokenizer has no chat template; set tokenizer.chat_template, or give prompt and "
         "completion as texts."),
    ):  # fmt: skip
        with pytest.raises(TrainingError) as error:
            prepare([row], tokenizer)
        assert str(error.value) == sentence


def test_templates_that_are_refused():
    double = [user("a"), assistant("b"), assistant("c")]
    marks = "put {% generation %} marks into the chat template, or use loss_on='last'"
    for template, chat, sentence in (
        (THINKING, CHAT,
         "row 0: the chat template does not write messages[1] behind the generation prompt that a model would answer "
         f"there; {marks}."),
        (QWEN3, double,
         "row 0: the chat template does not write messages[2] behind the generation prompt that a model would answer "
         f"there; {marks}."),
        ("{% for message in messages %}{{ message.content[:1 if loop.last else 9] ~ loop.last }}{% endfor %}",
         [user("ab"), assistant("cde"), user("f"), assistant("gh")],
         "row 0: the chat template does not write messages[1] behind the generation prompt that a model would answer "
         f"there; {marks}."),
        ("{% for message in messages %}{{ message.content }}{% endfor %}{{ '<|endoftext|>' if messages[-1].role == "
         "'assistant' }}", CHAT, f"row 0: where messages[1] ends in the chat template cannot be told; {marks}."),
        ("{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}", CHAT,
         f"row 0: the chat template writes nothing for messages[1]; {marks}."),
        ("{{ raise_exception('Roles must alternate.') }}", CHAT,
         "row 0: the chat template refuses the messages (Roles must alternate)."),
        ("{{ messages[0].content + 3 }}", CHAT,
         "row 0: the chat template refuses the messages (can only concatenate str (not \"int\") to str)."),
        ("{% generation %}{% endgeneration %}{{ messages[0].content }}", CHAT,
         "row 0: the chat template marks nothing as written by the assistant; put its {% generation %} marks around "
         "the assistant's content, or remove them."),
    ):  # fmt: skip
        with pytest.raises(TrainingError) as error:
            prepare([{"messages": chat}], make_tokenizer(template))
        assert str(error.value) == sentence
    (row,), _ = prepare([{"messages": CHAT}], make_tokenizer(THINKING), loss_on="last")
    assert answers(row) == ["\n</think>\n\non the mat<|im_end|>"]
    # With marks, what stands in front of the last turn must not depend on it.
    template = "{{ messages | length }}" + MARKED
    with pytest.raises(TrainingError) as error:
        prepare([{"messages": CHAT}], make_tokenizer(template), loss_on="last")
    assert str(error.value) == (
        "row 0: the chat template writes what stands in front of messages[3] otherwise when it stands alone; use a "
        "template in which later messages do not change earlier ones."
    )
