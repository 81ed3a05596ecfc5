"""Other ways for verified decoding to use its queries: tokens per forward, and milliseconds per token.

    python benchmarks/verified_variants.py [--num-examples 10] [--rounds 3] [--out ...results/verified_variants.json]

The variants answer held-out questions of every kind on the demo checkpoint at batch size 1, and take turns on each
question. They must write the same text, which is checked. Milliseconds are medians over questions and rounds.
"""

from functools import partial
from unittest.mock import patch

import torch
from common import load, markdown, new_parser, save
from huggingface_hub.utils import tqdm
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import GenerateDecoderOnlyOutput

from wedlm.demo.inputs import MAX_NEW_TOKENS, batch_of
from wedlm.demo.tasks import KINDS, held_out_examples
from wedlm.evaluation.turns import median_and_range, take_turns
from wedlm.generation import verified
from wedlm.generation.verified import StepPlan


def in_proportion(
    chances: torch.Tensor, next_chance: torch.Tensor, num_open: torch.Tensor, most: torch.Tensor, cost: torch.Tensor
) -> StepPlan:
    """Verifies drafts with a chance of 0.2, and shares MASKs out in proportion to the chance of each group."""
    chances = chances.where(chances >= 0.2, 0)
    num_drafts = (chances > 0).sum(-1)
    shares = (pad(chances, (1, 0), value=1.0) - pad(chances, (0, 1))).clamp(min=0).cumsum(-1)
    ends = (shares / shares[:, -1:] * (most - num_drafts)[:, None]).round().long()
    longest = num_open.clamp(max=chances.shape[1] + 1)[:, None]
    sizes = pad(ends, (1, 0)).diff().minimum(longest)
    return StepPlan(num_drafts, num_drafts[:, None] + pad(sizes.cumsum(-1), (1, 0)))


def behind_all_drafts(
    chances: torch.Tensor, next_chance: torch.Tensor, num_open: torch.Tensor, most: torch.Tensor, cost: torch.Tensor
) -> StepPlan:
    """Gives all MASKs to one group, which is of use only if every draft is accepted."""
    num_drafts = (chances >= 0.2).sum(-1)
    numbers = torch.arange(chances.shape[1] + 2, device=chances.device)
    num_masks = (most - num_drafts).minimum(num_open.clamp(max=chances.shape[1] + 1))
    sizes = torch.where(numbers > num_drafts[:, None], num_masks[:, None], 0)
    return StepPlan(num_drafts, num_drafts[:, None] + sizes)


VARIANTS = {  # arguments of answer() by the name in the results
    "as it is": {},
    "MASKs in proportion to the chances": {"plan_step": in_proportion},
    "one group behind all drafts": {"plan_step": behind_all_drafts},
    "window_size 8": {"window_size": 8},
    "window_size 32": {"window_size": 32},
    "look-up too": {"prompt_lookup_num_tokens": 15},
}


def answer(
    model: PreTrainedModel,
    inputs: dict,
    plan_step=verified.plan_step,
    window_size: int = 16,
    prompt_lookup_num_tokens: int = 0,
) -> GenerateDecoderOnlyOutput:
    with patch.object(verified, "plan_step", plan_step):
        return model.generate(
            **inputs,
            decoding="verified",
            window_size=window_size,
            query_cost=0,
            prompt_lookup_num_tokens=prompt_lookup_num_tokens,
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            return_dict_in_generate=True,
        )


def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, kind: str, num_examples: int, rounds: int, bar: tqdm
) -> list[dict]:
    """The numbers of each variant on one kind of questions."""
    tokens, forwards = (dict.fromkeys(VARIANTS, 0) for _ in range(2))
    milliseconds = {name: [] for name in VARIANTS}
    for example in held_out_examples(kind, num_examples):
        inputs = batch_of(tokenizer, [example], model.device)
        calls = {name: partial(answer, model, inputs, **variant) for name, variant in VARIANTS.items()}
        texts = set()
        for turn in take_turns(calls, model.device, rounds):
            num_tokens = turn.result.sequences.shape[1] - inputs["input_ids"].shape[1]
            tokens[turn.name] += num_tokens
            forwards[turn.name] += turn.result.forwards.item()
            milliseconds[turn.name].append(1000 * turn.seconds / num_tokens)
            texts.add(tuple(turn.result.sequences[0].tolist()))
        if len(texts) > 1:
            raise SystemExit(f"The variants wrote different texts for {example.prompt!r}.")
        bar.update()
    return [
        {
            "kind": kind,
            "variant": name,
            "tokens_per_forward": tokens[name] / forwards[name],
            "milliseconds_per_token": median_and_range(milliseconds[name]),
        }
        for name in VARIANTS
    ]


def table(results: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    lines = [
        [
            name,
            *(
                f"{numbers['tokens_per_forward']:.1f}, {numbers['milliseconds_per_token']['median']:.2f} ms"
                for numbers in results
                if numbers["variant"] == name
            ),
        ]
        for name in VARIANTS
    ]
    return markdown(["variant", *(kind.replace("_", " ") for kind in KINDS)], lines, left={"variant"})


def main() -> None:
    parser = new_parser(__doc__, "verified_variants")
    parser.add_argument("--num-examples", type=int, default=10, help="of each kind")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    model, tokenizer = load()
    results = []
    with tqdm(total=len(KINDS) * given.num_examples, unit=" questions") as bar:
        for kind in KINDS:
            results += measure(model, tokenizer, kind, given.num_examples, given.rounds, bar)
    print(table(results))
    save(given.out, results, "cpu", num_examples=given.num_examples, rounds=given.rounds)


if __name__ == "__main__":
    main()
