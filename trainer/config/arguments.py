"""The command line of a training script.

Settings are written ``--key value``, ``--key=value`` or ``key=value``, and nested keys
``--task_settings.width 64``, which argparse cannot read. Their values stay text here, because the
annotations of their keys decide later how they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import usage_error
from .annotations import annotations_of
from .train_config import DEFAULTS, TrainConfig

_SWITCHES = ("help", "print_config")
FILES = {
    "config": "training config (YAML or JSON); FILE as the first word is the same",
    "accel_config": "accelerate YAML, if the launcher is not `accelerate launch`",
    "deepspeed": ("DeepSpeed JSON, under the `deepspeed` launcher (or --deepspeed_config)"),
}
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
    "deepspeed": {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"},
}
_OTHER_SPELLINGS = {"deepspeed_config": "deepspeed", "h": "help"}
_DASHED = re.compile(r"--[A-Za-z_].*|-h", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.-]*=")
_FLAGS = {key for key, default in DEFAULTS.items() if isinstance(default, bool)}


def split_command_line(argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options that were typed after a training script, by dotted key, and other words.

    A bool key without a value is true. The last value of a key counts. ``--local_rank``, which the
    deepspeed launcher appends, is dropped: the environment has the same value.

    Raises:
        ConfigError: a key has no value.
    """
    texts: dict[str, str] = {}
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not (_DASHED.fullmatch(word) or _ASSIGNMENT.match(word)):
            words.append(word)
            continue
        name, equals, text = word.partition("=")
        typed = name.lstrip("-").replace("-", "_")
        key = _OTHER_SPELLINGS.get(typed, typed)
        texts[key] = text if equals else _value_after(name, key, rest)
    texts.pop("local_rank", None)
    return texts, words


def launch_option(data: Mapping[str, Any]) -> str:
    """Return the option that takes a launch file, such as ``accel_config``. "" for another file.

    Args:
        data: the content of the file.
    """
    return next((key for key, own in _OF_LAUNCH_FILES.items() if data.keys() & own), "")


def _value_after(name: str, key: str, rest: list[str]) -> str:
    """Return the text of an option without ``=``: the first word of ``rest``, or ``true``."""
    is_flag = key in _FLAGS
    follows = bool(rest) and not rest[0].startswith("--")
    if key in _SWITCHES or (is_flag and follows and _ASSIGNMENT.match(rest[0])):
        return "true"
    if follows:
        return rest.pop(0)
    if key in FILES or (key in annotations_of(TrainConfig) and not is_flag):
        raise usage_error(key, None, f"needs a value: {name} VALUE")
    return "true"
