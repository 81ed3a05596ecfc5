"""Records and their samples, for the tests of training data."""

import json

from datasets import Dataset
from tiny_tokenizer import make_tokenizer

from wedlm.training.data_options import DataOptions
from wedlm.training.dataset import prepare_dataset
from wedlm.training.target_loss import NO_TARGET

TOKENIZER = make_tokenizer()


def prepare(records, tokenizer=TOKENIZER, **options):
    """prepare_dataset of a list of records, which may have different fields."""
    names = {name: None for record in records for name in record}
    dataset = Dataset.from_list([names | record for record in records])
    return prepare_dataset(dataset, tokenizer, DataOptions(**options))


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def answers(sample, tokenizer=TOKENIZER):
    """The runs of tokens with loss, as texts."""
    runs, previous = [], NO_TARGET
    for label in sample["labels"]:
        if label != NO_TARGET:
            if previous == NO_TARGET:
                runs.append([])
            runs[-1].append(label)
        previous = label
    return [tokenizer.decode(run) for run in runs]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


CHAT = [user("the cat"), assistant("sat"), user("the dog"), assistant("on the mat")]
