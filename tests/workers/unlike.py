"""Run as ranks: trainings that rank 1 begins otherwise than rank 0, one after the other in one
process.

    RANK=... tests/workers/unlike.py '{"file": {"accel_config": ...}, "folder": ..., "names":
    [...]}'

Each rank leaves ``<folder>/<name>.<rank>.json`` with the error that it ended with, and whether a
step was made.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import trainer
from trainer import Data, Plan, Task, TrainConfig, Trainer

RANK = int(os.environ.get("RANK", "0"))
CLASSES = ("cat", "dog", "cow", "hen", "pig", "rat")
CASES: dict[
    str, tuple[type[Task], dict[str, Any]]
] = {}  # the task, and what rank 1 has in its config


def case(name: str) -> Callable[[type[Task]], type[Task]]:
    def add(task: type[Task]) -> type[Task]:
        CASES[name] = task, {}
        return task

    return add


def of_this_rank(names: tuple[str, ...]) -> list[str]:
    """Return names in an order that is another one in each process, as a set of text gives them."""
    return [*names[RANK:], *names[:RANK]]


class Rows:
    def __init__(self, size: int = 24) -> None:
        self.x = torch.randn(size, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = self.x[index]
        return {"x": x, "y": x.square().sum().reshape(1)}


@dataclass(frozen=True, kw_only=True)
class Plain(Task):
    width: int = 8

    def build_data(self) -> Data:
        return Data(train=Rows(), evaluation=Rows(6))

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, self.width), nn.Tanh(), nn.Linear(self.width, 1))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.mse_loss(model(batch["x"]), batch["y"])


class Named:
    """Rows whose classes have numbers by the order of a set."""

    def __init__(self) -> None:
        self.x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        self.names = [CLASSES[number % 6] for number in range(60)]
        self.numbers = {name: number for number, name in enumerate(of_this_rank(CLASSES))}

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "y": self.numbers[self.names[index]]}


@case("class ids")
class ClassIds(Plain):
    def build_data(self) -> Data:
        return Data(train=Named())

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 6)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch["x"]), batch["y"])


@case("class ids of evaluation")
class EvaluationIds(ClassIds):
    def build_data(self) -> Data:
        return Data(train=Rows(), evaluation=Named())


@case("vocabulary of collate")
class Vocabulary(Plain):
    """Samples are text, the same on all ranks; the numbers that collate makes of them are not."""

    def build_data(self) -> Data:
        numbers = {name: number for number, name in enumerate(of_this_rank(CLASSES))}
        texts = [CLASSES[number % 6] for number in range(24)]
        return Data(
            train=texts, collate=lambda items: torch.tensor([numbers[item] for item in items])
        )


@case("sizes of the data")
class Sizes(Plain):
    def build_data(self) -> Data:
        return Data(train=Rows(24 - RANK))


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 1)
        values = np.random.default_rng().normal(size=(4, 8))
        self.register_buffer("frozen", torch.tensor(values, dtype=torch.float32))

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(x @ self.frozen))


@case("frozen buffer")
class FrozenBuffer(Plain):
    def build_model(self) -> nn.Module:
        return Projected()


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        names = of_this_rank(("alpha", "beta", "gamma"))
        self.heads = nn.ModuleDict({name: nn.Linear(4, 1) for name in names})

    def forward(self, x: Tensor) -> Any:
        return sum(
            number * self.heads[name](x) for number, name in enumerate(sorted(self.heads), 1)
        )


@case("order of parameters")
class ParameterOrder(Plain):
    def build_model(self) -> nn.Module:
        return Heads()


@case("rate of a group")
class GroupRate(Plain):
    def build_optimizer(self, model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        first, last = model[0].parameters(), model[2].parameters()  # type: ignore[index]
        groups = [{"params": [*first]}, {"params": [*last], "lr": plan.lr * (1 + RANK)}]
        return torch.optim.SGD(groups, lr=plan.lr)


class Noisy(Rows):
    """Samples with noise of a generator without a seed, as some libraries of augmentations have it:
    no difference.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn = np.random.default_rng()

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        return {**row, "x": row["x"] + 0.01 * float(self.drawn.normal())}


@case("noise of its own")
class NoisyData(Plain):
    def build_data(self) -> Data:
        return Data(train=Noisy(), evaluation=Rows(6))


class Drifting(nn.Module):
    """A frozen parameter follows the batches of each process."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.centre = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                self.centre.lerp_(x.mean(0), 0.5)
        return self.last(x - self.centre)


@case("codebook")
class Codebook(Plain):
    def build_model(self) -> nn.Module:
        return Drifting()


@case("rows of a table")
class ScaledRows(Plain):
    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(8, 4, max_norm=0.1), nn.Flatten(), nn.Linear(16, 1))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        rows = batch["x"].mul(10).long().remainder(8)
        return functional.mse_loss(model(rows), batch["y"])


class Drawing(torch.optim.SGD):
    """Adds noise to the weights."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(torch.randn(parameter.shape))


@case("noise of the optimizer")
class NoisySteps(Plain):
    def build_optimizer(self, model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        return Drawing(model.parameters(), lr=0.1)


class Drifts(trainer.Callback):
    """Changes weights by a number of each process."""

    def on_step(self, run: trainer.Run, info: trainer.StepInfo) -> None:
        with run.whole_parameters() as model:
            for parameter in model.parameters():
                parameter.add_(0.01 * RANK)


CASES["lr"] = (Plain, {"lr": 0.1})
CASES["task settings"] = (Plain, {})


def main() -> None:
    told = json.loads(sys.argv[1])
    for name in told["names"]:
        kind, changed = CASES[name]
        folder = Path(told["folder"])
        common = {
            "task": f"unlike:{kind.__name__}",
            "max_steps": 2,
            "micro_batch_size": 4,
            "lr": 1e-3,
        }
        config = TrainConfig(
            output_dir=str(folder / name), **{**common, **(changed if RANK else {})}
        )
        task = kind(width=16) if name == "task settings" and RANK else kind()
        result: dict[str, Any] = {"step": 0}
        training = None
        try:
            training = Trainer(task, config, trainer.launch(config, **told["file"]))
            training.fit()
        except trainer.TrainerError as error:
            result["error"] = f"{type(error).__name__}: {error}"
        if training is not None:
            result["step"] = training.run.step
            training.run.close()
        (folder / f"{name}.{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    from trainer.distributed.exit import run_and_exit

    run_and_exit(main)
