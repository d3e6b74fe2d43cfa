"""The name of a run and its folder, from the config, the plan and W&B's environment."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import DEFAULT, ConfigError, Origin, Problem
from ..plan import Plan
from .placeholders import TEMPLATES, PlaceholderError, as_literal, fill_in, names_in
from .train_config import TrainConfig

_DEFAULT_NAME = "{experiment}-{strategy}-{world_size}"
# Facts of the plan that are no keys of the config.
_FACTS = ("strategy", "world_size", "num_machines", "device")
# Keys by which one start of a run differs from its next: none of them finds the folder again.
_OF_ONE_START = ("resume", "overwrite", "allow_config_change")
_IN_PLAN = {field.name for field in fields(Plan)}


@dataclass(frozen=True, kw_only=True)
class Names:
    """The name and the folder of a run.

    Args:
        run_name: for people, in trackers and tables.
        output_dir: the folder.
        of_environment: whether W&B's WANDB_NAME gave the name.
        notices: what to know about them, a line each.
    """

    run_name: str
    output_dir: str
    of_environment: bool = False
    notices: tuple[str, ...] = ()

    def written_to(self, config: TrainConfig) -> TrainConfig:
        """Return the config with the folder as it was resolved: read again, it names the same one.

        The template of the run's name stays: under another strategy it names that one.
        """
        run_name = as_literal(self.run_name) if self.of_environment else config.run_name
        return replace(config, output_dir=as_literal(self.output_dir), run_name=run_name)


def resolve_names(
    config: TrainConfig,
    plan: Plan | None,
    origins: Mapping[str, Origin],
    environment: Mapping[str, str] | None = None,
) -> Names:
    """Fill in the placeholders of ``run_name`` and ``output_dir``.

    Without ``run_name`` a run on W&B has the name in WANDB_NAME, and any other is called
    EXPERIMENT-STRATEGY-PROCESSES.

    Args:
        plan: of the run; None before the launch, where the placeholders that it decides stay.
        origins: of the config's values, for messages.
        environment: its variables; by default those of this process.

    Raises:
        ConfigError: a placeholder is unknown.
    """
    if environment is None:
        environment = os.environ
    values, open_names = _values(config, plan)

    template = _DEFAULT_NAME if config.run_name is None else config.run_name
    run_name = _filled("run_name", template, values, open_names, origins)
    is_open = bool(open_names.intersection(names_in(template)))

    of_wandb = _wandb_name(config, environment)
    notices = []
    if of_wandb and config.run_name is None:
        run_name, is_open = of_wandb, False
    elif of_wandb and of_wandb != run_name and not is_open:
        place = origins.get("run_name", DEFAULT).place
        notices.append(f"WANDB_NAME {of_wandb!r} has no effect: run_name ({place}) names the run")

    values["run_name"] = run_name
    if is_open:
        open_names.add("run_name")
    output_dir = _filled("output_dir", config.output_dir, values, open_names, origins)
    return Names(
        run_name=run_name,
        output_dir=output_dir,
        of_environment=bool(of_wandb) and config.run_name is None,
        notices=tuple(notices),
    )


def experiment_of(config: TrainConfig) -> str:
    """Return the name that runs which are compared have in common: by default the task's."""
    return config.experiment or config.task.rpartition(":")[2]


def _wandb_name(config: TrainConfig, environment: Mapping[str, str]) -> str:
    """Return the name that W&B's own variable gives; empty where there is none."""
    if "wandb" not in config.trackers:
        return ""
    return " ".join(environment.get("WANDB_NAME", "").split())


def _filled(
    key: str,
    template: str,
    values: Mapping[str, object],
    open_names: Collection[str],
    origins: Mapping[str, Origin],
) -> str:
    """Return a template with its values.

    Raises:
        ConfigError: a placeholder is unknown.
    """
    try:
        return fill_in(template, values, open_names, path=key == "output_dir")
    except PlaceholderError as error:
        origin = origins.get(key, Origin("TrainConfig")).named(key)
        raise ConfigError(Problem(origin=origin, value=template, rule=str(error))) from None


def _values(config: TrainConfig, plan: Plan | None) -> tuple[dict[str, object], set[str]]:
    """Return the values of placeholders by name, and the names that the plan decides.

    Keys that a launch file may set, too, have the values that run.
    """
    values: dict[str, object] = {}
    for key, value in _flat(vars(config)):
        if key not in (*TEMPLATES, *_OF_ONE_START):
            values[key] = value
    values["experiment"] = experiment_of(config)
    if plan is None:
        unknown = {key for key in _IN_PLAN if key in values and values[key] is None}
        return values, unknown | set(_FACTS)

    for key in _FACTS:
        values[key] = getattr(plan, key)
    for key in _IN_PLAN.intersection(values):
        # The rate as it is configured; the plan has it scaled as well.
        of_plan = getattr(plan, "lr_reference" if key == "lr" else key)
        if of_plan is not None and not isinstance(of_plan, Mapping):
            values[key] = of_plan
    return values, set()


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value with its dotted key, mappings themselves as well."""
    for name, value in settings.items():
        yield f"{above}{name}", value
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
