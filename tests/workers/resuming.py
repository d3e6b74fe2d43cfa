"""A task whose runs are resumed, with all sorts of tensors and state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from trainer import Callback, Data, Plan, Run, Task


class Model(nn.Module):
    """What real ones have: a shared parameter, a frozen one, odd shapes, a scalar, a buffer that
    changes.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.middle = nn.Linear(5, 3)
        self.back = nn.Linear(3, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))

    def forward(self, ids: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
        hidden = self.embedding(ids)
        hidden = self.dropout(hidden + self.frozen(hidden))
        return self.head(self.back(self.middle(hidden).tanh()) * self.scale)


class Mixed(SGD):
    """Keeps more state for the parameters of some groups than for the others."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = self.state[parameter]
                kept["step"] = kept.get("step", 0) + 1
                if not group["nesterov"]:
                    continue
                square = kept.setdefault("square", torch.zeros_like(parameter))
                square.addcmul_(parameter.grad, parameter.grad)
                parameter.grad.div_(square.sqrt() + 0.1 * kept["step"])
        return super().step(closure)


@dataclass(frozen=True, kw_only=True)
class Odd(Task):
    """Predicts the next of a few numbers."""

    dropout: float = 0.0
    sgd: bool = False
    seen: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    def build_data(self) -> Data:
        return Data(train=torch.randint(0, 7, (50, 6), generator=torch.Generator().manual_seed(1)))

    def build_model(self) -> nn.Module:
        return Model(self.dropout)

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        if not self.sgd:
            return super().build_optimizer(model, plan)
        learning = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": learning[:2], "momentum": 0.8},
            {"params": learning[2:], "nesterov": True},
        ]
        return Mixed(groups, lr=plan.lr, momentum=0.9)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        self.seen["steps"] = self.seen.get("steps", 0) + 1
        self.seen["last"] = torch.full((2, 2), float(self.seen["steps"]))
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def state_dict(self) -> Mapping[str, Any]:
        return dict(self.seen)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen.update(state)


class Writes(Callback):
    """Writes again at once what a run begins with: its checkpoint, or the weights alone."""

    def on_start(self, run: Run) -> None:
        if run.step:
            run.save()
        else:
            run.export(run.directory.path / "begun")
