"""The small Llama on the standard library by AdamW and by Muon: loss after the same steps, three seeds.

    python benchmarks/muon.py

Each optimizer has the best of three rates by the first seed. One process, 150 steps of 1,024 tokens.
Measured (2026-11-29, a busy machine of two x86 cores, torch 2.13): AdamW 5.652, 5.559, 5.619 at 0.0015
(0.00075: 5.924, 0.003: 5.702), Muon 4.775, 4.796, 4.782 at 0.012 (0.003: 4.985, 0.006: 4.793).
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from llama_stdlib import LlamaStdlib  # noqa: E402

from trainer import TrainConfig, Trainer  # noqa: E402

RATES = {"adamw": (7.5e-4, 1.5e-3, 3e-3), "muon": (3e-3, 6e-3, 1.2e-2)}
SEEDS = (0, 1, 2)


def loss_of(optimizer: str, lr: float, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        config = TrainConfig(
            task="llama_stdlib:LlamaStdlib",
            output_dir=folder,
            max_steps=150,
            micro_batch_size=8,
            optimizer=optimizer,
            lr=lr,
            schedule="cosine",
            warmup_steps=10,
            max_grad_norm=1.0,
            seed=seed,
            keep_last=0,
        )
        trainer = Trainer(LlamaStdlib(), config)
        trainer.fit()
        loss = trainer.run.evaluate()["eval/loss"]
        trainer.run.close()
    return float(loss)


def main() -> None:
    for optimizer, rates in RATES.items():
        first = {lr: loss_of(optimizer, lr, SEEDS[0]) for lr in rates}
        best = min(first, key=lambda lr: first[lr])
        losses = [first[best], *(loss_of(optimizer, best, seed) for seed in SEEDS[1:])]
        tried = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in first.items())
        told = ", ".join(f"{loss:.3f}" for loss in losses)
        print(f"{optimizer} lr {best:g} ({tried}): {told}, mean {statistics.mean(losses):.3f}")


if __name__ == "__main__":
    main()
