"""The names of a run and its folder, with placeholders as of ``str.format``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any

from ..run_plan import Plan
from ..text import did_you_mean, hidden, in_one_line
from .plain import dotted

if TYPE_CHECKING:
    from .train_config import TrainConfig

_DEFAULT_NAME = "{experiment}-{strategy}-{world_size}"
# Facts of the plan that are no keys of the config.
_FACTS = ("strategy", "world_size", "device")
# The templates themselves, and keys that differ between the starts of a run, whose folder would not
# be found again.
_NO_VALUES = ("run_name", "output_dir", "resume", "overwrite", "allow_config_change")


def resolve_names(config: TrainConfig, plan: Plan) -> dict[str, str]:
    """Return ``run_name`` and ``output_dir`` with values as they run for the placeholders.

    The learning rate is not scaled.

    Raises:
        ConfigError: a placeholder is unknown.
    """
    facts = {**vars(plan), "experiment": experiment_of(config), "lr": plan.lr_reference}
    values: dict[str, Any] = dict.fromkeys(_FACTS) | dict(dotted(hidden(vars(config))))
    values |= {key: facts[key] for key in values if facts.get(key) is not None}
    for key in _NO_VALUES:
        del values[key]

    templates = {"run_name": config.run_name or _DEFAULT_NAME, "output_dir": config.output_dir}
    for key, template in templates.items():
        try:
            values[key] = _Names(path=key == "output_dir").vformat(template, (), values)
        except (ValueError, TypeError) as error:
            raise plan.origin(key).error(str(error), template) from None
    return {key: values[key] for key in templates}


def experiment_of(config: TrainConfig) -> str:
    """Return the name that compared runs share: by default the task's."""
    return config.experiment or config.task.rpartition(":")[2]


def as_literal(text: str) -> str:
    """Return the template of a literal text, with doubled braces."""
    return text.replace("{", "{{").replace("}", "}}")


def file_name_part(text: str) -> str:
    """Return a text as a part of a file's name: without slash, space and leading dot."""
    return re.sub(r"^\.+", "_", re.sub(r"[^\w.+=,-]+", "-", text))


class _Names(Formatter):
    """A ``str.format`` with dotted keys as names, whose values may be parts of file names."""

    def __init__(self, path: bool) -> None:
        self.path = path

    def get_field(self, name: str, args: object, values: Mapping[str, Any]) -> tuple[Any, str]:
        if name not in values:
            raise ValueError(
                f"{{{name}}}: no such placeholder (double a literal brace); "
                f"{did_you_mean(name, values)}"
            )
        return values[name], name

    def format_field(self, value: Any, form: str) -> str:
        text = format(value, form) if form else _spelled(value)
        return file_name_part(text or "_") if self.path else text or "_"


def _spelled(value: Any) -> str:
    """Return a value in YAML's spelling, in a line. The items of a list are between commas."""
    if isinstance(value, list | tuple):
        return ",".join(map(_spelled, value))
    text = in_one_line(value)
    return text.lower() if isinstance(value, bool | None) else text
