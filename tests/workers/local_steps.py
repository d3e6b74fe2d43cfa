"""Run on several ranks: FSDP2 with steps on rows as ordinary tensors, and with steps on DTensors.

    ranks ... tests/workers/local_steps.py accel_configs/fsdp.yaml FOLDER

Prints the losses and a digest of weights and optimizer state, which must be the same to the bit;
each of the two also continues from the other's checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import trainer
from trainer import Data, Task, TrainConfig, Trainer
from trainer.launching import launch
from trainer.strategies import fsdp
from trainer.strategies.tensors import local

STEPS = 8
# Shared with overlapped.py, which trains the same task.
SETTINGS: dict[str, Any] = {
    "task": "local_steps:Small",
    "max_steps": STEPS,
    "log_every": 1,
    "micro_batch_size": 4,
    "accumulation_steps": 2,
    "lr": 1e-2,
    "max_grad_norm": 0.5,
    "mixed_precision": "no",
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw"},
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
}


class Small(Task):
    """Five rows and one row, which two ranks cannot share evenly."""

    def build_data(self) -> Data:
        drawn = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
        return Data(train=[{"x": row} for row in drawn])

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = (model(batch["x"]) - 1.0).square().mean()
        return loss


def digest(trainer_: Trainer) -> str:
    found = hashlib.sha256()
    strategy = trainer_.run.strategy
    for _, parameter in strategy.parameters():
        values = [parameter]
        for _, value in sorted(strategy.optimizer.state[parameter].items()):
            assert not isinstance(value, Tensor) or not value.dim() or isinstance(value, DTensor)
            values.append(torch.as_tensor(value))
        for value in values:
            found.update(local(value.detach()).contiguous().numpy().tobytes())
    return found.hexdigest()


def one(file: str, folder: Path, *, rows: bool, settings: dict[str, Any]) -> tuple[Any, str]:
    allowed = fsdp.WITH_KNOWN_STATE
    if not rows:
        fsdp.WITH_KNOWN_STATE = ()
    config = TrainConfig(
        output_dir=str(folder), save_every=STEPS // 2, ema_decay=0.9, **SETTINGS, **settings
    )
    made = Trainer(Small(), config, launch(config, accel_config=file))
    fsdp.WITH_KNOWN_STATE = allowed
    strategy: Any = made.run.strategy
    assert (strategy._local_step is not None) == rows
    losses = [info.metrics["loss"] for info in made.steps() if info.metrics]
    found = digest(made)
    made.run.close()
    return losses, found


def main() -> None:
    file, folder = sys.argv[1], Path(sys.argv[2])
    equal = {}
    for name, settings in OPTIMIZERS.items():
        of_rows = one(file, folder / name / "rows", rows=True, settings=settings)
        of_whole = one(file, folder / name / "divided", rows=False, settings=settings)
        assert len(of_rows[0]) == STEPS
        equal[name] = of_rows == of_whole

        for rows, source in ((True, "divided"), (False, "rows")):
            middle = folder / name / source / "checkpoints" / f"step-{STEPS // 2:08d}"
            again = {**settings, "resume": str(middle)}
            losses, found = one(file, folder / name / f"from_{source}", rows=rows, settings=again)
            equal[f"{name} from {source}"] = (losses, found) == (
                of_rows[0][STEPS // 2 :],
                of_rows[1],
            )
    rank = torch.distributed.get_rank()
    (folder / f"equal-{rank}.json").write_text(json.dumps(equal))


if __name__ == "__main__":
    trainer.run_and_exit(main)
