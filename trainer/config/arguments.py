"""The command line of a training and of the commands: files and settings, in any order.

argparse cannot read ``key=value`` and nested keys. Values stay text until their keys are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import usage_error
from .annotations import annotations_of
from .documents import Document, read_document
from .train_config import DEFAULTS, TrainConfig

_FILES = ("config", "accel_config", "deepspeed", "deepspeed_config")
_GRAMMAR = """
Words stand in any order. A FILE is a training config or a launch file, told apart by
the keys, and --config FILE is the same as FILE. Options and settings are written
--key value, --key=value or key=value. Settings are those of the training config,
such as --lr 3e-4, which trainer train --help lists.

  --config FILE           training config (YAML or JSON)
  --accel_config FILE     accelerate YAML, if the launcher is not `accelerate launch`
  --deepspeed FILE        DeepSpeed JSON (or --deepspeed_config)
  --print_config          print all values and their origins, then exit
"""
# Keys that only a launch file has. Few launch files have none of these keys.
_OF_LAUNCH_FILES = {
    "accel_config": {
        "compute_environment",
        "distributed_type",
        "machine_rank",
        "num_machines",
        "num_processes",
        "use_cpu",
    },
    "deepspeed": {
        "bf16",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_optimization",
    },
}
# --key, --key=value or key=value
_SETTING = re.compile(r"(?s)(?:--(?=[A-Za-z_])|(?=[A-Za-z_][\w.-]*=))([^=]*)(=?)(.*)")


def split_command_line(
    argv: Sequence[str], about: str | None, options: Callable[..., Any] = TrainConfig
) -> tuple[dict[str, str], list[str]]:
    """Return the settings and options that were typed, as text by dotted key, and the other words.

    The last value of a key counts, and a key without a value is true if a flag of this name is a
    bool. ``--local_rank`` of the deepspeed launcher is dropped.

    Raises:
        ConfigError: a key has no value.
        SystemExit: with 0, after ``--help``, which begins with ``about``.
    """
    if {"--help", "-h"} & {*argv}:
        from .help import print_help

        print_help(f"{about}\n{_GRAMMAR}", options)

    texts: dict[str, str] = {}
    words: list[str] = []
    rest = list(argv)
    is_flag = {
        key: annotation.__origin__ is bool
        for cls in (TrainConfig, options)
        for key, annotation in annotations_of(cls).items()
    }
    is_flag |= {**dict.fromkeys(_FILES, False), "print_config": True}
    while rest:
        word = rest.pop(0)
        setting = _SETTING.fullmatch(word)
        if not setting:
            words.append(word)
            continue
        key = setting[1].replace("-", "_")
        text = setting[3]
        if not setting[2]:
            is_last = not rest or rest[0].startswith("--")
            if is_last and is_flag.get(key) is False:
                raise usage_error(key, None, f"needs a value: --{key} VALUE")
            is_true = is_last or (is_flag.get(key) and rest[0] not in ("true", "false"))
            text = "true" if is_true else rest.pop(0)
        if key in _FILES:
            words.append(text)
        else:
            texts[key] = text
    texts.pop("local_rank", None)
    return texts, words


def sort_files(paths: Sequence[str]) -> tuple[list[Document], list[Document]]:
    """Return the training configs and the launch files among the files of a command line."""
    found: tuple[list[Document], list[Document]] = [], []
    for path in paths:
        document = read_document(path)
        kind = kind_of(document.data)
        if not kind:
            raise usage_error("", path, "has no key of a training config, nor of a launch file")
        found[kind != "config"].append(document)
    return found


def kind_of(data: Mapping[str, Any]) -> str:
    """Return the option that takes a file with this content. "" for another file."""
    if "task" in data:
        return "config"
    for kind, own in _OF_LAUNCH_FILES.items():
        if data.keys() & own:
            return kind
    return "config" if data.keys() & DEFAULTS else ""
