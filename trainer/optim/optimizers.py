"""The optimizer that a config names: adamw, adam, sgd, or a class of torch or of another package.

A class and its settings are held against each other before anything is built; torch and the package
are imported then.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim

from ..config.train_config import OPTIMIZERS
from ..errors import ConfigError, Problem
from ..text import did_you_mean

if TYPE_CHECKING:
    from ..plan import Plan

OTHERS = (
    "adamw"  # the setting with the arguments of AdamW, for what a class for matrices does not take
)
_OURS = {
    "params": "what learns",
    "lr": "the config's lr",
    "weight_decay": "the config's weight_decay",
}


class MatricesAndOthers(optim.Optimizer):
    """An optimizer that takes matrices only, and AdamW for everything else, as one.

    The groups and the state are its own; the two step those of their kind, which each group names
    as ``stepped_by``.

    Args:
        matrices, others: over parameters of their own.
    """

    def __init__(self, matrices: optim.Optimizer, others: optim.Optimizer) -> None:
        self.inner = {type(one).__name__: one for one in (matrices, others)}
        groups = [
            {**group, "stepped_by": name}
            for name, one in self.inner.items()
            for group in one.param_groups
        ]
        super().__init__(groups, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nobody gives a closure
        for name, one in self.inner.items():
            one.param_groups = [group for group in self.param_groups if group["stepped_by"] == name]
            one.state = self.state
            one.step()

    @property
    def notice(self) -> str:
        """Say which of the two steps how much."""
        counts = dict.fromkeys(self.inner, 0)
        for group in self.param_groups:
            counts[group["stepped_by"]] += len(group["params"])
        (first, matrices), (second, others) = counts.items()
        return f"{first} steps {matrices} matrices; {second} the {others} others: embeddings, the head, what is no matrix"


def check_class(
    name: str, settings: Mapping[str, Any], *, lr: float, decay: float, decay_said: bool
) -> tuple[dict[str, Any], list[tuple[str, str, Any]]]:
    """Hold a class, its settings and the config's rate and decay against each other.

    Args:
        decay_said: whether somebody said the weight decay, which not every class has.

    Returns:
        All settings but the rate, and ``(key, rule, value)`` for each thing that is wrong.
    """
    found = _find(name)
    if isinstance(found, str):
        return {}, [("optimizer", found, name)]
    arguments = inspect.signature(found).parameters
    named = {
        key
        for key, one in arguments.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }
    anything = any(one.kind is one.VAR_KEYWORD for one in arguments.values())
    known = named - _OURS.keys() | {OTHERS}
    problems: list[tuple[str, str, Any]] = []
    for key, value in settings.items():
        if key in _OURS:
            problems.append((f"optimizer_settings.{key}", f"is {_OURS[key]}; remove it", value))
        elif key not in known and not anything:
            rule = f"{name} has no such argument; {did_you_mean(key, known)}"
            problems.append((f"optimizer_settings.{key}", rule, value))
    required = {
        key for key in named if arguments[key].default is inspect.Parameter.empty
    } - _OURS.keys()
    for key in sorted(required - settings.keys()):
        problems.append((f"optimizer_settings.{key}", f"is required by {name}", None))
    if "lr" not in named and not anything:
        problems.append(
            ("optimizer", "takes no lr, which the schedule moves; take another one", name)
        )
    if "weight_decay" in named:
        settings = {**settings, "weight_decay": decay}
    elif decay_said:
        problems.append(("weight_decay", f"{name} has no such argument; remove it", decay))
    return dict(settings), problems or list(_trial_problems(name, found, lr, settings))


def _trial_problems(
    name: str, cls: Any, lr: float, settings: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    own, others = _split_settings(settings)
    place = f"optimizer_settings.{OTHERS}"
    if rule := _refusal(cls, 2, lr, own):
        yield "optimizer_settings", f"{name} does not take these: {rule}", dict(settings)
    elif others is not None and not _refusal(cls, 1, lr, own):
        yield place, f"has no effect: {name} takes all parameters; remove it", others
    elif others is not None and (rule := _refusal(optim.AdamW, 1, lr, others)):
        yield place, f"AdamW does not take these: {rule}", others


def build_optimizer(model: nn.Module, plan: Plan) -> optim.Optimizer:
    """Build the plan's optimizer over what learns: weights decay, biases and norms (below 2-D) do
    not.

    Without decay all are one group.

    Raises:
        ConfigError: it steps matrices alone, and there are none.
    """
    learning = [p for p in model.parameters() if p.requires_grad]
    if plan.optimizer in OPTIMIZERS:
        settings, _ = _split_settings(plan.optimizer_settings)
        kinds: dict[str, Any] = {"adamw": optim.AdamW, "adam": optim.Adam, "sgd": optim.SGD}
        # One fused kernel instead of a loop over tensors: 106 against 119 ms a step of AdamW.
        # Sharded tensors (DTensor of torch 2.13) have no fused SGD, complex ones no fused kernel at
        # all.
        fused = plan.optimizer != "sgd" and not any(p.is_complex() for p in learning)
        groups = _groups(learning, settings.pop("weight_decay"))
        return kinds[plan.optimizer](groups, lr=plan.lr, fused=fused, **settings)  # type: ignore[no-any-return]
    cls: Any = _find(plan.optimizer)
    settings, others = _split_settings(plan.optimizer_settings)
    decay = settings.get("weight_decay")  # also an argument, which some classes require
    if not _refusal(cls, 1, plan.lr, settings):
        return cls(_groups(learning, decay), lr=plan.lr, **settings)  # type: ignore[no-any-return]
    apart = _not_for_matrices(model)
    matrices = [p for p in learning if p.dim() == 2 and id(p) not in apart]
    rest = [p for p in learning if p.dim() != 2 or id(p) in apart]
    for_rest = dict(others or {})
    rate = for_rest.pop("lr", plan.lr_reference) * (plan.lr / plan.lr_reference)
    second = {"lr": rate, "fused": not any(p.is_complex() for p in rest), **for_rest}
    if not matrices:
        rule = "steps matrices alone, and the model has none that learns but embeddings and its head; take another one"
        raise ConfigError(
            Problem(
                origin=plan.origin("optimizer").named("optimizer"), value=plan.optimizer, rule=rule
            )
        )
    first: optim.Optimizer = cls(_groups(matrices, decay), lr=plan.lr, **settings)
    return MatricesAndOthers(first, optim.AdamW(_groups(rest, decay), **second)) if rest else first


def _groups(parameters: Sequence[Tensor], decay: float | None) -> list[dict[str, Any]]:
    if not decay:  # alike in all: one group, which is one call of the fused kernel
        return [
            {"params": parameters}
            if decay is None
            else {"params": parameters, "weight_decay": decay}
        ]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _not_for_matrices(model: nn.Module) -> set[int]:
    """Return the ids of matrices that are tables of rows: embeddings, and the head of a
    transformers model.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return {id(p) for module in (*tables, head) if module is not None for p in module.parameters()}


def _find(name: str) -> type[optim.Optimizer] | str:
    """Return the class that ``package.module.Class`` or ``package.module:Class`` names, or what is
    wrong with it.
    """
    module_name, _, class_name = name.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a package may raise anything while it is imported
        package = module_name.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            return f"no package {package} is installed here; pip install the one that has it"
        text = str(error).strip().partition("\n")[0]
        return f"{module_name} cannot be imported: {type(error).__name__}: {text}"
    known = {
        key
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, optim.Optimizer)
    } - {"Optimizer"}
    if class_name in known:
        return getattr(module, class_name)  # type: ignore[no-any-return]
    if hasattr(module, class_name):
        return f"{class_name} of {module_name} is no torch.optim.Optimizer"
    return f"{module_name} has no such optimizer; {did_you_mean(class_name, known)}"


def _split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the arguments of a class, and of AdamW beside it or None; lists become tuples, as
    torch wants them.
    """
    plain = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }
    others = plain.pop(OTHERS, None)
    if isinstance(others, Mapping):
        others = {
            key: tuple(value) if isinstance(value, list) else value for key, value in others.items()
        }
    return plain, others


def _refusal(cls: Any, dimensions: int, lr: float, settings: Any) -> str:
    """Return why a class cannot be made over a small parameter of so many dimensions; empty where
    it can.
    """
    try:
        cls([nn.Parameter(torch.zeros((2,) * dimensions))], **{"lr": lr, **settings})
    except Exception as error:  # whatever the class raises for settings that it does not like
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""
