"""Draws dual-stream.svg: the two streams of training, and which query sees which key.

Run `python docs/images/draw_dual_stream.py` after a change of the mask.
"""

from itertools import groupby
from pathlib import Path

import torch

from wedlm import DualStreamCollator
from wedlm.training.dual_stream import MEMORY, PREDICTION, StreamQueries, dense_mask

FILE = Path(__file__).with_name("dual-stream.svg")
WORDS = ["The", "cat", "sat", "on", "the", "mat"]
MASK = len(WORDS)
BLOCK_SIZE = 2
SEED = 16  # masks one token of a block, the first token of another, and all of the third

WIDTH, HEIGHT = 760, 600
LEFT, CELL = 130, 26  # of the mask
SEEN = {  # by the streams of a query and of a key
    (MEMORY, MEMORY): ("text", "the text up to itself"),
    (PREDICTION, MEMORY): ("earlier", "the text of earlier blocks"),
    (PREDICTION, PREDICTION): ("own", "its own block, up to itself"),
}
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #24292f; } .note { fill: #57606a; } .middle { text-anchor: middle; }
    .end { text-anchor: end; } .page { fill: #fff; }
    .unseen { fill: #f0f1f3; } .text { fill: #9fa8da; } .earlier { fill: #80cbc4; } .own { fill: #ffb74d; }
    .masked { fill: none; stroke: #57606a; stroke-dasharray: 4 3; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6e8ee; } .note { fill: #a7adba; } .page { fill: #1e2129; } .masked { stroke: #a7adba; }
      .unseen { fill: #2b2f3a; } .text { fill: #5c6bc0; } .earlier { fill: #00897b; } .own { fill: #a86200; }
    }
"""


def text(x: float, y: float, words: str, kind: str = "", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}"{more}>{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, more: str = "") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}"{more}/>'


def streams_of_the_sentence() -> dict[str, torch.Tensor]:
    tokens = list(range(len(WORDS)))
    sequence = {"input_ids": tokens, "labels": tokens, "sample_lengths": [len(tokens)], "sample_indices": [0]}
    batch = DualStreamCollator(mask_token_id=MASK, block_size=BLOCK_SIZE, seed=SEED)([sequence])
    return {name: values[0] for name, values in batch.items()}


def drawn_stream(
    y: float, title: str, names: list[str], row: dict[str, torch.Tensor], queries: list[int]
) -> list[str]:
    """A line of boxes with the tokens of a stream; a gap is between two blocks."""
    parts, x = [text(LEFT - 10, y + 22, title, "end")], LEFT
    for number, block in groupby(queries, key=lambda i: row["block_ids"][i].item()):
        if title == "memory":
            parts.append(text(x + 79, y - 8, f"block {number}", "note middle"))
        for i in block:
            kind = "masked" if names[i] == "MASK" else "text" if row["stream_ids"][i] == MEMORY else "own"
            position = row["position_ids"][i].item()
            parts += [box(x, y, 76, 34, kind, ' rx="4"'), text(x + 38, y + 22, names[i], "middle")]
            parts.append(text(x + 38, y + 51, f"position {position}", "note middle"))
            x += 82
        x += 14
    return parts


def drawn_mask(top: float, names: list[str], row: dict[str, torch.Tensor], sees: torch.Tensor) -> list[str]:
    """Queries from top to bottom, keys from left to right, and the target of each query."""
    streams, targets = row["stream_ids"].tolist(), row["targets"].tolist()
    gap = 8  # between the streams
    starts = [CELL * i + gap * stream for i, stream in enumerate(streams)]
    right, bottom = LEFT + starts[-1] + CELL, top + starts[-1] + CELL
    parts = [text(right + 14, top - 12, "target", "note"), text(LEFT - 10, top - 12, "query", "note end")]
    for i, start in enumerate(starts):
        y, x = top + start, LEFT + start + CELL / 2 + 5
        parts.append(text(LEFT - 10, y + 18, f"{names[i]}, {row['position_ids'][i]}", "end"))
        parts.append(text(x, top - 8, names[i], "note", f' transform="rotate(-90 {x:g} {top - 8:g})"'))
        if targets[i] >= 0:
            parts.append(text(right + 14, y + 18, WORDS[targets[i]]))
        for j, key_start in enumerate(starts):
            kind = SEEN[streams[i], streams[j]][0] if sees[i, j] else "unseen"
            parts.append(box(LEFT + key_start, y, CELL - 2, CELL - 2, kind, ' rx="3"'))
    parts.append(text(right + 80, top - 12, "a query sees", "note"))
    for k, (kind, words) in enumerate(SEEN.values()):
        y = top + 4 + 22 * k
        parts += [box(right + 80, y, 14, 14, kind, ' rx="3"'), text(right + 102, y + 12, words)]
    middle = len(WORDS) * CELL
    for y, words in ((top + middle / 2, "memory"), (bottom - middle / 2, "prediction")):
        parts.append(text(24, y, words, "note middle", f' transform="rotate(-90 24 {y:g})"'))
    return parts


def picture() -> str:
    row = streams_of_the_sentence()
    place = torch.arange(len(row["input_ids"]))
    ids = (row[name][None] for name in ("sample_ids", "stream_ids", "block_ids"))
    sees = dense_mask(StreamQueries(*ids, place[None]))[0, 0]
    names = [[*WORDS, "MASK"][token] for token in row["input_ids"].tolist()]
    queries = {stream: place[row["stream_ids"] == stream].tolist() for stream in (MEMORY, PREDICTION)}
    parts = [
        box(0, 0, WIDTH, HEIGHT, "page", ' rx="8"'),
        *drawn_stream(34, "memory", names, row, queries[MEMORY]),
        *drawn_stream(108, "prediction", names, row, queries[PREDICTION]),
        *drawn_mask(252, names, row, sees),
    ]
    label = "Six tokens in both streams, and a square of queries and keys that shows which query sees which key"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    return "\n".join([head, f"  <style>{STYLE}  </style>", *(f"  {part}" for part in parts), "</svg>", ""])


if __name__ == "__main__":
    FILE.write_text(picture(), encoding="utf-8")
