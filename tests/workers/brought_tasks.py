"""Models and tasks as users bring them."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import SecretStr
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import SGD, AdamW, Optimizer, Rprop

import trainer
from trainer import Callback, Data, Plan, Run, StepInfo, Task
from trainer.strategies.tensors import unwrapped


class Numbers:
    """Eight random numbers a sample, their sum to be predicted, and the sample's number."""

    def __init__(self, size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 8, generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"x": self.x[at], "y": self.x[at].sum(0, keepdim=True), "at": torch.tensor(at)}


@dataclass(frozen=True, kw_only=True)
class Plain(Task):
    size: int = 64

    def build_data(self) -> Data:
        return Data(train=Numbers(self.size), evaluation=Numbers(10, seed=1))

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return F.mse_loss(model(batch["x"]), batch["y"])


@dataclass(frozen=True, kw_only=True)
class Gated(Plain):
    """Wants a token, as a data set behind a wall does."""

    hf_token: str = ""
    width: int = 4


@dataclass(frozen=True, kw_only=True)
class Declared(Plain):
    """Says which settings are secrets."""

    gate: SecretStr
    more: dict[str, SecretStr | None] = field(default_factory=dict)
    empty: SecretStr = field(default_factory=lambda: SecretStr(""))

    def build_model(self) -> nn.Module:
        trainer.say(f"opened {self.gate.get_secret_value()}")
        return super().build_model()


@dataclass(frozen=True, kw_only=True)
class Declaring(Callback):
    """Has a secret of its own."""

    at: SecretStr


class Webhook(Callback):
    """Reports to an address that only its owner may know."""

    def __init__(self, webhook_url: str = "") -> None:
        self.webhook_url = webhook_url


class PastTheWrapper(Plain):
    """What a step under plain DDP must not do, and often does for a method of the model."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return super().training_step(getattr(model, "module", model), batch)


class Unused(Plain):
    """A layer that the loss never reaches; weight decay moves it, as it moves one of gradient zero."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.left = nn.Linear(8, 1), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    def build_model(self) -> nn.Module:
        return self.Model()


class Dropped(Plain):
    """Blocks in turn are left out of a forward pass, on all ranks."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.blocks = nn.ModuleList(Plain().build_model() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            left_out = self.calls % 4  # each fourth pass leaves none out
            self.calls += self.training
            used = [block for number, block in enumerate(self.blocks) if number != left_out]
            return torch.stack([block(x) for block in used]).sum(0)

    def build_model(self) -> nn.Module:
        return self.Model()


class Teacher(Plain):
    """A frozen copy of the model that follows it slowly, moved after each step by a callback, and
    part of the loss.
    """

    class Model(nn.Module):
        def __init__(self, in_forward: bool = False) -> None:
            super().__init__()
            self.student, self.in_forward = Plain().build_model(), in_forward
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        @torch.no_grad()
        def follow(self) -> None:
            for theirs, ours in zip(
                self.teacher.parameters(), self.student.parameters(), strict=True
            ):
                theirs.lerp_(ours, 0.5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            if self.in_forward and self.training:
                self.follow()
            with torch.no_grad():
                seen = self.teacher(x)
            return self.student(x), seen

    def build_model(self) -> nn.Module:
        return self.Model()

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        output, seen = model(batch["x"])
        return F.mse_loss(output, batch["y"]) + F.mse_loss(output, seen)


class Follow(Callback):
    """Moves the teacher, and holds a bias of the student within bounds."""

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        with trainer.whole_parameters("teacher", "student") as model:
            model.follow()
            bias = model.student[0].bias
            bias.data = bias.data.clamp(-0.2, 0.2)


class Clamp(Callback):
    """Holds a bias within bounds, without a word."""

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        with torch.no_grad():
            for name, parameter in trainer.model.named_parameters():
                if name.endswith("0.bias"):
                    parameter.clamp_(-0.2, 0.2)


class ChangedInForward(Teacher):
    """The teacher follows as a model with its own habits does it, inside of a forward pass."""

    def build_model(self) -> nn.Module:
        return self.Model(in_forward=True)


class DataInForward(Teacher):
    """A teacher that follows as in MoCo's code: by assignments to ``data``."""

    class Model(Teacher.Model):
        def follow(self) -> None:
            for theirs, ours in zip(
                self.teacher.parameters(), self.student.parameters(), strict=True
            ):
                theirs.data = theirs.data * 0.5 + ours.data * 0.5

    def build_model(self) -> nn.Module:
        return self.Model(in_forward=True)


class Clip(Callback):
    """Clips the weights as in WGAN's code."""

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        for parameter in trainer.model.parameters():
            parameter.data = parameter.data.clamp(-0.1, 0.1)


class Fill(Callback):
    """Sets the weights to values of its own."""

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        for parameter in trainer.model.parameters():
            parameter.data = torch.zeros(parameter.shape)


class Measure(Callback):
    """Measures the weights, at every second step."""

    every = 2

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        keep(trainer, sum(own.detach().norm().item() for own in trainer.model.parameters()))


def keep(run: Run, norm: float) -> None:
    """Append a norm to a file of the run."""
    if run.is_main:
        with open(run.directory.path / "norms.jsonl", "a") as file:
            print(json.dumps({"norm": norm}), file=file)


class See(Callback):
    """Does to the model whatever is right under every strategy, on engines' own ways too."""

    def on_start(self, trainer: Run) -> None:
        self.seen = {
            name: (own.shape, own.dtype, own.device, own.requires_grad, own.grad, hash(own))
            for name, own in trainer.model.named_parameters()
        }

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        own = [*trainer.model.parameters()]
        with trainer.whole_parameters() as model:
            norm = sum(float(whole.norm()) for whole in model.parameters())
            model.get_parameter("0.bias").clamp_(-0.2, 0.2)
        keep(trainer, norm)
        trainer.evaluate()
        own[0].requires_grad_(own[0].requires_grad)
        if hasattr(own[0], "ds_tensor"):
            import deepspeed

            with deepspeed.zero.GatheredParameters(own):
                assert all(whole.norm() > 0 for whole in own)
            assert own[0].ds_tensor.norm() > 0  # type: ignore[attr-defined]
            trainer.accelerator.get_state_dict(trainer.model)


class Layers(nn.Module):
    """A model in units, as transformers' own say which."""

    def __init__(self) -> None:
        super().__init__()
        self._no_split_modules = ["Linear"]
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Penalty(Plain):
    """The norm of the gradient in the input is part of the loss (WGAN-GP, forces), and so are the
    parameters.
    """

    def build_model(self) -> nn.Module:
        return Layers()

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        x = batch["x"].requires_grad_(True)
        output = model(x)
        [slope] = torch.autograd.grad(output.sum(), x, create_graph=True)
        size = sum(parameter.abs().sum() for parameter in model.parameters())
        return (
            F.mse_loss(output, batch["y"]) + (slope.norm(dim=-1) - 1).square().mean() + 1e-3 * size
        )

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        return {"loss": F.mse_loss(model(batch["x"]), batch["y"], reduction="none")}


class Caught(Plain):
    """Goes on after errors within a layer: of a step, of a trial, and of evaluations."""

    class Model(nn.Sequential):
        _no_split_modules = ("Sequential",)

        def forward(self, x: Tensor, fails: bool = False) -> Any:
            x = self[0](x)
            return self[1](x[:, :1] if fails else x)

    def build_model(self) -> nn.Module:
        return self.Model(nn.Sequential(nn.Linear(8, 16), nn.Tanh()), nn.Linear(16, 1))

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            model(batch["x"], fails=True)
        return F.mse_loss(model(batch["x"], fails=not model.training), batch["y"])

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        return {"loss": model(batch["x"], trainer.now().step in (1, 2))[:, 0]}


class Evaluates(Callback):
    """Goes on after the error of an evaluation."""

    def on_step(self, run: Run, info: StepInfo) -> None:
        with contextlib.suppress(RuntimeError):
            run.evaluate()


class Hooked(Plain):
    """Hooks before layers that read the layers' parameters."""

    def build_model(self) -> nn.Module:
        model: Any = Layers()
        torch.nn.utils.weight_norm(model.layers[0])
        prune.random_unstructured(model.layers[2], "weight", 0.5)
        model.layers[4].register_forward_pre_hook(lambda own, args: (args[0] * own.weight.norm(),))
        return model


class Signs(Plain):
    """An optimizer that writes to its tensors by masks."""

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return Rprop(model.parameters(), plan.lr)


class Reads(Plain):
    """Scales the loss by the norm of a frozen layer, and reports the size of another layer."""

    def build_model(self) -> nn.Module:
        model = Layers()
        next(model.parameters()).requires_grad_(False)
        return model

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        frozen, *_, last = model.parameters()
        return loss * (1 + frozen.norm().item()), {"size": float(last.detach().abs().sum())}


class MaskedRows(Plain):
    """Some rows of a layer stay as they are, by a hook on its gradient."""

    def build_model(self) -> nn.Module:
        model, mask = Layers(), torch.ones(16, 1)
        mask[::3] = 0
        model.layers[2].weight.register_hook(lambda gradient: gradient * mask)
        return model


class PartsOfRank(Plain):
    """A loss that has a part on a single rank of two."""

    def weight(self, batch: Any) -> Any:
        names = {f"part {os.environ.get('RANK', '0')}", "part 0"}
        return dict.fromkeys(sorted(names), len(batch["x"]))

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return dict.fromkeys(self.weight(batch), super().training_step(model, batch))


class OnSomeRanks(Plain):
    """Two heads of one shape: a few samples go through the second, the others through the first."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 1)

        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            hidden, second = self.body(x).tanh(), at % 8 == 0
            output = torch.zeros(len(x), 1)
            for head, chosen in ((self.one, ~second), (self.two, second)):
                if chosen.any():
                    output[chosen] = head(hidden[chosen]).to(output.dtype)
            return output

    def build_model(self) -> nn.Module:
        return self.Model()

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return F.mse_loss(model(batch["x"], batch["at"]), batch["y"])


class Experts(OnSomeRanks):
    """The heads are two blocks in a list."""

    class Model(OnSomeRanks.Model):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)) for _ in range(2)
            )
            self.one, self.two = self.experts

    def build_model(self) -> nn.Module:
        return self.Model()


class ExpertOfRank(Experts):
    """Each rank calls a block of its own."""

    class Model(Experts.Model):
        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            output: Tensor = self.experts[int(os.environ["RANK"])](self.body(x))
            return output

    def build_model(self) -> nn.Module:
        return self.Model()


class InAnyOrder(Plain):
    """Two weights of one shape whose gradients leave one node of the graph, on every second rank
    the other way round.

    As what a compiler makes on each rank for its own shapes.
    """

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, turned: bool, first: Tensor, second: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            ctx.turned = turned
            one, two = (second, first) if turned else (first, second)
            return x @ one + x.square() @ two

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            one, two = x.T @ grads[0], x.square().T @ grads[0]
            return (None, None, two, one) if ctx.turned else (None, None, one, two)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Parameter(torch.zeros(8, 1)), nn.Parameter(torch.zeros(8, 1))

        def forward(self, x: Tensor) -> Tensor:
            turned = int(os.environ.get("RANK", "0")) % 2 == 1
            return InAnyOrder.Both.apply(
                x, turned, *((self.two, self.one) if turned else (self.one, self.two))
            )

    def build_model(self) -> nn.Module:
        return self.Model()


class Scalar(Plain):
    """A learnt scalar, as CLIP's logit_scale, one that is frozen, and a layer with the name that
    wrappers give to what they wrap.
    """

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(8, 1)
            self.scale = nn.Parameter(torch.tensor(0.5))
            self.fixed = nn.Parameter(torch.tensor(2.0), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            assert self.scale.shape == (), "the model sees a scalar"
            return self.module(x) * self.scale.exp() * self.fixed

    def build_model(self) -> nn.Module:
        return self.Model()


class Empty(Plain):
    """A parameter without elements."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
        return model


class Narrow(Plain):
    """Weights of bfloat16, as from_pretrained gives them, and a step that casts its inputs to them."""

    def build_model(self) -> nn.Module:
        return super().build_model().to(torch.bfloat16)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return F.mse_loss(model(batch["x"].bfloat16()).float(), batch["y"])


class Bent(Plain):
    """A convolution in channels_last, a transposed weight, and a buffer whose elements are one."""

    def build_model(self) -> nn.Module:
        model = nn.Sequential(
            nn.Unflatten(1, (2, 2, 2)),
            nn.Conv2d(2, 4, 2),
            nn.Flatten(),
            nn.Linear(4, 3),
            nn.Linear(3, 1),
        ).to(memory_format=torch.channels_last)
        model[3].weight = nn.Parameter(torch.randn(4, 3).t())
        model.register_buffer("mask", torch.ones(1).expand(2, 4))  # elements in one place
        return model


class HalfOptimized(Plain):
    """An optimizer over the head only, while the rest would learn as well."""

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return SGD(model[2].parameters(), lr=plan.lr)  # type: ignore[index, union-attr]


class FrozenBody(Plain):
    """All but the last layer is frozen."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        *body, _ = model.children()
        for layer in body:
            layer.requires_grad_(False)
        return model


class Freezes(Callback):
    """Freezes a layer at step 2."""

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if info.step == 2:
            unwrapped(trainer.model).get_submodule("0").requires_grad_(False)


class Hangs(Callback):
    """Hangs a hook on a gradient at step 2."""

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if info.step == 2:
            weight = unwrapped(trainer.model).get_parameter("0.weight")
            weight.register_hook(lambda gradient: gradient * 0)


class FrozenInOptimizer(Plain):
    """A frozen layer among the optimizer's parameters, one group of them all its own."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model[0].requires_grad_(False)
        return model

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return AdamW(
            [{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=plan.lr
        )  # type: ignore[index, union-attr]


class Names(Plain):
    """Metrics by domain: each batch reports those that it holds, and one sample alone has a name of
    its own.
    """

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        at = batch["at"].double()
        found: dict[str, Any] = {"all": at}
        for name, mask in (("low", at < 5), ("high", at >= 5), ("rare", at == 9)):
            if mask.any():
                found[name] = at[mask]
        return found


class Reports(Plain):
    """Values beside the loss: a mean, a sum with a weight, and one for each example."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        output = model(batch["x"])
        loss = F.mse_loss(output, batch["y"])
        at = batch["at"].double()
        return loss, {
            "error": (output - batch["y"]).abs().mean().detach(),
            "at": at,
            "high": (at[at > 32].sum(), (at > 32).sum()),
        }


class FrozenNorm(Plain):
    """A BatchNorm that stays in evaluation mode: its statistics stay, and its weights learn."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).eval()

    def held_in_evaluation(self, model: Any) -> list[nn.Module]:
        return [model[1]]


class Buffers(Plain):
    """Numbers of 64 and of 16 bits, flags, counters that are replaced, not changed; some samples
    weigh nothing.
    """

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)
            self.register_buffer("large", torch.tensor([2**60 + 1, 7]))
            self.register_buffer("flag", torch.tensor(True))
            self.register_buffer("short", torch.tensor([[-300, 7], [2, 3]], dtype=torch.int16).T)
            self.register_buffer("replaced", torch.zeros(()))
            self.register_buffer("changed", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.replaced = self.replaced + len(x)
                self.changed += len(x)
            return self.layer(x)

    def build_model(self) -> nn.Module:
        return self.Model()

    def weight(self, batch: Any) -> float:
        return float((batch["at"] % 64 >= 8).sum())

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        counts = (batch["at"] % 64 >= 8).float()
        return ((model(batch["x"]) - batch["y"])[:, 0] ** 2 * counts).sum() / counts.sum()


class Independent(Plain):
    """What people write to be rid of torch's complaint that a tensor does not require a gradient."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        wrong = (model(batch["x"]) > 0).float().mean()
        return torch.tensor(wrong.item(), requires_grad=True) * 2


class BackwardInside(Plain):
    """As a port of a loop with two losses does."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        predicted = model(batch["x"])
        (0.3 * predicted.square().mean()).backward(retain_graph=True)
        return F.mse_loss(predicted, batch["y"])


class EmptyLayer(Plain):
    """A layer without outputs, which is used."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.none = nn.Linear(8, 8), nn.Linear(8, 0)
            self.head = nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Any:
            return self.head(torch.cat([self.body(x), self.none(x)], 1).tanh())

    def build_model(self) -> nn.Module:
        return self.Model()


class PlainOutput(Plain):
    """Returns the prediction in an object of a plain class."""

    class Model(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            return SimpleNamespace(predicted=super().forward(x))

    def build_model(self) -> nn.Module:
        return self.Model(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return F.mse_loss(model(batch["x"]).predicted, batch["y"])

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        return {"loss": (model(batch["x"]).predicted - batch["y"]).square().squeeze(1)}


class Replaced(Plain):
    """Replaces a parameter in a later step."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        if trainer.now().step == 2:
            layer: Any = unwrapped(model).get_submodule("2")
            layer.weight = nn.Parameter(torch.ones(1, 16))
        return super().training_step(model, batch)


class Patience(Plain):
    """Evaluations that only get worse."""

    def summarize(self, metrics: dict[str, float]) -> Mapping[str, float]:
        object.__setattr__(self, "seen", getattr(self, "seen", 0) + 1)
        return {"loss": float(self.seen)}  # type: ignore[attr-defined]
