"""What a run reports of its optimizer and schedule: settings as built, by parameter group."""

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

# Keys of a group that are not reported: how a step is computed, which does not change its result,
# and what is reported elsewhere (of the decoupled decay of torch 2.13 the class says it).
_NOT_REPORTED = (
    "params",
    "initial_lr",
    "decoupled_weight_decay",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
)
# Keys of the training config with an optimizer's settings beside its rate.
OF_GROUPS = ("weight_decay", "betas", "eps", "momentum")


def describe_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each parameter group as JSON, and ``parameters``, its trainable ones.

    To be called before the optimizer is prepared, because an engine changes the groups, and before
    a schedule moves ``lr``.
    """
    groups = []
    for group in optimizer.param_groups:
        trainable = [p for p in group["params"] if p.requires_grad]
        count = sum(int(p.numel()) for p in trainable)
        groups.append({**_settings(group), "parameters": count})
    return groups


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group that are reported and that JSON can hold."""
    settings = {}
    for key, value in group.items():
        if key in _NOT_REPORTED:
            continue
        if getattr(value, "numel", lambda: 0)() == 1:  # a rate may be a tensor
            value = value.item()
        if isinstance(value, tuple):
            value = list(value)

        parts = value if isinstance(value, list) else [value]
        if all(isinstance(part, bool | int | float | str | None) for part in parts):
            settings[key] = value
    return settings


def describe_optimizer(optimizer: Optimizer, plan: Plan, built_by: str | None) -> dict[str, Any]:
    """Return what a run reports of its optimizer, to be put over the plan's values.

    Args:
        built_by: the method of the task that built it; None if it is the plan's optimizer.
    """
    groups = describe_groups(optimizer)
    reported: dict[str, Any] = {"optimizer_groups": groups}
    if built_by is None:
        return reported

    reported["optimizer"] = f"{type(optimizer).__name__} of {built_by}"
    reported["optimizer_settings"] = {}
    rate = groups[0]["lr"]
    if rate != plan.lr:
        reported |= {"lr": rate, "lr_reference": rate, "lr_scaling": "none"}
    return reported


def describe_schedule(schedule: LRScheduler, built_by: str | None) -> dict[str, Any]:
    """Return what a run reports of its schedule, to be put over the plan's values.

    Args:
        built_by: the method of the task that built it; None if it is the plan's schedule.
    """
    reported: dict[str, Any] = {"schedule_class": type(schedule).__name__}
    if built_by is None:
        return reported

    reported["schedule"] = f"{type(schedule).__name__} of {built_by}"
    reported["schedule_settings"] = {}
    for key in ("warmup_steps", "warmup_samples", "warmup_fraction"):
        reported[key] = None  # unknown: the task may have used the config's or not
    return reported


def group_names(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the groups' names: their own ``name`` or their number; numbers if names repeat."""
    names = [str(group.get("name", number)) for number, group in enumerate(groups)]
    if len(set(names)) < len(names):
        return [str(number) for number in range(len(groups))]
    return names


def logged_rates(rates: Sequence[Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return ``lr``, the first group's rate, and ``lr/NAME`` of each group where rates can differ.

    They are there where all happen to be equal, at the end of a schedule say, so that the curve of
    a group has no gaps. The first group is there under its name too, unless that is its number.

    Args:
        rates: of the step, by group.
        groups: as ``describe_groups`` returns them.
    """
    values = [float(rate) for rate in rates]
    logged = {"lr": values[0]}
    own_rates = {group.get("lr") for group in groups}
    is_frozen_first = any("frozen_until" in group for group in groups)
    if len(set(values)) == len(own_rates) == 1 and not is_frozen_first:
        return logged

    for name, value in zip(group_names(groups), values, strict=True):
        if name != "0":
            logged[f"lr/{name}"] = value
    return logged


def group_texts(
    groups: Sequence[Mapping[str, Any]], known: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Describe groups for people: the settings that all share, and a text for each group.

    Args:
        known: settings that were reported already; they are left out where all groups share them.

    Returns:
        the shared settings, and the others of each group; no others where there is one group.
    """
    shared = {}
    for key, value in groups[0].items():
        if all(group.get(key) == value for group in groups):
            shared[key] = value
    new = {key: value for key, value in shared.items() if key not in known or known[key] != value}
    if len(groups) == 1:
        return _text(new), []

    texts = []
    for name, group in zip(group_names(groups), groups, strict=True):
        own = {key: value for key, value in group.items() if key not in shared and key != "name"}
        own["parameters"] = group["parameters"]
        texts.append(f"group {name}: {_text(own)}")
    return _text(new), texts


def _text(group: Mapping[str, Any]) -> str:
    texts = []
    if "parameters" in group:
        texts.append(f"{group['parameters']:,} parameters")
    for key, value in group.items():
        is_off = value is None or value is False or value == 0
        if key == "parameters":
            continue
        if is_off and key not in ("lr", "weight_decay"):  # that there is no decay is of interest
            continue
        texts.append(f"{key} {_plain(value)}")
    return ", ".join(texts)


def _plain(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_plain(part) for part in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return str(value).lower()


def check_settings_run(
    config: TrainConfig, plan: Plan, optimizer: Optimizer, built_by: str
) -> None:
    """Check that the config's settings are those of an optimizer that a task has built itself.

    Args:
        built_by: the method of the task that built it.

    Raises:
        ConfigError: the config names another class, or gives a value that no group has: it would
            have no effect.
    """
    problems = [
        *_other_class(config, plan, optimizer, built_by),
        *_other_values(config, plan, optimizer, built_by),
    ]
    if problems:
        raise ConfigError(problems)


def _other_class(
    config: TrainConfig, plan: Plan, optimizer: Optimizer, built_by: str
) -> Iterator[Problem]:
    """Yield a problem if the config names another optimizer than the one that was built."""
    name = (config.optimizer or "").replace(":", ".").rpartition(".")[2]
    built = [type(optimizer).__name__]
    built += [type(inner).__name__ for inner in getattr(optimizer, "inner", {}).values()]

    names = [kind.lower() for kind in built] if name in OPTIMIZERS else built
    if name and name not in names:
        rule = f"{built_by} builds {built[0]} instead; remove one of the two"
        yield _problem(plan, "optimizer", config.optimizer, rule)


def _other_values(
    config: TrainConfig, plan: Plan, optimizer: Optimizer, built_by: str
) -> Iterator[Problem]:
    """Yield a problem for each value of the config that no group of the optimizer has."""
    given = {}
    for key in OF_GROUPS:
        # A default is not compared: the config.yaml of an earlier run has all keys.
        if getattr(config, key) != DEFAULTS[key]:
            given[key] = getattr(config, key)
    for key, value in config.optimizer_settings.items():
        given[f"optimizer_settings.{key}"] = value

    groups = [_settings(group) for group in optimizer.param_groups]
    for key, value in given.items():
        if isinstance(value, tuple):
            value = list(value)
        name = key.rpartition(".")[2]
        built = [group[name] for group in groups if name in group]
        if value in built or isinstance(value, Mapping):
            continue

        shown = " and ".join(dict.fromkeys(map(_plain, built))) or "none"
        rule = (
            f"has no effect: {built_by} builds the optimizer, whose groups have {shown}; remove it"
        )
        yield _problem(plan, key, value, rule)


def _problem(plan: Plan, key: str, value: Any, rule: str) -> Problem:
    origin = plan.origin(key.partition(".")[0])
    if origin == DEFAULT:
        origin = Origin("TrainConfig")
    return Problem(origin=origin.named(key), value=value, rule=rule)
