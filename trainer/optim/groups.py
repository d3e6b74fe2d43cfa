"""What an optimizer and a schedule that were built are: what is told of a run, whoever built them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..config.train_config import DEFAULTS, OPTIMIZERS
from ..errors import DEFAULT, ConfigError, Origin, Problem

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from ..config.train_config import TrainConfig
    from ..plan import Plan

# How a step is computed; what it computes does not depend on these.
_HOW = ("foreach", "fused", "capturable", "differentiable")
_NOT_TOLD = (
    "params",
    "initial_lr",
    "decoupled_weight_decay",
    *_HOW,
)  # of the decay the class says it (torch 2.13)
# Keys of the training config that say what an optimizer is given beside its rate.
OF_GROUPS = ("weight_decay", "betas", "eps", "momentum")


def describe_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each parameter group as JSON holds them, and ``parameters``: its
    trainable elements.

    Asked before the optimizer is prepared, whose groups an engine lays out anew, and before a
    schedule moves ``lr``.
    """
    return [
        {**_settings(group), "parameters": _count(group["params"])}
        for group in optimizer.param_groups
    ]


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, value in group.items():
        if getattr(value, "numel", lambda: 0)() == 1:  # a rate may be a tensor
            value = value.item()
        value = list(value) if isinstance(value, tuple) else value
        plain = [value] if not isinstance(value, list) else value
        if key not in _NOT_TOLD and all(
            isinstance(one, bool | int | float | str | None) for one in plain
        ):
            found[key] = value
    return found


def _count(parameters: Sequence[Any]) -> int:
    return sum(int(parameter.numel()) for parameter in parameters if parameter.requires_grad)


def describe_optimizer(optimizer: Optimizer, plan: Plan, built_by: str | None) -> dict[str, Any]:
    """Return what a run says of its optimizer: over the plan's values, where a task has built one
    of its own.

    Args:
        built_by: the method of the task that built it; None where it is the plan's.
    """
    groups = describe_groups(optimizer)
    told: dict[str, Any] = {"optimizer_groups": groups}
    if built_by is None:
        return told
    own = {"optimizer": f"{type(optimizer).__name__} of {built_by}", "optimizer_settings": {}}
    rate = groups[0]["lr"]
    if rate != plan.lr:
        own |= {"lr": rate, "lr_reference": rate, "lr_scaling": "none"}
    return told | own


def describe_schedule(schedule: LRScheduler, built_by: str | None) -> dict[str, Any]:
    """Return what a run says of its schedule: nothing beyond the plan's values, unless a task has
    built one.
    """
    told: dict[str, Any] = {"schedule_class": type(schedule).__name__}
    if built_by is None:
        return told
    # Whether it made something of these, nobody knows.
    unknown = dict.fromkeys(("warmup_steps", "warmup_samples", "warmup_fraction"))
    return {
        **told,
        "schedule": f"{type(schedule).__name__} of {built_by}",
        "schedule_settings": {},
        **unknown,
    }


def group_names(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name groups: by their own ``name``, where that is no other's, else by their number."""
    names = [str(group.get("name", number)) for number, group in enumerate(groups)]
    return (
        names if len(set(names)) == len(names) else [str(number) for number in range(len(groups))]
    )


def logged_rates(rates: Sequence[Any], names: Sequence[str]) -> dict[str, float]:
    """Return ``lr``, the first group's rate, and ``lr/NAME`` of the others, where not all are the
    same.
    """
    values = [float(rate) for rate in rates]
    logged = {"lr": values[0]}
    if any(value != values[0] for value in values):
        logged |= {f"lr/{name}": value for name, value in list(zip(names, values, strict=True))[1:]}
    return logged


def group_texts(
    groups: Sequence[Mapping[str, Any]], known: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Describe groups for people: what all share in one text, and where they differ a text for each
    group.

    Args:
        known: settings that were told already; left out where all groups share them.
    """
    first = groups[0]
    shared = {
        key: value
        for key, value in first.items()
        if all(group.get(key) == value for group in groups)
    }
    together = _text(
        {key: value for key, value in shared.items() if key not in known or known[key] != value}
    )
    if len(groups) == 1:
        return together, []
    texts = []
    for name, group in zip(group_names(groups), groups, strict=True):
        own = {key: value for key, value in group.items() if key not in shared and key != "name"}
        own["parameters"] = group["parameters"]
        texts.append(f"group {name}: {_text(own)}")
    return together, texts


def _text(group: Mapping[str, Any]) -> str:
    texts = [f"{group['parameters']:,} parameters"] if "parameters" in group else []
    for key, value in group.items():
        is_off = value is None or value is False or value == 0
        if key != "parameters" and (
            not is_off or key in ("lr", "weight_decay")
        ):  # a decay of 0 says something
            texts.append(f"{key} {_plain(value)}")
    return ", ".join(texts)


def _plain(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_plain(one) for one in value)
    return (
        f"{value:g}"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value).lower()
    )


def check_settings_run(
    config: TrainConfig, plan: Plan, optimizer: Optimizer, built_by: str
) -> None:
    """Check that what the config says of an optimizer is true of one that a task has built itself.

    Raises:
        ConfigError: the config names another class, or says a value that no group has: it would
            have no effect.
    """
    problems = list(_problems(config, plan, optimizer, built_by))
    if problems:
        raise ConfigError(problems)


def _problems(
    config: TrainConfig, plan: Plan, optimizer: Optimizer, built_by: str
) -> Iterator[Problem]:
    def problem(key: str, value: Any, rule: str) -> Problem:
        origin = plan.origin(key.partition(".")[0])
        origin = Origin("TrainConfig") if origin == DEFAULT else origin
        return Problem(origin=origin.named(key), value=value, rule=rule)

    kinds = [
        type(optimizer).__name__,
        *(type(inner).__name__ for inner in getattr(optimizer, "inner", {}).values()),
    ]
    name = (config.optimizer or "").replace(":", ".").rpartition(".")[2]
    known = [kind.lower() if name in OPTIMIZERS else kind for kind in kinds]
    if name and name not in known:
        yield problem(
            "optimizer",
            config.optimizer,
            f"{built_by} builds {kinds[0]} instead; remove one of the two",
        )
    groups = [_settings(group) for group in optimizer.param_groups]
    # A default may have been written down by nobody but an earlier run, whose config.yaml has all
    # keys.
    said = {key: value for key in OF_GROUPS if (value := getattr(config, key)) != DEFAULTS[key]}
    said |= {f"optimizer_settings.{key}": value for key, value in config.optimizer_settings.items()}
    for key, value in said.items():
        value = list(value) if isinstance(value, tuple) else value
        have = [group[name] for group in groups if (name := key.rpartition(".")[2]) in group]
        if value not in have and not isinstance(value, Mapping):
            shown = " and ".join(dict.fromkeys(map(_plain, have))) or "none"
            rule = f"has no effect: {built_by} builds the optimizer, whose groups have {shown}; remove it"
            yield problem(key, value, rule)
