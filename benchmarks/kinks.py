"""How far one rounding of the weights carries in fifty steps of one process: a network with kinks,
and one without.

    python benchmarks/kinks.py

ReLU and max pooling choose. Where two pooled values, or a ReLU's input and zero, are as close as a
rounding, a difference of 1e-7 takes the other branch, and the gradient of that sample jumps. No
strategy has a part in it: here there is one process and no trainer. The same network with SiLU and
mean pooling has nothing to choose.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from digits_cnn import DigitsCNN  # noqa: E402
from smooth_cnn import SmoothCNN  # noqa: E402

STEPS, BATCH, RUNS = 50, 32, 5


def build(smooth: bool, perturbed_by: int) -> nn.Module:
    """The CNN of the example from seed 0; its weights are changed by up to half of float32's last
    place.
    """
    torch.manual_seed(0)
    model = (SmoothCNN if smooth else DigitsCNN)().build_model()
    generator = torch.Generator().manual_seed(perturbed_by)
    with torch.no_grad():
        for parameter in model.parameters() if perturbed_by else ():
            parameter.mul_(1 + (torch.rand(parameter.shape, generator=generator) - 0.5) * 2.0**-23)
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[float], list[float]]:
    """Loss and gradient norm of each step."""
    data = DigitsCNN().build_data().train
    losses, norms = [], []
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(data)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.images[rows]), data.labels[rows])
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), float("inf"))))
        losses.append(loss.item())
        optimizer.step()
    return losses, norms


def main() -> None:
    torch.set_num_threads(1)
    kinds = {
        "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
    }
    print("| optimizer | network | loss differs by | norm differs by |\n|---|---|---|---|")
    for name, optimizer in kinds.items():
        for smooth in (False, True):
            reference, *runs = (
                train(m, optimizer(m)) for m in (build(smooth, k) for k in range(RUNS + 1))
            )
            off = [
                [
                    max(abs(a / b - 1) for a, b in zip(run[kind], reference[kind], strict=True))
                    for run in runs
                ]
                for kind in (0, 1)
            ]
            shown = (", ".join(f"{value:.0e}" for value in sorted(values)) for values in off)
            print(
                f"| {name} | {'SiLU, mean pooling' if smooth else 'ReLU, max pooling'} | {' | '.join(shown)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
