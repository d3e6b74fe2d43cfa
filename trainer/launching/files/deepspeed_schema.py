"""What DeepSpeed knows of its JSON, asked of DeepSpeed itself: keys, defaults, and what it has removed.

It accepts unknown keys without a word in its older sections and at the top level. So its own ``DeepSpeedConfig`` is
built from mappings that note which keys are asked for, and with which default; sections that are pydantic models give
themselves away by refusing a probe.
"""

from __future__ import annotations

import functools
import logging
import typing
from collections.abc import Iterator, KeysView
from typing import Any

from ...config.documents import Key
from ...errors import LaunchError

# The least that DeepSpeed reads.
BATCH: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
_PROBE = "samecurve_probe"


class _Noting(dict[str, Any]):
    """A mapping that notes, for itself and for all below it, the keys that are asked for."""

    def __init__(self, data: dict[str, Any], path: Key, asked: dict[Key, dict[str, Any]]) -> None:
        below = {key: _Noting(v, (*path, key), asked) if isinstance(v, dict) else v for key, v in data.items()}
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


def deepspeed_config(data: dict[str, Any]) -> Any:
    """DeepSpeed's own reading of ``data``, for a batch of one."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it logs to standard output, while it is imported and with every reading
    try:
        from deepspeed.runtime.config import DeepSpeedConfig

        return DeepSpeedConfig(data)
    except ImportError:
        raise LaunchError("DeepSpeed is not installed: pip install 'samecurve[deepspeed]'") from None
    finally:
        logging.disable(before)


def known_keys(path: Key) -> dict[str, Any] | None:
    """Return what DeepSpeed knows at ``path``: keys with their defaults or, in a model, types; None for any."""
    return _probed(path)[0]


def is_model(path: Key) -> bool:
    """Tell whether a section is a model of DeepSpeed's, which takes its default for every value that is "auto"."""
    return _probed(path)[1]


@functools.cache
def _probed(path: Key) -> tuple[dict[str, Any] | None, bool]:
    asked: dict[Key, dict[str, Any]] = {}
    # Optimizer and scheduler look at `params` only where there is a `type`.
    data: dict[str, Any] = {"type": "none", _PROBE: 0} if path else {}
    for name in reversed(path):
        data = {name: data}
    try:
        deepspeed_config(_Noting({**BATCH, **data}, (), asked))
    except LaunchError:
        raise
    except Exception as error:  # a model's refusal of the probe, or of a section that was removed
        if (fields := _fields(error)) is not None:
            return fields, True
    return asked.get(path) or None, False


def _fields(error: Exception) -> dict[str, Any] | None:
    """Fields of the model that refused the probe."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return None
    path = next((detail["loc"] for detail in error.errors() if detail["loc"][-1:] == (_PROBE,)), None)
    model = next((found for found in _below(DeepSpeedConfigModel) if found.__name__ == error.title), None)
    if path is None or model is None:
        return None
    for name in path[:-1]:
        hint = _named(model)[str(name)]
        model = next(kind for kind in (hint, *typing.get_args(hint)) if hasattr(kind, "model_fields"))
    return _named(model)


def _named(model: Any) -> dict[str, Any]:
    names = {}
    for name, info in model.model_fields.items():
        names[name] = info.annotation
        if info.alias:
            names[info.alias] = info.annotation
    return names


def _below(model: type) -> Iterator[type]:
    found: type
    for found in model.__subclasses__():
        yield found
        yield from _below(found)


def json_path(name: str) -> Key | None:
    """Return the key of the JSON that ``name`` means where it is written flat, such as ``bf16_enabled``."""
    zero: Key = ("zero_optimization",)
    sections: tuple[Key, ...] = ((), zero, (*zero, "offload_optimizer"), (*zero, "offload_param"), ("fp16",), ("bf16",))
    for section in sections:
        for key in known_keys(section) or ():
            path: Key = (*section, key)
            if name in ("_".join(path), "_".join(path[section[:1] == zero :])):
                return path
    return None


def removed(path: Key, value: object) -> str:
    """Return DeepSpeed's own words for a key that it has removed; "" for any other."""
    for name in reversed(path):
        value = {name: value}
    try:
        deepspeed_config({**BATCH, **typing.cast("dict[str, Any]", value)})
    except LaunchError:
        raise
    except Exception as error:  # a class of DeepSpeed's, which raises it for other reasons too
        return f"DeepSpeed: {first_line(str(error))}" if "has been removed" in str(error) else ""
    return ""


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(". ")
