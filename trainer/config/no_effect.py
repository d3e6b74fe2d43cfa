"""Keys of the training config that were set and change nothing: a notice tells them, no error."""

from __future__ import annotations

from collections.abc import Iterator

from .rules import OPTIMIZERS
from .schedules import TO_FINAL
from .train_config import DEFAULTS, TrainConfig


def without_effect(
    config: TrainConfig, *, optimizer: str, schedule: str
) -> Iterator[tuple[str, str]]:
    """Yield each key that differs from its default and has no effect, and why.

    Args:
        optimizer, schedule: those of the run, which a launch file may name instead of the config.
    """
    unused = dict(_conditions(config))
    for key in unused_by_optimizer(optimizer):
        unused[key] = f"on optimizer {optimizer}"
        if optimizer not in OPTIMIZERS:
            unused[key] += "; write it into optimizer_settings"
    if schedule not in TO_FINAL:
        unused["final_lr_ratio"] = f"on schedule {schedule}"

    for key, condition in unused.items():
        if getattr(config, key) != DEFAULTS[key]:
            yield key, f"has no effect {condition}"


def _conditions(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield keys that have no effect beside the other values of a config."""
    if config.resume == "none":
        yield "allow_config_change", "without resume: auto or a path"
    if config.keep_last == 0:
        yield "save_every", "with keep_last: 0, which writes no checkpoints"
        yield "keep_every", "with keep_last: 0, which writes no checkpoints"
    if config.lr_scaling == "none":
        yield "reference_batch_size", "without lr_scaling: linear or sqrt"
    if config.reference_batch_size is None:
        yield "lr_scaling", "without reference_batch_size, the global batch that lr belongs to"
    if config.best_metric is None:
        yield "early_stop_patience", "without best_metric, the value that has to get better"
    if "wandb" not in config.trackers:
        yield "track_model", "without wandb among the trackers"
    if config.push_to_hub is None:
        yield "hub_private", "without push_to_hub, the repository that it is about"


def unused_by_optimizer(optimizer: str | None) -> tuple[str, ...]:
    """Return the keys that an optimizer does not use; None stands for adamw."""
    if optimizer == "sgd":
        return ("betas", "eps")
    if optimizer in (None, *OPTIMIZERS):
        return ("momentum",)
    return ("betas", "eps", "momentum")  # named by its class: they are in optimizer_settings
