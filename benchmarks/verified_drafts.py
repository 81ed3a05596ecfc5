"""When tokens are drawn: how many drafts come true, by what a draft is.

    python benchmarks/verified_drafts.py [--num-examples 20] [--out ...results/verified_drafts.json]

A draft may be the token most likely at its MASK row, accepted if it is the token drawn; or a draw from that row's
distribution q, accepted with probability min(1, p / q), p being the judge's. The second accepts the sum of min(p, q),
the most that any rule can. Given that the text goes on with y, which is drawn from p, the draft was y with probability
1 if y is the most likely at the MASK row, else 0, in the first case, and min(1, q(y) / p(y)) in the second: so both
are judged on the same texts of the demo checkpoint, with no further draws. The number is the mean length of the run of
drafts accepted, behind every token of the texts, with 16 MASK rows. As in decoding, the first of them stands for the
token that the judge chooses, and the others are the drafts.
"""

import argparse
from pathlib import Path

import torch
from huggingface_hub.utils import tqdm
from transformers import AutoTokenizer

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.report import MAX_NEW_TOKENS, batch_of
from wedlm.demo.tasks import KINDS, held_out_examples
from wedlm.evaluation.provenance import write_report

TEMPERATURES = (0.5, 1.0)
NUM_MASKS = 16


def log_probabilities(logits: torch.Tensor, mask_token_id: int, temperature: float) -> torch.Tensor:
    return logits.float().index_fill(-1, torch.tensor([mask_token_id]), -torch.inf).div(temperature).log_softmax(-1)


@torch.no_grad()
def accepted(model, ids: torch.Tensor, prompt_length: int, temperature: float) -> dict[str, torch.Tensor]:
    """Of a text, `[number of its tokens]`: the expected length of the run accepted behind each, by kind of draft."""
    mask, length = model.config.mask_token_id, len(ids)
    judges = log_probabilities(model(ids[None], use_cache=False).logits[0], mask, temperature)
    starts = torch.arange(prompt_length, length)  # where the token stands that the judge chooses
    # Behind the text up to there come MASK rows, at the positions of what follows, all in one batch.
    columns = torch.arange(length + NUM_MASKS)
    rows = torch.where(columns < starts[:, None], torch.nn.functional.pad(ids, (0, NUM_MASKS)), mask)
    places = starts[:, None] + torch.arange(1, NUM_MASKS)  # [starts, drafts]
    masked = model(rows, use_cache=False).logits.gather(1, places[..., None].expand(-1, -1, model.config.vocab_size))
    q = log_probabilities(masked, mask, temperature)
    is_text = places < length
    text = ids[places.clamp(max=length - 1)]
    q_of_text = q.gather(-1, text[..., None])[..., 0]
    p_of_text = judges[places.clamp(max=length - 1) - 1].gather(-1, text[..., None])[..., 0]
    chances = {
        "most likely token": (q.argmax(-1) == text).float(),
        "drawn token": (q_of_text - p_of_text).exp().clamp(max=1),
    }
    return {name: (chance * is_text).cumprod(-1).sum(-1) for name, chance in chances.items()}


def table(results: list[dict]) -> str:
    """For benchmarks/RESULTS.md."""
    names = list(results[0]["accepted"])
    lines = [f"| | temperature | {' | '.join(names)} |", f"| --- | ---: |{' ---: |' * len(names)}"]
    for row in results:
        cells = [f"{row['accepted'][name]:.2f}" for name in names]
        lines.append(f"| {row['kind'].replace('_', ' ')} | {row['temperature']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=DEMO_FOLDER)
    parser.add_argument("--num-examples", type=int, default=20, help="held-out questions of each kind")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "verified_drafts.json")
    given = parser.parse_args()
    model = WeDLMForCausalLM.from_pretrained(given.checkpoint).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.checkpoint)
    results = []
    with tqdm(total=len(KINDS) * len(TEMPERATURES) * given.num_examples, unit=" texts") as bar:
        for kind in KINDS:
            for temperature in TEMPERATURES:
                torch.manual_seed(0)
                runs: dict[str, list[torch.Tensor]] = {}
                for example in held_out_examples(kind, given.num_examples):
                    inputs = batch_of(tokenizer, [example], model.device)
                    ids = model.generate(
                        **inputs,
                        decoding="autoregressive",
                        max_new_tokens=MAX_NEW_TOKENS,
                        do_sample=True,
                        temperature=temperature,
                        top_k=0,
                    )[0]
                    lengths = accepted(model, ids, inputs["input_ids"].shape[1], temperature)
                    for name, values in lengths.items():
                        runs.setdefault(name, []).append(values)
                    bar.update()
                means = {name: torch.cat(values).mean().item() for name, values in runs.items()}
                results.append({"kind": kind, "temperature": temperature, "accepted": means})
    print(table(results))
    write_report(given.out, results, model.device, num_examples=given.num_examples)


if __name__ == "__main__":
    main()
