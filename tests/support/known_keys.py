"""What the installed Accelerate and DeepSpeed know of their files, in the form of the tables beside
the readers.

    python tests/support/known_keys.py     # rewrite the lower part of both tables after an upgrade

Neither package lists its keys. Accelerate's launcher has a parser that knows the nested ones;
DeepSpeed's own ``DeepSpeedConfig`` is built from mappings that note which keys are asked for, and
with which default, and its pydantic models give their fields away by refusing a probe.
"""

from __future__ import annotations

import enum
import inspect
import logging
import typing
from collections.abc import Iterator, KeysView
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

FILES = Path(__file__).resolve().parents[2] / "trainer" / "launching" / "files"
MARK = "# From here on written by known_keys.py from accelerate 1.15 and deepspeed 0.19.\n"
Key = tuple[str, ...]
_PROBE = "samecurve_probe"
_SECTIONS = (
    "fsdp_config",
    "fp8_config",
    "dynamo_config",
)  # whose prefix Accelerate adds itself (commands/launch.py)


def accelerate_keys() -> dict[str, Any]:
    """Return ``top_level``: key to type, and ``sections``: section to launcher argument to type."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import constants
    from accelerate.utils.dataclasses import DistributedType
    from accelerate.utils.launch import prepare_multi_gpu_env

    parser = launch_command_parser()
    actions = {action.dest: action for action in parser._actions}
    # Some keys (fsdp_ignored_modules) have no argument: the launcher looks them up by name only.
    code = prepare_multi_gpu_env.__code__
    arguments = {
        *actions,
        *(name for name in (*code.co_names, *code.co_consts) if isinstance(name, str)),
    }
    choices = {
        "distributed_type": [member.value for member in DistributedType],
        "mixed_precision": list(actions["mixed_precision"].choices),
        "fsdp_auto_wrap_policy": constants.FSDP_AUTO_WRAP_POLICY,
        "fsdp_backward_prefetch": constants.FSDP_BACKWARD_PREFETCH,
        "fsdp_sharding_strategy": constants.FSDP_SHARDING_STRATEGY,
        "fsdp_state_dict_type": constants.FSDP2_STATE_DICT_TYPE,
        "deepspeed_multinode_launcher": constants.DEEPSPEED_MULTINODE_LAUNCHERS,
    }
    top: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(ClusterConfig).items():
        members = typing.get_args(hint) or (hint,)
        if dict not in members:
            scalar = (
                None
                if typing.get_origin(hint) is list
                else next((one for one in members if one in _TYPES), None)
            )
            top[name] = choices.get(name) or _TYPES.get(scalar, "any")
            continue
        prefix = f"{name}_" if name == "parallelism_config" else name.removesuffix("config")
        names = {argument for argument in arguments if argument.startswith(prefix)}
        if name == "deepspeed_config":
            groups = [
                {action.dest for action in group._group_actions} for group in parser._action_groups
            ]
            names = next(group for group in groups if "zero_stage" in group)
        sections[name] = {
            one: choices.get(one) or _argument(actions.get(one)) for one in sorted(names)
        }
    return {"top_level": top, "sections": sections}


_TYPES = {bool: "bool", int: "int", float: "number", str: "text"}


def _argument(action: Any) -> Any:
    """Return the type of a launcher argument: what is true or false travels as text."""
    if action is None:
        return "text"
    if action.choices:
        return list(action.choices)
    if action.type is bool or action.nargs == 0 or str(action.default).lower() in ("true", "false"):
        return "flag"
    return _TYPES.get(action.type, "any")


def deepspeed_keys(refused: list[str]) -> dict[str, Any]:
    """Return ``keys``: type by key, nested; ``models``, ``removed``, and ``settings`` of optimizers
    and schedulers.

    Args:
        refused: sections that are not looked into.
    """
    from deepspeed.ops.adam import FusedAdam
    from deepspeed.runtime import config, lr_schedules
    from torch import optim

    models: list[str] = []

    def keys(path: Key) -> dict[str, Any]:
        known, is_model = _probed(path)
        if is_model:
            models.append(".".join(path))
        found = {}
        for name, hint in known.items():
            below = (*path, name)
            free = ".".join(below) in refused or name == "params"
            inner = {} if free or not _may_be_section(hint) else _probed(below)[0]
            found[name] = keys(below) if inner else _spec(*hint)
        return found

    removed = {**config._REMOVED_TOP_LEVEL_CONFIG_KEYS}
    removed |= {
        f"zero_optimization.{key}": words for key, words in config._REMOVED_ZERO_CONFIG_KEYS.items()
    }
    schedules = [
        getattr(lr_schedules, name) for name in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
    ]
    classes = {
        "FusedAdam": FusedAdam,
        "torch.AdamW": optim.AdamW,
        "torch.Adam": optim.Adam,
        "torch.SGD": optim.SGD,
    }
    found = keys(())
    return {
        "keys": found,
        "models": models,
        "removed": {key: words.strip().rstrip(". ") for key, words in removed.items()},
        "settings": {
            name: _signature(cls)
            for name, cls in (classes | {c.__name__: c for c in schedules}).items()
        },
    }


def _signature(cls: type) -> dict[str, Any]:
    """Return the settings that a class takes, with their defaults; its first argument is what it
    works on.
    """
    _, *settings = inspect.signature(cls).parameters.values()
    defaults = {one.name: None if one.default is one.empty else one.default for one in settings}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()
    }


def _may_be_section(hint: tuple[Any, Any]) -> bool:
    default, info = hint
    return info is not None or default is None or isinstance(default, dict)


def _spec(default: Any, info: Any) -> Any:
    """Return the type of a key: by its field in a model, else by its default."""
    if info is None:
        return {bool: "bool", int: "number", float: "number"}.get(type(default), "any")
    if typing.get_origin(info.annotation) is list:
        return "any"
    members = [
        one for one in typing.get_args(info.annotation) or (info.annotation,) if one is not NoneType
    ]
    if typing.get_origin(info.annotation) is typing.Literal:
        return list(members)
    [hint] = members if len(members) == 1 else [None]
    if isinstance(hint, type) and issubclass(hint, enum.Enum) and not issubclass(hint, int):
        return [member.value for member in hint]
    words = {bool: "bool", int: "whole", float: "number", str: "text", Path: "text"}.get(
        hint, "any"
    )
    limits = [f"{sign} {getattr(one, name):g}" for one in info.metadata for name, sign in _LIMITS.items()
              if hasattr(one, name)]  # fmt: skip
    return " ".join([words, *limits])


_LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


class _Noting(dict[str, Any]):
    """A mapping that notes, for itself and for all below it, the keys that are asked for."""

    def __init__(self, data: dict[str, Any], path: Key, asked: dict[Key, dict[str, Any]]) -> None:
        below = {
            key: _Noting(v, (*path, key), asked) if isinstance(v, dict) else v
            for key, v in data.items()
        }
        super().__init__(below)
        self.asked = asked.setdefault(path, {})

    def __contains__(self, key: object) -> bool:
        self.asked.setdefault(str(key), None)
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.setdefault(key, None)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        if self.asked.get(key) is None:
            self.asked[key] = default
        return super().get(key, default)

    def keys(self) -> Any:  # dict's own return type cannot be subclassed
        return _NotingKeys(self)


class _NotingKeys(KeysView[str]):
    def __init__(self, data: _Noting) -> None:
        super().__init__(data)
        self._data = data

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)


def _probed(path: Key) -> tuple[dict[str, tuple[Any, Any]], bool]:
    """Return what DeepSpeed knows at ``path``, key to default and pydantic field, and whether that
    is a model.
    """
    from deepspeed.runtime.config import DeepSpeedConfig

    asked: dict[Key, dict[str, Any]] = {}
    # Optimizer and scheduler look at `params` only where there is a `type`.
    data: dict[str, Any] = {"type": "none", _PROBE: 0} if path else {}
    for name in reversed(path):
        data = {name: data}
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        DeepSpeedConfig(_Noting({"train_micro_batch_size_per_gpu": 1, **data}, (), asked))
    except Exception as error:  # a model's refusal of the probe, or of a section that was removed
        if (fields := _fields(error)) is not None:
            return {name: (None, info) for name, info in fields.items()}, True
    finally:
        logging.disable(before)
    return {
        name: (default, None) for name, default in asked.get(path, {}).items() if name != _PROBE
    }, False


def _fields(error: Exception) -> dict[str, Any] | None:
    """Return the fields of the model that refused the probe."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return None
    path = next(
        (detail["loc"] for detail in error.errors() if detail["loc"][-1:] == (_PROBE,)), None
    )
    model: Any = next(
        (found for found in _below(DeepSpeedConfigModel) if found.__name__ == error.title), None
    )
    if path is None or model is None:
        return None
    for name in path[:-1]:
        hint = _named(model)[str(name)].annotation
        model = next(one for one in (hint, *typing.get_args(hint)) if hasattr(one, "model_fields"))
    return _named(model)


def _named(model: Any) -> dict[str, Any]:
    names = {}
    for name, info in model.model_fields.items():
        names[name] = info
        if info.alias:
            names[info.alias] = info
    return names


def _below(model: type) -> Iterator[type]:
    for found in model.__subclasses__():
        yield found
        yield from _below(found)


class _Dumper(yaml.SafeDumper):
    """A dumper that writes lists in one line."""

    def represent_list(self, data: Any) -> yaml.Node:
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Dumper.add_representer(list, _Dumper.represent_list)


def rewrite() -> None:
    """Write what the installed packages know into both tables, below what is written by hand."""
    for name in ("accelerate", "deepspeed"):
        path = FILES / f"{name}.yaml"
        by_hand = path.read_text().partition(MARK)[0]
        known = (
            accelerate_keys()
            if name == "accelerate"
            else deepspeed_keys(yaml.safe_load(by_hand)["refused"])
        )
        text = yaml.dump(known, Dumper=_Dumper, sort_keys=False, width=110)
        path.write_text(f"{by_hand}{MARK}{text}")


if __name__ == "__main__":
    rewrite()
