"""Rules of a training config that types and limits cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import Origin
from .schedule_keys import check_schedule

# Short names of optimizers. Any other optimizer is named by its class.
OPTIMIZERS = {
    "adamw": "torch.optim:AdamW",
    "adam": "torch.optim:Adam",
    "sgd": "torch.optim:SGD",
    "muon": "trainer.optim.muon:Muon",
}
WITH_KEYS = ("adamw", "adam", "sgd")  # their settings are keys of the config
WARMUPS = ("warmup_steps", "warmup_samples", "warmup_fraction")  # the same length in three units


def check_rules(c: Any) -> None:
    """Raise ConfigError if the valid values of a ``TrainConfig`` break a rule together."""
    for key, rule in _broken(c):
        raise Origin("TrainConfig", key=key).error(rule, getattr(c, key))
    if c.schedule is not None:
        check_schedule(c.schedule, c.schedule_settings)


def _broken(c: Any) -> Iterator[tuple[str, str]]:
    """Yield the key and the rule of each mistake."""
    if c.overwrite and c.resume == "auto":
        yield "overwrite", "would delete the run that resume: auto continues; remove one of the two"
    if not (c.epochs or c.max_steps):
        yield "epochs", "epochs or max_steps is required"

    if c.same_bits and None in (c.micro_batch_size, c.global_batch_size):
        yield "same_bits", "needs micro_batch_size and global_batch_size, which all layouts share"

    first, last = profiled_steps(c.profile_steps or "2")
    if c.profile_steps and not 2 <= first <= min(last, c.max_steps or last):
        rule = "must be steps such as 10-12, from 2 (the first warms up) to max_steps"
        yield "profile_steps", rule

    optimizer = c.optimizer or WITH_KEYS[0]
    if optimizer in WITH_KEYS and c.optimizer_settings:
        rule = f"not for optimizer {optimizer}, whose settings are keys; name a class for them"
        yield "optimizer_settings", rule

    if c.lr_scaling != "none" and not c.reference_batch_size:
        yield "lr_scaling", "needs reference_batch_size, the global batch that lr belongs to"
    if c.schedule is None and c.schedule_settings:
        yield "schedule_settings", "needs schedule, whose settings these are"

    warmups = [key for key in WARMUPS if getattr(c, key)]
    if len(warmups) > 1:
        rule = f"sets the same length as {warmups[0]} in another unit; keep one of them"
        yield warmups[-1], rule
    if c.schedule == "inverse_sqrt" and not warmups:
        yield "schedule", f"needs warm-up, after which it falls: one of {', '.join(WARMUPS)}"


def profiled_steps(text: str) -> tuple[int, int]:
    """Return first and last step of ``profile_steps``."""
    first, _, last = text.partition("-")
    return int(first), int(last or first)
