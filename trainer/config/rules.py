"""Rules between the keys of a training config, and those that types and limits cannot say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from ..text import did_you_mean, seconds_of
from .interval import FORMS, is_interval
from .placeholders import TEMPLATES, PlaceholderError, names_in
from .schedules import check_schedule
from .validate import Validator

# Those with keys of their own; any other is named by its class.
OPTIMIZERS = ("adamw", "adam", "sgd")
WARMUPS = ("warmup_steps", "warmup_samples", "warmup_fraction")  # one length, in three units
PATHS = ("output_dir", "resume", "weights")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,96}/[A-Za-z0-9_.-]{1,96}")
_CLASS = re.compile(r"[A-Za-z_][\w.]*[.:][A-Za-z_]\w*")


def check_rules(check: Validator, defaults: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Record a problem for each rule that does not hold.

    What is wrong already breaks no rule: a misspelt ``epochs`` is not a missing one as well.

    Args:
        check: has looked at each value alone.
        defaults: of the keys that ``values`` does not have.
    """
    wrong = {problem.key.split(".")[0] for problem in check.problems}
    wrong |= {key[0] for key in check.misspelt}
    right = {key: value for key, value in values.items() if key not in wrong}
    config = SimpleNamespace(task=None)
    vars(config).update(defaults)
    vars(config).update(right)

    def problem(key: str, rule: str, *other_keys: str) -> None:
        """Record a broken rule, whose remedy is at ``key``, unless a key in it is wrong already."""
        if not wrong & {key, *other_keys}:
            check.record((key,), rule, right.get(key))

    rules = _Rules(config, problem)
    rules.check_names()
    rules.check_templates()
    rules.check_length()
    rules.check_batch()
    rules.check_optimizer()
    rules.check_tracking()
    if config.schedule is not None and "schedule_settings" not in wrong:
        check_schedule(check, config.schedule, config.schedule_settings)


class _Rules:
    """The rules, by subject. Each calls ``problem(key, rule, *other keys that it is about)``."""

    def __init__(self, config: SimpleNamespace, problem: Callable[..., None]) -> None:
        self.config = config
        self.problem = problem

    def check_names(self) -> None:
        """Check the task and the paths."""
        c, problem = self.config, self.problem
        if c.task is not None and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", c.task):
            problem("task", "must be module:Class, such as digits_cnn:DigitsCNN")
        if not c.output_dir:
            problem("output_dir", "must not be empty")
        for key in PATHS:
            if "\0" in (vars(c)[key] or ""):
                problem(key, "no path can hold a character of code 0")
        if not c.resume:
            problem("resume", "must be 'none', 'auto' or the path of a checkpoint")
        if c.overwrite and c.resume == "auto":
            rule = "would delete the run that resume: auto continues; remove one of the two"
            problem("overwrite", rule, "resume")

    def check_templates(self) -> None:
        """Check the braces of names with placeholders; ``naming.py`` knows their values."""
        for key in TEMPLATES:
            template = vars(self.config)[key]
            if template is None:
                continue
            try:
                names_in(template)
            except PlaceholderError as error:
                self.problem(key, str(error))
        if self.config.run_name is not None and not self.config.run_name.strip():
            self.problem("run_name", "must not be empty")

    def check_length(self) -> None:
        """Check how long the run is, and the intervals in it."""
        c, problem = self.config, self.problem
        for key in ("eval_every", "save_every", "stop_at"):
            every = vars(c)[key]
            if every is not None and not is_interval(every):
                problem(key, f"must be {FORMS}, or null")

        if c.epochs is None and c.max_steps is None:
            problem("epochs", "epochs or max_steps is required", "max_steps")
        if c.max_time is not None and not seconds_of(c.max_time):
            problem("max_time", "must be a time such as 90s, 45m, 1h30m or 2d")

        warmups = [key for key in WARMUPS if vars(c)[key]]
        if len(warmups) > 1:
            rule = f"says in another unit what {warmups[0]} says; keep one of them"
            problem(warmups[-1], rule)
        if c.schedule == "inverse_sqrt" and not warmups:
            rule = f"needs warm-up, after which it falls: set one of {', '.join(WARMUPS)}"
            problem("schedule", rule, "warmup_steps")

    def check_batch(self) -> None:
        """Check that the global batch is a product."""
        c = self.config
        if c.global_batch_size is None:
            return
        multiple = c.micro_batch_size
        product = f"micro_batch_size {c.micro_batch_size}"
        if c.accumulation_steps is not None:
            multiple *= c.accumulation_steps
            product += f" x accumulation_steps {c.accumulation_steps} = {multiple}"
        if c.global_batch_size % multiple != 0:
            rule = f"must be a multiple of {product}"
            self.problem("global_batch_size", rule, "micro_batch_size", "accumulation_steps")

    def check_optimizer(self) -> None:
        """Check the name of the optimizer, and settings that it would not get."""
        c, problem = self.config, self.problem
        optimizer = c.optimizer or OPTIMIZERS[0]
        if optimizer in OPTIMIZERS:
            if c.optimizer_settings:
                rule = (
                    f"not for optimizer {optimizer}, whose settings are keys; "
                    "or name a class, such as torch.optim.AdamW"
                )
                problem("optimizer_settings", rule, "optimizer")
        elif not _CLASS.fullmatch(optimizer):
            known = (*OPTIMIZERS, "a class such as torch.optim.Muon")
            problem("optimizer", f"no such optimizer; {did_you_mean(optimizer, known)}")

        if c.schedule is None and c.schedule_settings:
            rule = "needs schedule, whose settings these are"
            problem("schedule_settings", rule, "schedule")

    def check_tracking(self) -> None:
        """Check trackers, the profiler, the metric of the best model, and the Hub."""
        c, problem = self.config, self.problem
        if len(set(c.trackers)) < len(c.trackers):
            problem("trackers", "has a name twice")
        if c.best_metric is not None and not re.fullmatch("eval/.+", c.best_metric):
            problem("best_metric", "must be an evaluation value, such as eval/loss")

        if c.push_to_hub is not None and not _is_repository(c.push_to_hub):
            problem(
                "push_to_hub", "must be a repository of the Hub, USER/NAME, such as anna/digits"
            )

        if c.profile_steps is None:
            return
        if not _are_profiled_steps(c.profile_steps):
            rule = "must be steps such as 10-12, from 2 on: the first step warms up"
            problem("profile_steps", rule)
        elif c.max_steps is not None and profiled_steps(c.profile_steps)[0] > c.max_steps:
            rule = f"begins behind the last step, max_steps {c.max_steps}"
            problem("profile_steps", rule, "max_steps")


def _is_repository(text: str) -> bool:
    """Return whether a text is USER/NAME as the Hub takes it."""
    if not _REPOSITORY.fullmatch(text) or "--" in text or ".." in text or text.endswith(".git"):
        return False
    return all(part[0] not in "-." and part[-1] not in "-." for part in text.split("/"))


def _are_profiled_steps(text: str) -> bool:
    if not re.fullmatch("[0-9]{1,9}(-[0-9]{1,9})?", text):
        return False
    first, last = profiled_steps(text)
    return 2 <= first <= last


def profiled_steps(text: str) -> tuple[int, int]:
    """Return first and last step of ``profile_steps``."""
    first, _, last = text.partition("-")
    return int(first), int(last or first)
