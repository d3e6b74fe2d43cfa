"""Tasks whose numbers depend on what each rank holds, and cases that look into a run.

The script trains configs (trainings.py), and then each case. ``results.json`` has what each rank
says of the cases.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import trainings
from of_all_ranks import leave, of_all
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import trainer
from trainer import Callback, Data, Run, StepInfo, Task, TrainConfig, Trainer
from trainer.distributed import agreement
from trainer.distributed.exit import Stopped
from trainer.launching import launch


class Masked(Task):
    """A mean over unmasked targets, which is 0 / 0 where all are masked; ``hole`` is its mask's
    share.
    """

    def build_data(self) -> Data:
        return Data(train=masked_items())

    def build_model(self) -> nn.Module:
        return nn.Linear(3, 2)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        errors = (model(batch["x"]) - batch["y"]).square().sum(-1) * batch["mask"]
        return errors.sum() / batch["mask"].sum()

    def weight(self, batch: Any) -> Tensor:
        return batch["mask"].sum()


class LeftOut(Masked):
    """The same mean. The collate leaves masked examples out, all of some micro-batches."""

    weight = Task.weight

    def build_data(self) -> Data:
        return Data(train=masked_items(), collate=without_masked)


class Parts(Masked):
    """A mean over unmasked targets and a mean over all numbers: a loss of two parts."""

    def build_data(self) -> Data:
        return Data(train=masked_items(), evaluation=masked_items()[:7])

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        outputs = model(batch["x"])
        errors = (outputs - batch["y"]).square().sum(-1) * batch["mask"]
        return {
            "errors": errors.sum() / batch["mask"].sum().clamp(min=1),
            "sizes": outputs.abs().mean(),
        }

    def weight(self, batch: Any) -> Any:
        return {"errors": batch["mask"].sum(), "sizes": batch["y"].numel()}


def without_masked(items: Any) -> dict[str, Tensor]:
    kept = [item for item in items if item["mask"]]
    first = items[0]
    return {
        key: torch.stack([item[key] for item in kept]) if kept else first[key][None][:0]
        for key in first
    }


def masked_items() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(3, generator=generator),
            "y": torch.randn(2, generator=generator),
            "mask": torch.tensor(float(index % 3 != 0)),
        }
        for index in range(22)
    ]


@dataclass(frozen=True, kw_only=True)
class Images(Task):
    """A CNN with batch normalisation and, if asked for, dropout; ``scale`` of the loss lets fp16
    overflow.
    """

    norm: bool = True
    dropout: float = 0.0
    scale: float = 1.0

    def build_data(self) -> Data:
        generator = torch.Generator().manual_seed(2)
        labels = torch.arange(44) % 4
        images = torch.randn(44, 1, 6, 6, generator=generator) + labels[:, None, None, None]
        items = [
            {"image": image, "label": label} for image, label in zip(images, labels, strict=True)
        ]
        return Data(train=items[:33], evaluation=items[33:])

    def build_model(self) -> nn.Module:
        normal = nn.BatchNorm2d(8) if self.norm else nn.GroupNorm(2, 8)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3),
            normal,
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Flatten(),
            nn.Linear(8 * 4 * 4, 4),
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["image"]), batch["label"]) * self.scale

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        logits = model(batch["image"])
        loss = F.cross_entropy(logits, batch["label"], reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch["label"]).float()}


class Tells(Callback):
    """Leaves what each rank has at the end of its run."""

    def on_end(self, trainer: Run, summary: Mapping[str, Any]) -> None:
        buffers = dict(trainer.model.named_buffers())
        mine = {
            "buffers": {
                name.removeprefix("module."): buffer.double().flatten().tolist()
                for name, buffer in buffers.items()
            },
            "types": sorted({str(buffer.dtype) for buffer in buffers.values()}),
            "evaluation": trainer.last_evaluation,
            "drawn": torch.rand(3).tolist(),
        }
        leave(trainer.directory.path / "told.json", of_all(mine))


def made_of(task: Task, accel: str, folder: Path, *callbacks: Callback, **settings: Any) -> Trainer:
    defaults = {"max_steps": 6, "micro_batch_size": 2}
    config = TrainConfig(task="rank_numbers:x", output_dir=str(folder), **{**defaults, **settings})
    return Trainer(task, config, launch(config, accel_config=accel), callbacks=callbacks)


class Uploads(Callback):
    """The main process has something of its own to do at the end."""

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        pass

    def on_end(self, trainer: Run, summary: dict[str, Any]) -> None:
        if trainer.is_main:
            time.sleep(0.5)
            (trainer.directory.path / "uploaded").touch()


def waits(accel: str, folder: Path) -> dict[str, Any]:
    """The time-outs of all groups, in minutes; and whether this rank waited for the main process at
    the end.
    """
    made_of(Masked(), accel, folder, Uploads(), max_steps=1, timeout_minutes=7.5).fit()
    waited = (folder / "uploaded").exists()
    groups = [
        group._get_backend(torch.device("cpu")) for group in dist.distributed_c10d._world.pg_map
    ]
    return {
        "waited": waited,
        "minutes": [group.options._timeout.total_seconds() / 60 for group in groups],
    }


@dataclass(frozen=True, kw_only=True)
class LosesOne(Images):
    """The loss of rank 1 has no value in the third step."""

    norm: bool = False
    calls: list[int] = field(default_factory=list, compare=False)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls.append(0)
        loss = super().training_step(model, batch)
        return loss * float("nan") if len(self.calls) == 3 and dist.get_rank() == 1 else loss


class LosesGradient(LosesOne):
    """The gradient of rank 1 has no value in the third step, whose loss has one."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        self.calls.append(0)
        loss = Images.training_step(self, model, batch)
        if len(self.calls) == 3 and dist.get_rank() == 1:
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss


def nan_stops(accel: str, folder: Path) -> dict[str, Any]:
    """At a step that is neither logged nor saved."""
    gradient = folder.with_name(f"{folder.name}_gradient")
    return {
        **nan_stop(LosesOne(), accel, folder),
        "gradient": nan_stop(LosesGradient(), accel, gradient),
    }


def nan_stop(task: Task, accel: str, folder: Path) -> dict[str, Any]:
    made = made_of(task, accel, folder, save_every=2, log_every=100)
    before = []
    try:
        for info in made.steps():
            before.append(weights_of(made))
            assert info.step < 3
    except trainer.TrainerError as error:
        same = all(map(torch.equal, before[-1], weights_of(made)))
        return {
            "error": str(error),
            "same": same,
            "saved": sorted(p.name for p in (folder / "checkpoints").iterdir()),
        }
    raise AssertionError("it went on")


def weights_of(made: Trainer) -> list[Tensor]:
    return [shard.tensor.clone() for shard in made.run.strategy.shards()]


@dataclass(frozen=True, kw_only=True)
class LosesImages(LosesOne):
    """What rank 1 sees in the third step has no value, so its statistics and norms have none after
    its forward pass.
    """

    norm: bool = True

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[5] = nn.utils.parametrizations.spectral_norm(model[5])
        return model

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        if len(self.calls) == 2 and dist.get_rank() == 1:
            batch["image"] = batch["image"] * float("nan")
        return super().training_step(model, batch)


class Ticks(Callback):
    """Moves the clock of the votes by 10 ms a step, and warns rank 1 after step 40, as Slurm does."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        self.now += 0.01
        if info.step == 40 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGUSR1)


def reductions(accel: str, folder: Path) -> dict[str, Any]:
    """Count what the CPU group reduces in the steps until a signal is agreed on."""
    clock, counted, real = Ticks(), [], dist.all_reduce
    made = made_of(Images(norm=False), accel, folder, clock, max_steps=400, log_every=1000)

    def all_reduce(*args: Any, **named: Any) -> Any:
        counted.extend([made.run.step] if named.get("group") is made.run.agreement.group else [])
        return real(*args, **named)

    dist.all_reduce, agreement.time = all_reduce, clock  # type: ignore[assignment]
    try:
        made.fit()
    except Stopped as stopped:
        number = stopped.signal
    finally:
        dist.all_reduce, agreement.time = real, time
    return {
        "counted": counted,
        "step": made.run.step,
        "signal": number,
        "evaluation": made.run.last_evaluation,
    }


class Wide(Masked):
    """Two matrices above the size up to which ZeRO-3 keeps parameters whole."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 60_000), nn.Linear(60_000, 2))


class Gathers(TorchDispatchMode):
    """Counts the calls that gather a tensor of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += function is torch.ops.c10d._allgather_base_.default
        return function(*args, **(kwargs or {}))


def gathers(accel: str, folder: Path) -> dict[str, Any]:
    """How often each step gathers, with the trial of the loss before the first step, and without."""
    counts: dict[str, list[int]] = {}
    for name, is_tried in (("tried", True), ("untried", False)):
        settings = {"max_steps": 5, "lr": 1e-6, "sanity_evaluation": is_tried}
        made = made_of(Wide(), accel, folder / name, **settings)
        with Gathers() as gathered:
            sums = [0, *(gathered.count for _ in made.steps())]
        counts[name] = [after - before for before, after in pairwise(sums)]
    return counts


def main() -> None:
    trainings.main()
    told = json.loads(sys.argv[1])
    folder, accel = Path(told["folder"]), next(iter(told["files"].values()))
    cases = {case.__name__: case for case in (waits, nan_stops, reductions, gathers)}
    found = {name: of_all(case(accel, folder / name)) for name, case in cases.items()}
    leave(folder / "results.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
