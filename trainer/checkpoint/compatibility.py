"""What decides the numbers of a run, and what differs between a checkpoint and the run that continues it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..config.fingerprint import fingerprint
from ..errors import CheckpointError, ConfigError, Origin, Problem
from .codec import encode

if TYPE_CHECKING:
    from ..state import TrainState


def mathematics(run: TrainState) -> dict[str, Any]:
    """The fingerprint that must stay the same for the loss curve to go on as if nothing had happened."""
    built = {
        **run.task_facts,
        "train_samples": run.train_data.size,
        "optimizer": run.optimizer_form.kind,
        "optimizer_groups": list(run.optimizer_form.groups),
        "schedule_class": type(run.schedule).__name__,
        "total_steps": run.total_steps,
    }
    told = fingerprint(vars(run.config) | run.plan.as_dict() | built)
    # The groups say what these settings became; the weights to start with are the checkpoint's.
    del told["optimizer_settings"], told["weights"]
    plain: dict[str, Any] = encode(json.loads(json.dumps(told, default=str)), {}, "mathematics")  # as it reads back
    return plain


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """``key: before -> now`` in one line each; of nested values only the parts that differ."""
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += [f"{key}.{line}" for line in differences(old, new)]
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            lines += [f"{key}.{line}" for line in differences(_numbered(old), _numbered(new))]
        elif old != new:
            lines.append(f"{key}: {_short(old)} -> {_short(new)}")
    return lines


def check_same(
    before: Mapping[str, Any], now: Mapping[str, Any], others: Sequence[str], *, allowed: bool, source: str
) -> list[str]:
    """Return the differences and ``others`` that were found elsewhere, where they are allowed.

    Raises:
        ConfigError: there are some, and they are not allowed.
    """
    found = [*differences(before, now), *others]
    if found and not allowed:
        rule = (
            f"the checkpoint {source} belongs to a run with other numbers; restore these values, or set "
            f"allow_config_change: true to go on with the new ones: {'; '.join(found)}"
        )
        raise ConfigError(Problem(origin=Origin("resume", key="allow_config_change"), rule=rule))
    return found


def check_model(before: list[list[Any]], now: list[list[Any]], source: str) -> None:
    """Names and shapes of the model's tensors must be those of the checkpoint, whatever is allowed.

    Raises:
        CheckpointError: naming what differs.
    """
    old, new = ({name: tuple(shape) for name, shape, _ in model} for model in (before, now))
    wrong = [f"{name} is missing" for name in new if name not in old]
    wrong += [f"{name} is not in the model" for name in old if name not in new]
    wrong += [f"{n} has shape {old[n]}, the model's is {new[n]}" for n in new if n in old and old[n] != new[n]]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise CheckpointError(f"{source}: does not hold this model: {'; '.join(wrong[:3])}{more}")


def _numbered(items: list[Any]) -> dict[str, Any]:
    return {str(number): item for number, item in enumerate(items)}


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
