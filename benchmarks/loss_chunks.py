"""CPU time of the loss of a large vocabulary, forward and backward: in chunks, beside all at once.

    python benchmarks/loss_chunks.py 512 256 512      # tokens, then tokens of a chunk

One thread, 151,936 words, 64 features: so few that passes over logits and weight count, not the
matrix products. The ways take turns; the first turn is left out.

measured (2026-11-24, at 379ab6a, two x86 CPU cores with a load of 30, torch 2.13; three turns), CPU time of plain:
chunks of 256 tokens 0.73 (0.69 to 0.75), of 512, so one chunk, 0.72 (0.69 to 0.73).
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F

from trainer.language.loss import ChunkedLoss

chunked: Any = ChunkedLoss.apply
WORDS, FEATURES, TURNS = 151_936, 64, 4


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens, *chunks = map(int, sys.argv[1:])
    hidden = torch.randn(tokens, FEATURES, requires_grad=True)
    weight = (0.02 * torch.randn(WORDS, FEATURES)).requires_grad_()
    targets = torch.randint(WORDS, (tokens,))

    def seconds(rows: int) -> float:
        """Return the CPU time with chunks of so many tokens; 0: all logits at once."""
        hidden.grad = weight.grad = None
        began = time.process_time()
        if rows:
            loss = chunked(hidden, weight, targets, rows, torch.float32, True)
        else:
            loss = F.cross_entropy(F.linear(hidden, weight), targets)
        loss.backward()
        return time.process_time() - began

    ways = [0, *chunks]
    took: dict[int, list[float]] = {rows: [] for rows in ways}
    for turn in range(TURNS):
        for rows in ways if turn % 2 else ways[::-1]:
            took[rows].append(seconds(rows))
    for rows in chunks:
        ratios = [own / plain for own, plain in zip(took[rows][1:], took[0][1:], strict=True)]
        median = statistics.median(ratios)
        print(f"{rows} tokens: {median:.2f} x plain ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
