"""How many drafts are accepted when tokens are drawn, by the kind of draft.

    python benchmarks/verified_drafts.py [--num-examples 20] [--out ...results/verified_drafts.json]

There are two kinds. A draft may be the most likely token of its MASK query, which is accepted if the judge draws the
same token. Or it may be drawn from the distribution q of the MASK query, and is then accepted with probability min(1,
p / q), where p is the judge's distribution. The second rule accepts a draft with a probability of sum(min(p, q)), and
no rule can do better.

Both kinds are judged on the same texts of the demo checkpoint, without further draws. Given that the text goes on with
the token y, which was drawn from p, the draft was y with probability 1 if y is the most likely token of the MASK query
and 0 if it is not; with drawn drafts the probability is min(1, q(y) / p(y)). The number is the mean length of the run
of accepted drafts behind each token of the texts, with 16 MASK queries. As in decoding, the first of them stands for
the token that the judge chooses, and the others predict the drafts.
"""

from pathlib import Path

import torch
from common import load, markdown, new_parser, save
from huggingface_hub.utils import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from examples.demo.tasks import KINDS, MAX_NEW_TOKENS, batch_of, held_out_examples
from wedlm.checkpoints.demo_folder import DEMO_FOLDER

TEMPERATURES = (0.5, 1.0)
NUM_MASKS = 16


def log_probabilities(logits: torch.Tensor, mask_token_id: int, temperature: float) -> torch.Tensor:
    return logits.float().index_fill(-1, torch.tensor([mask_token_id]), -torch.inf).div(temperature).log_softmax(-1)


@torch.no_grad()
def accepted(
    model: PreTrainedModel, ids: torch.Tensor, prompt_length: int, temperature: float
) -> dict[str, torch.Tensor]:
    """`[new tokens]` by kind of draft: the expected number of successive drafts accepted behind each token."""
    mask, length = model.config.mask_token_id, len(ids)
    judges = log_probabilities(model(ids[None], use_cache=False).logits[0], mask, temperature)
    starts = torch.arange(prompt_length, length)  # positions of the tokens that the judge chooses
    # The text up to each of these positions with MASK queries behind it, all in one batch.
    columns = torch.arange(length + NUM_MASKS)
    masked_ids = torch.where(columns < starts[:, None], torch.nn.functional.pad(ids, (0, NUM_MASKS)), mask)
    places = starts[:, None] + torch.arange(1, NUM_MASKS)  # [starts, drafts]
    logits = model(masked_ids, use_cache=False).logits
    q = log_probabilities(
        logits.gather(1, places[..., None].expand(-1, -1, model.config.vocab_size)), mask, temperature
    )
    is_text = places < length
    text = ids[places.clamp(max=length - 1)]
    q_of_text = q.gather(-1, text[..., None])[..., 0]
    p_of_text = judges[places.clamp(max=length - 1) - 1].gather(-1, text[..., None])[..., 0]
    chances = {
        "most likely token": (q.argmax(-1) == text).float(),
        "drawn token": (q_of_text - p_of_text).exp().clamp(max=1),
    }
    return {name: (chance * is_text).cumprod(-1).sum(-1) for name, chance in chances.items()}


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    kind: str,
    temperature: float,
    num_examples: int,
    bar: tqdm,
) -> dict:
    """The mean run of accepted drafts by kind of draft, for one kind of questions at one temperature."""
    torch.manual_seed(0)
    runs: dict[str, list[torch.Tensor]] = {}
    for example in held_out_examples(kind, num_examples):
        inputs = batch_of(tokenizer, [example], model.device)
        ids = model.generate(
            **inputs,
            decoding="autoregressive",
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=True,
            temperature=temperature,
            top_k=0,
        )[0]
        for name, lengths in accepted(model, ids, inputs["input_ids"].shape[1], temperature).items():
            runs.setdefault(name, []).append(lengths)
        bar.update()
    means = {name: torch.cat(lengths).mean().item() for name, lengths in runs.items()}
    return {"kind": kind, "temperature": temperature, "accepted": means}


def table(results: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    names = list(results[0]["accepted"])
    lines = [
        [
            measured["kind"].replace("_", " "),
            measured["temperature"],
            *(f"{measured['accepted'][name]:.2f}" for name in names),
        ]
        for measured in results
    ]
    return markdown(["texts", "temperature", *names], lines, left={"texts"})


def main() -> None:
    parser = new_parser(__doc__, "verified_drafts")
    parser.add_argument("--checkpoint", type=Path, default=DEMO_FOLDER)
    parser.add_argument("--num-examples", type=int, default=20, help="held-out questions of each kind")
    given = parser.parse_args()
    model, tokenizer = load(given.checkpoint)
    with tqdm(total=len(KINDS) * len(TEMPERATURES) * given.num_examples, unit=" texts") as bar:
        results = [
            measure(model, tokenizer, kind, temperature, given.num_examples, bar)
            for kind in KINDS
            for temperature in TEMPERATURES
        ]
    print(table(results))
    save(given.out, results, model.device, num_examples=given.num_examples)


if __name__ == "__main__":
    main()
