"""Which keys a DeepSpeed JSON may have, asked of DeepSpeed itself.

DeepSpeed accepts unknown keys without a word in its older sections and at the top level. So its own
``DeepSpeedConfig`` is built from mappings that note which keys are asked for, and with which default;
sections that are pydantic models give themselves away by refusing a probe.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, KeysView
from typing import Any

from ..documents import Document, Key
from ..errors import LaunchError
from .given import Check, Given, lookup, numeric, unknown

_PROBE = "samecurve_probe"
_BATCH: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
# DeepSpeed hands these to classes that are chosen by name.
_FREE = (("optimizer", "params"), ("scheduler", "params"))
# What Hugging Face's tools resolve; `data_types.keep_in_fp32_modules` is DeepSpeed's own "auto".
_AUTO = {
    ("train_batch_size",),
    ("train_micro_batch_size_per_gpu",),
    ("gradient_accumulation_steps",),
    ("gradient_clipping",),
    ("fp16", "enabled"),
    ("bf16", "enabled"),
    ("bfloat16", "enabled"),
    ("zero_optimization", "reduce_bucket_size"),
    ("zero_optimization", "stage3_prefetch_bucket_size"),
    ("zero_optimization", "stage3_param_persistence_threshold"),
    ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
    ("data_types", "keep_in_fp32_modules"),
}
# Sections that turn on another kind of training than the one that was asked for.
_OTHER_TRAINING = (
    ("autotuning",),
    ("compile", "deepcompile"),
    ("compression_training",),
    ("curriculum_learning",),
    ("data_efficiency",),
    ("datastates_ckpt",),
    ("elasticity",),
    ("expert_parallel",),
    ("hybrid_engine",),
    ("msamp",),
    ("optimizer", "legacy_fusion"),
    ("pipeline",),
    ("sequence_parallel_size",),
    ("tensor_parallel",),
    ("torch_autocast",),
    ("weight_quantization",),
    ("zero_optimization", "zenflow"),
)


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
    try:
        from deepspeed.runtime.config import DeepSpeedConfig
    except ImportError:
        raise LaunchError("DeepSpeed is not installed: pip install 'samecurve[deepspeed]'") from None
    return DeepSpeedConfig(data)


@functools.cache
def known_keys(path: Key) -> dict[str, Any] | None:
    """Keys that DeepSpeed knows at ``path``, each with its default or, in a model, its type; None for any key."""
    asked: dict[Key, dict[str, Any]] = {}
    # Optimizer and scheduler look at `params` only where there is a `type`.
    data: dict[str, Any] = {"type": "none", _PROBE: 0} if path else {}
    for name in reversed(path):
        data = {name: data}
    try:
        deepspeed_config(_Noting({**_BATCH, **data}, (), asked))
    except LaunchError:
        raise
    except Exception as error:  # a model's refusal of the probe, or of a section that was removed
        if (fields := _fields(error)) is not None:
            return fields
    return asked.get(path) or None


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


def check_document(doc: Document, check: Check) -> None:
    """Unknown keys, wrong types, "auto" where nobody resolves it, and what DeepSpeed itself refuses."""
    for path in _OTHER_TRAINING:
        given = lookup(doc, path)
        if given is not None and _switched_on(given.value):
            check.fail(given, "not supported by samecurve; remove it")
    _check_mapping(doc, (), doc.data, check)
    _check_values(doc, check)


def _switched_on(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("enabled", True) is not False
    return value not in (None, False, 0, 1) or value is True


def _check_mapping(doc: Document, path: Key, data: dict[str, Any], check: Check) -> None:
    known = None if path in _FREE else known_keys(path)
    for key, value in data.items():
        here = (*path, key)
        given = Given(value=value, where=doc.where(*here), key=".".join(here))
        if here in _OTHER_TRAINING:
            continue
        if known is not None and key not in known:
            homes = [name for name in ("zero_optimization", "fp16", "bf16") if key in (known_keys((name,)) or {})]
            check.problems.append(unknown(given, key, known, f"it belongs under {homes[0]}" if homes else ""))
        elif value == "auto":
            if here not in _AUTO and path not in _FREE:
                check.fail(given, '"auto" is not resolved here; write a value, or remove the key')
        elif value is not None and not isinstance(value, dict) and known is not None and known_keys(here):
            check.fail(given, "must be a mapping")
        elif known is None or not _is_text(known[key]):
            if numeric(value):
                check.fail(given, "is text; remove the quotes")
            elif known is not None:
                _check_type(given, known[key], check)
        if isinstance(value, dict) and (known is None or key in known):
            _check_mapping(doc, here, value, check)


def _is_text(hint: Any) -> bool:
    return hint is str or str in typing.get_args(hint)


def _check_type(given: Given, default: Any, check: Check) -> None:
    """Hold a value against the default that DeepSpeed's older sections give it."""
    if isinstance(default, bool):
        check.switch(given, quoted=False)
    elif isinstance(default, (int, float)):
        check.number(given)
    elif isinstance(default, dict) and not isinstance(given.value, dict):
        check.fail(given, "must be a mapping")


def _check_values(doc: Document, check: Check) -> None:
    """Let DeepSpeed read each section on its own, so that what it refuses can be named."""
    told = {problem.key for problem in check.problems}
    for key, value in without_auto(doc.data).items():
        given = Given(value=value, where=doc.where(key), key=key)
        if any(name == key or name.startswith(f"{key}.") for name in told):
            continue  # in plainer words
        try:
            deepspeed_config({**_BATCH, key: value})
        except Exception as error:  # DeepSpeed raises asserts, ValueErrors and its own; all are about this section
            for path, rule in _told(error):
                found = lookup(doc, (key, *path)) if path else given
                check.fail(found or given, rule)


def _told(error: Exception) -> list[tuple[Key, str]]:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return [((), f"DeepSpeed: {_first_line(str(error))}")]
    details = error.errors()
    return [(tuple(map(str, detail["loc"])), f"DeepSpeed: {_first_line(detail['msg'])}") for detail in details]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(". ")


def without_auto(data: dict[str, Any]) -> dict[str, Any]:
    """A copy without the values that are "auto": DeepSpeed's defaults hold there."""
    return {
        key: without_auto(value) if isinstance(value, dict) else value for key, value in data.items() if value != "auto"
    }
