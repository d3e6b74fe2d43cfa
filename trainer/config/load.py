"""The training config, read from defaults, a file, and the command line, which wins.

All problems are reported at once. Nothing here imports torch, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ..errors import COMMAND_LINE, Origin, origin_of, usage_error
from ..text import HIDDEN, hidden
from .arguments import kind_of, sort_files, split_command_line
from .documents import Document, parse_scalar, to_yaml
from .plain import dotted
from .train_config import TrainConfig
from .validate import build

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A config, and the origins of its values.

    Args:
        origins: by dotted key, without defaults. ``load_task`` adds the task's defaults.
        config_file, accel_config, deepspeed: the files, as named on the command line.
        texts: the settings of the command line, by dotted key. Only a task knows the types of its
            settings.
        is_printed: whether the config is shown instead of trained.
    """

    config: TrainConfig
    origins: dict[str, Origin]
    config_file: str | None
    accel_config: str | None = None
    deepspeed: str | None = None
    texts: Mapping[str, str]
    is_printed: bool


def load_config(argv: Sequence[str]) -> Loaded:
    """Read the training config that ``argv`` asks for. Raises as ``script.load_config``."""
    usage = "usage: trainer train | SCRIPT.py [FILE ...] [--key value ...]"
    texts, words = split_command_line(argv, usage)
    configs, launch_files = sort_files(words)
    for file in [*configs[1:], *launch_files[1:]]:
        raise usage_error("", file.path, "is too many: name a training config and a launch file")
    is_printed = parse_scalar(texts.pop("print_config", "false"))
    document = Document(path=COMMAND_LINE, data={})
    if configs:
        document = configs[0]
    elif "task" not in texts:
        raise usage_error("config", None, "is missing: name a training config, or --task")
    origins = _origins(document, texts)
    place = partial(origin_of, origins, otherwise=document.path)
    config = build(TrainConfig, document.data, place, texts=texts)
    for key, value in dotted(vars(config)):
        if HIDDEN in str(value):
            rule = f"a secret, which is not written down; give the secret again: --{key} VALUE"
            raise origin_of(origins, key).error(rule, value)
    return Loaded(
        config=config,
        origins=origins,
        config_file=document.path if configs else None,
        texts=texts,
        is_printed=is_printed,
        **{kind_of(file.data): file.path for file in launch_files},
    )


def print_config(config: TrainConfig, origins: Mapping[str, Origin]) -> None:
    """Print a config as YAML that reads back as an equal one, below the origins of its values."""
    for key, origin in origins.items():
        print(f"# {key}: {origin.place}")
    print(to_yaml(hidden(vars(config))), end="")


def _origins(document: Document, texts: Mapping[str, str]) -> dict[str, Origin]:
    """Return the origin of each value, by dotted key."""
    typed = {
        part: Origin(COMMAND_LINE, key=part)
        for key in texts
        for part in (key.partition(".")[0], key)
    }
    replaced = tuple(f"{key}." for key in texts)
    left = {key: at for key, at in document.origins.items() if not f"{key}.".startswith(replaced)}
    return typed | left


def check_settings(cls: type[S], settings: Mapping[str, Any], loaded: Loaded) -> S:
    """Return the task ``cls`` with these ``task_settings``.

    Raises:
        ConfigError: a setting is unknown, missing or wrong, or the task itself raised a ValueError.
    """
    place = partial(origin_of, loaded.origins, otherwise=loaded.config_file or "TrainConfig")
    return build(cls, settings, place, "task_settings.", loaded.texts)
