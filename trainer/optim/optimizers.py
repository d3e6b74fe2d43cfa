"""The optimizer that a config names: adamw, adam, sgd, or a class of torch or another package.

``check_class`` validates a class and its settings before anything is built. Torch and the package
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

# The setting with the arguments of AdamW, for the parameters that a class for matrices leaves out.
OTHERS = "adamw"
_GIVEN_ELSEWHERE = {
    "params": "the trainable parameters of the model",
    "lr": "the config's lr",
    "weight_decay": "the config's weight_decay",
}

# A key of the config, the rule that it breaks, and its value.
Mistake = tuple[str, str, Any]


class MatricesAndOthers(optim.Optimizer):
    """An optimizer that takes matrices only, and AdamW for everything else, as one optimizer.

    The parameter groups and the state are its own. Each group names the optimizer that steps it as
    ``stepped_by``.

    Args:
        matrices: the optimizer of the matrices.
        others: the optimizer of all other parameters.
    """

    def __init__(self, matrices: optim.Optimizer, others: optim.Optimizer) -> None:
        self.inner = {type(matrices).__name__: matrices, type(others).__name__: others}
        groups = []
        for name, optimizer in self.inner.items():
            for group in optimizer.param_groups:
                groups.append({**group, "stepped_by": name})
        super().__init__(groups, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # never called with one
        for name, optimizer in self.inner.items():
            groups = [group for group in self.param_groups if group["stepped_by"] == name]
            optimizer.param_groups = groups
            optimizer.state = self.state
            optimizer.step()

    @property
    def notice(self) -> str:
        """Return how many parameters each of the two steps, for people."""
        counts = dict.fromkeys(self.inner, 0)
        for group in self.param_groups:
            counts[group["stepped_by"]] += len(group["params"])

        (first, matrices), (second, others) = counts.items()
        return (
            f"{first} steps {matrices} matrices; {second} the {others} others: embeddings, the "
            "head, and parameters that are no matrix"
        )


def check_class(
    name: str, settings: Mapping[str, Any], *, lr: float, decay: float, decay_given: bool
) -> tuple[dict[str, Any], list[Mistake]]:
    """Check that a class takes its settings, the config's rate and the config's weight decay.

    Args:
        name: of the class, such as ``torch.optim.Muon``.
        settings: the config's ``optimizer_settings``.
        lr: the config's.
        decay: the config's ``weight_decay``.
        decay_given: whether the user has set it. Not every class takes a weight decay.

    Returns:
        all settings but the rate, and the mistakes that were found.
    """
    try:
        cls = _import_class(name)
    except LookupError as error:
        return {}, [("optimizer", str(error), name)]

    arguments = inspect.signature(cls).parameters
    named = _named_arguments(arguments)
    mistakes = list(_mistaken_arguments(name, arguments, settings))
    if "lr" not in named and not _takes_any_argument(arguments):
        rule = "takes no lr, which the schedule moves; take another one"
        mistakes.append(("optimizer", rule, name))

    complete = dict(settings)
    if "weight_decay" in named:
        complete["weight_decay"] = decay
    elif decay_given:
        mistakes.append(("weight_decay", f"{name} has no such argument; remove it", decay))

    if not mistakes:
        mistakes = list(_mistaken_values(name, cls, lr, complete))
    return complete, mistakes


def _named_arguments(arguments: Mapping[str, inspect.Parameter]) -> set[str]:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {key for key, argument in arguments.items() if argument.kind not in variable}


def _takes_any_argument(arguments: Mapping[str, inspect.Parameter]) -> bool:
    return any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())


def _mistaken_arguments(
    name: str, arguments: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]
) -> Iterator[Mistake]:
    """Yield settings that the class does not have or gets from elsewhere, and missing ones."""
    named = _named_arguments(arguments)
    known = named - _GIVEN_ELSEWHERE.keys() | {OTHERS}
    for key, value in settings.items():
        if key in _GIVEN_ELSEWHERE:
            rule = f"is {_GIVEN_ELSEWHERE[key]}; remove it"
            yield f"optimizer_settings.{key}", rule, value
        elif key not in known and not _takes_any_argument(arguments):
            rule = f"{name} has no such argument; {did_you_mean(key, known)}"
            yield f"optimizer_settings.{key}", rule, value

    for key in sorted(named - _GIVEN_ELSEWHERE.keys() - settings.keys()):
        if arguments[key].default is inspect.Parameter.empty:
            yield f"optimizer_settings.{key}", f"is required by {name}", None


def _mistaken_values(
    name: str, cls: Any, lr: float, settings: Mapping[str, Any]
) -> Iterator[Mistake]:
    """Yield settings whose values the class refuses when it is made."""
    own, others = _split_settings(settings)
    key_of_others = f"optimizer_settings.{OTHERS}"
    if _refusal(cls, 1, lr, own) is None:
        if others is not None:
            rule = f"has no effect: {name} takes all parameters; remove it"
            yield key_of_others, rule, others
        return

    # It refuses a vector: it is for matrices, or does not like its settings.
    refusal = _refusal(cls, 2, lr, own)
    if refusal is not None:
        yield "optimizer_settings", f"{name} does not take these: {refusal}", dict(settings)
    elif others is not None:
        refusal = _refusal(optim.AdamW, 1, lr, others)
        if refusal is not None:
            yield key_of_others, f"AdamW does not take these: {refusal}", others


def _refusal(cls: Any, dimensions: int, lr: float, settings: Any) -> str | None:
    """Return why a class cannot be made over a small parameter of so many dimensions, or None."""
    parameter = nn.Parameter(torch.zeros((2,) * dimensions))
    try:
        cls([parameter], **{"lr": lr, **settings})
    except Exception as error:  # classes raise whatever they like for settings
        first_line = str(error).strip().partition("\n")[0]
        return first_line or type(error).__name__
    return None


def build_optimizer(model: nn.Module, plan: Plan) -> optim.Optimizer:
    """Build the plan's optimizer over the trainable parameters of a model.

    Weights decay; biases and norms (parameters of fewer than two dimensions) do not. Without a
    weight decay all are in one group.

    Raises:
        ConfigError: it steps matrices only, and there are none.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    settings, others = _split_settings(plan.optimizer_settings)
    decay = settings.get("weight_decay")
    if plan.optimizer in OPTIMIZERS:
        del settings["weight_decay"]
        return _build_by_name(plan, _groups(trainable, decay), settings)

    # (The decay is an argument of the class as well: some classes require it.)
    cls: Any = _import_class(plan.optimizer)
    if _refusal(cls, 1, plan.lr, settings) is None:
        optimizer: optim.Optimizer = cls(_groups(trainable, decay), lr=plan.lr, **settings)
        return optimizer

    tables = _tables(model)
    matrices = [p for p in trainable if p.dim() == 2 and id(p) not in tables]
    rest = [p for p in trainable if p.dim() != 2 or id(p) in tables]
    if not matrices:
        rule = (
            "steps matrices only, and the model has no trainable ones but embeddings and its "
            "head; take another one"
        )
        origin = plan.origin("optimizer").named("optimizer")
        raise ConfigError(Problem(origin=origin, value=plan.optimizer, rule=rule))

    for_matrices: optim.Optimizer = cls(_groups(matrices, decay), lr=plan.lr, **settings)
    if not rest:
        return for_matrices
    for_rest = dict(others or {})
    rate = for_rest.pop("lr", plan.lr_reference) * (plan.lr / plan.lr_reference)
    fused = not any(p.is_complex() for p in rest)
    adamw = optim.AdamW(_groups(rest, decay), **{"lr": rate, "fused": fused, **for_rest})
    return MatricesAndOthers(for_matrices, adamw)


def _build_by_name(
    plan: Plan, groups: list[dict[str, Any]], settings: dict[str, Any]
) -> optim.Optimizer:
    """Build adamw, adam or sgd, fused where torch can: 106 against 119 ms a step of AdamW.

    Sharded tensors (DTensor of torch 2.13) have no fused SGD, complex ones no fused kernel.
    """
    kinds: dict[str, Any] = {"adamw": optim.AdamW, "adam": optim.Adam, "sgd": optim.SGD}
    parameters = [p for group in groups for p in group["params"]]
    fused = plan.optimizer != "sgd" and not any(p.is_complex() for p in parameters)
    optimizer: optim.Optimizer = kinds[plan.optimizer](groups, lr=plan.lr, fused=fused, **settings)
    return optimizer


def _groups(parameters: Sequence[Tensor], decay: float | None) -> list[dict[str, Any]]:
    """Return parameter groups: those that decay, and those that do not.

    Without a decay there is one group, which is one call of a fused kernel.

    Args:
        decay: None for a class that takes none.
    """
    if decay is None:
        return [{"params": parameters}]
    if decay == 0:
        return [{"params": parameters, "weight_decay": decay}]

    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _tables(model: nn.Module) -> set[int]:
    """Return the ids of embeddings and of a transformers model's head: tables of rows."""
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None:
        modules.append(head)
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _import_class(name: str) -> type[optim.Optimizer]:
    """Return the class that ``package.module.Class`` or ``package.module:Class`` names.

    Raises:
        LookupError: what is wrong with the name, as a text for people.
    """
    module_name, _, class_name = name.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a package may raise anything while it is imported
        package = module_name.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            rule = f"no package {package} is installed here; pip install the one that has it"
        else:
            first_line = str(error).strip().partition("\n")[0]
            rule = f"{module_name} cannot be imported: {type(error).__name__}: {first_line}"
        raise LookupError(rule) from None

    known = set()
    for key, value in vars(module).items():
        if inspect.isclass(value) and issubclass(value, optim.Optimizer):
            known.add(key)
    known.discard("Optimizer")

    if class_name in known:
        cls: type[optim.Optimizer] = getattr(module, class_name)
        return cls
    if hasattr(module, class_name):
        raise LookupError(f"{class_name} of {module_name} is no torch.optim.Optimizer")
    raise LookupError(f"{module_name} has no such optimizer; {did_you_mean(class_name, known)}")


def _split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the arguments of the class, and those of AdamW beside it (None where there are none).

    Lists become tuples, as torch wants them.
    """
    own = _with_tuples(settings)
    others = own.pop(OTHERS, None)
    if isinstance(others, Mapping):
        others = _with_tuples(others)
    return own, others


def _with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in settings.items():
        found[key] = tuple(value) if isinstance(value, list) else value
    return found
