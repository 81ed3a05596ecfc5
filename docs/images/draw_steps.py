"""Draws the pictures of docs/how-it-works.md, from steps that the demo checkpoint takes."""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from wedlm.checkpoints.prompt_ids import encode
from wedlm.commands.trace import Recorder, Tracer
from wedlm.generation.streaming import entropy_of

CHECKPOINT = Path(__file__).parents[2] / "hub_card" / "wedlm-demo"
PROMPT = "Count down by 2 from 20 to 10."
QUERY_COST = 0.04  # With the default of a CPU no forward of this answer has two groups of MASKs.
OPTIONS = {"window_size": 6, "do_sample": False, "max_new_tokens": 64}
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } rect { stroke: #59636e } .bold { font-weight: bold }
.token { font: 12px ui-monospace, monospace; text-anchor: middle } .note { font-size: 10px } .faint { fill: #59636e }
.page, .open, .unused { fill: #fff } .open { stroke-dasharray: 4 3 } .struck { text-decoration: line-through }
.grey { fill: #e4e8ec } .blue { fill: #cfe4ff } .green { fill: #aceebb } .red { fill: #ffcfc9 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } rect { stroke: #9aa4af } .faint { fill: #9aa4af } .page, .open, .unused { fill: #161b22 }
.grey { fill: #343b44 } .blue { fill: #1d4a80 } .green { fill: #1c6b38 } .red { fill: #8a302c }
}
</style><rect width="100%" height="100%" class="page"/>"""


class Step(NamedTuple):
    """A forward, as it was recorded. Slot 0 is the first place behind the prompt."""

    tokens: list[str]  # the queries behind the prompt
    slots: list[int]  # of these
    masks: list[int]  # the queries that are MASKs
    drafts: list[str]  # in verified decoding, the tokens between the last one of the text and the MASKs
    seen: torch.Tensor | None  # [queries, entries of the cache], as the model got it; None: all before the query
    entropies: list[float]  # of the queries whose logits were read
    predicted: list[str]  # by the same queries
    new: list[str]  # the tokens that became final
    window: list[str]  # the tokens behind them
    filled: list[bool]  # by slot of the window
    num_accepted: int  # of the drafts

    @property
    def groups(self) -> dict[int, list[int]]:
        """The MASKs of each group, by the number of drafts that they see."""
        groups = {}
        for mask in self.masks:
            num_seen = int(self.seen[mask, -len(self.tokens) :][: self.masks[0]].sum())
            groups.setdefault(num_seen - 1, []).append(mask)
        return groups


def record(decoding: str) -> Iterator[Step]:
    """Answers the prompt: a hook gets what the model reads and returns, the streamer of `wedlm trace` what follows."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(CHECKPOINT), AutoTokenizer.from_pretrained(CHECKPOINT)
    prompt, mask_token = encode(model, tokenizer, PROMPT, raw=False), model.config.mask_token_id
    calls, recorder, tracer = [], Recorder(), Tracer(tokenizer, verifies_drafts=True)
    names = {mask_token: "MASK", model.config.eos_token_id: "END"}
    model.register_forward_hook(lambda *call: calls.append((call[2], call[3].logits[0].clone())), with_kwargs=True)
    cost = {"query_cost": QUERY_COST} if decoding == "verified" else {}
    model.generate(torch.tensor([prompt]), decoding=decoding, streamer=recorder, **cost, **OPTIONS)

    def texts(tokens: list[int]) -> list[str]:
        return [names.get(t) or tokenizer.decode([t]).replace(" ", "␣").replace("\n", "⏎") for t in tokens]

    for (inputs, logits), forward in zip(calls, recorder.forwards, strict=True):
        slots, mask = inputs["position_ids"][0] - len(prompt), inputs["attention_mask"]
        tokens = texts(inputs["input_ids"][0, slots >= 0].tolist())
        yield Step(
            tokens=tokens,
            masks=[i for i, token in enumerate(tokens) if token == "MASK"],
            drafts=[token for token in tokens[1:] if token != "MASK"],
            slots=slots[slots >= 0].tolist(),
            seen=None if mask is None else mask[0, 0],
            entropies=entropy_of(logits).tolist(),
            predicted=texts(logits.index_fill(1, torch.tensor(mask_token), -torch.inf).argmax(-1).tolist()),
            new=texts(forward.new),
            window=texts(forward.window),
            filled=forward.filled,
            num_accepted=tracer.step(forward).num_accepted,
        )


class Drawing:
    """The elements of an SVG."""

    def __init__(self, width: int, **legend: str):
        self.width, self.elements, x = width, [STYLE], 90
        for kind, meaning in legend.items():
            self.box(x, 12, 18, 14, kind)
            self.text(x + 24, 24, meaning, "faint")
            x += 44 + 6.6 * len(meaning)

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        self.elements.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        self.elements.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"/>')

    def cell(self, x: float, y: float, width: float, kind: str, text: str, *notes: str) -> None:
        """A box with a token, and small lines below it."""
        self.box(x, y, width, 26, kind)
        look = "faint" if kind in ("open", "unused") else "struck" if kind == "red" else ""
        self.text(x + width / 2, y + 17, text, f"token {look}")
        for i, note in enumerate(notes):
            self.text(x + width / 2, y + 37 + 11 * i, note, "token note faint")

    def save(self, path: Path, height: int) -> None:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" viewBox="0 0 {self.width} {height}">'
        path.write_text("\n".join([head, *self.elements, "</svg>\n"]), encoding="utf-8")


def draw_streaming(steps: list[Step], path: Path) -> None:
    """A row for each forward and a column for each slot, then the input of one forward in its order."""
    legend = {"grey": "in the KV cache", "blue": "filled before, in the input", "green": "filled by this forward"}
    drawing, text = Drawing(900, **legend, open="stays open"), []
    config = GenerationConfig.from_pretrained(CHECKPOINT)
    rule = f"its entropy + {config.distance_penalty} × its distance from the first open slot"
    drawing.text(90, 46, f"Below a slot: {rule}. It is filled if this is below {config.entropy_threshold}.", "faint")
    for slot in range(max(steps[-1].slots) + 1):
        drawing.text(109 + 38 * slot, 66, str(slot), "token note faint")
    for number, step in enumerate(steps, start=1):
        y, masks = 18 + 54 * number, [step.slots[i] for i in step.masks]
        drawing.text(10, y + 17, f"forward {number}", "bold")
        tokens, is_filled = [*text, *step.new, *step.window], [True] * len([*text, *step.new]) + step.filled
        for slot in range(max(step.slots) + 1):
            kind, notes = "blue" if slot in step.slots else "grey", ()
            if slot in masks:
                kind = "unused" if slot >= len(tokens) else "green" if is_filled[slot] else "open"
                penalty = config.distance_penalty * (slot - masks[0])
                notes = f"{step.entropies[masks.index(slot)]:.2f}", f"+{penalty:.2f}"
            token = "MASK" if kind in ("open", "unused") else tokens[slot]
            drawing.cell(90 + 38 * slot, y, 38, kind, token, *notes)
        text = [*text, *step.new]
    number, step = next((i, step) for i, step in enumerate(steps, start=1) if step.slots != sorted(step.slots))
    y = 92 + 54 * len(steps)
    drawing.text(90, y, f"The input of forward {number}, in its order:", "faint")
    drawing.cell(90, y + 10, 170, "grey", f"prompt, slots 0 to {min(step.slots) - 1}", "in the KV cache")
    for i, (token, slot) in enumerate(zip(step.tokens, step.slots, strict=True)):
        drawing.cell(270 + 50 * i, y + 10, 50, "open" if i in step.masks else "blue", token, f"slot {slot}")
    drawing.save(path, y + 60)


def draw_verified(steps: list[Step], path: Path) -> None:
    """For each forward its input, and below each slot the token that is predicted for it."""
    legend = {"grey": "last token", "green": "accepted or written", "red": "first rejected draft"}
    drawing = Drawing(880, **legend, blue="draft of the next forward", unused="not used")
    for number, (step, following) in enumerate(zip(steps, [*steps[1:], None], strict=True), start=1):
        y, accepted, drafts = 126 * number - 74, step.num_accepted, following.drafts if following else []
        used = step.groups.get(accepted, [])[1 : len(drafts) + 1]  # The first MASK of a group makes no draft.
        is_looked_up = drafts != [step.predicted[mask] for mask in used]
        kinds = ["grey", *["green"] * accepted, *["red"] * (len(step.new) - accepted), *["unused"] * len(step.drafts)]
        counts = f"{accepted} of {len(step.drafts)} drafts accepted, {len(step.new)} written"
        drawing.text(10, y, f"forward {number}", "bold")
        drawing.text(90, y, counts + f"; next drafts looked up: {' '.join(drafts)}" * is_looked_up)
        drawing.text(10, y + 29, "input", "faint")
        drawing.text(10, y + 87, "predicted", "faint")
        for i, token in enumerate([step.tokens[0], *step.drafts] if step.tokens else ["prompt"]):
            drawing.cell(90 + 54 * i, y + 12, 54, kinds[i], token, *[f"slot {slot}" for slot in step.slots[i : i + 1]])
            drawing.cell(144 + 54 * i, y + 70, 54, "green" if i < len(step.new) else "unused", step.predicted[i])
        for place, (group, masks) in enumerate(step.groups.items(), start=1):
            x, is_used = 144 + 54 * masks[0] + 12 * place, group == accepted and bool(drafts) and not is_looked_up
            drawing.text(x, y + 64, f"if {group} accepted", "bold" if is_used else "faint")
            for i, mask in enumerate(masks):
                drawing.cell(x + 54 * i, y + 12, 54, "open", "MASK", f"slot {step.slots[mask]}")
                kind, shown = "blue" if is_used and mask in used else "unused", step.predicted[mask] if i else "–"
                drawing.cell(x + 54 * i, y + 70, 54, kind, shown)
    drawing.save(path, 126 * len(steps) + 40)


def draw_attention(steps: list[Step], path: Path) -> None:
    """A row for each query of the first forward with two groups of MASKs, with a box for each query that it sees."""
    number, step = next((i, step) for i, step in enumerate(steps, start=1) if len(step.groups) > 1)
    drawing = Drawing(870, blue=f"seen by the query of the row, in forward {number}", unused="not seen")
    gaps = {mask: 12 * place for place, masks in enumerate(step.groups.values(), start=1) for mask in masks}
    columns = [190 + 44 * i + gaps.get(i, 0) for i in range(len(step.tokens))]
    rows = [88 + 30 * i + gaps.get(i, 0) for i in range(len(step.tokens))]
    drawing.cell(90, 40, 88, "grey", "KV cache", "the prompt")
    for i, (token, slot) in enumerate(zip(step.tokens, step.slots, strict=True)):
        kind, seen = "open" if i in gaps else "grey", step.seen[i].tolist()
        drawing.cell(columns[i], 40, 44, kind, token, f"slot {slot}")
        drawing.cell(20, rows[i], 58, kind, token)
        drawing.box(90, rows[i], 88, 26, "blue" if all(seen[: -len(columns)]) else "unused")
        for column, is_seen in zip(columns, seen[-len(columns) :], strict=True):
            drawing.box(column, rows[i], 44, 26, "blue" if is_seen else "unused")
    for group, masks in {"": [0], **step.groups}.items():
        name = f"if {group} accepted" if masks[0] else "text and drafts"
        drawing.text(columns[-1] + 56, rows[masks[0]] + 17, name, "faint")
    drawing.save(path, rows[-1] + 40)


def draw(folder: Path) -> None:
    draw_streaming(list(record("streaming")), folder / "streaming.svg")
    draw_verified(steps := list(record("verified")), folder / "verified.svg")
    draw_attention(steps, folder / "verified-attention.svg")


if __name__ == "__main__":
    draw(Path(__file__).parent)
