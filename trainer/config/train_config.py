"""The training config: what is learnt, its limits, and the rules between its values.

How a job runs (strategy, world size, offload) stands in the accelerate YAML or the DeepSpeed JSON
instead; the keys that may stand in both are None here by default. ``load.py`` reads it from files
and the command line.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Annotated, Any, Literal

from ..errors import ConfigError
from ..text import did_you_mean, seconds_of
from .annotations import About, plain
from .schedules import SCHEDULES, TO_FINAL, check_schedule
from .validate import Validator, default_of

WARMUPS = ("warmup_steps", "warmup_samples", "warmup_fraction")  # one length, in three units
_INTERVAL = "steps such as 100, or epochs such as '1 epoch'"
_EPOCHS = re.compile(r"([1-9][0-9]*) epochs?")
OPTIMIZERS = (
    "adamw",
    "adam",
    "sgd",
)  # those with keys of their own; any other is named by its class
# Keys that change nothing without another one.
_NEEDS = (
    ("allow_config_change", "resume", "has no effect without resume: auto or a path"),
    ("keep_every", "keep_last", "has no effect with keep_last: 0, which writes no checkpoints"),
    ("save_every", "keep_last", "has no effect with keep_last: 0, which writes no checkpoints"),
    ("schedule_settings", "schedule", "needs schedule, whose settings these are"),
    (
        "lr_scaling",
        "reference_batch_size",
        "needs reference_batch_size, the global batch that lr belongs to",
    ),
    ("reference_batch_size", "lr_scaling", "has no effect without lr_scaling: linear or sqrt"),
    ("best_metric", "eval_every", f"needs eval_every: {_INTERVAL}"),
    ("early_stop_patience", "best_metric", "needs best_metric, the value that has to get better"),
)
_NOTHING: tuple[Any, ...] = (None, "none", 0, {})  # values that ask for nothing; False is 0
Precision = Literal["no", "bf16", "fp16"]
_PATHS = ("output_dir", "resume", "weights")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a training run; ``--help`` prints them as a table.

    Raises:
        ConfigError: a value is impossible, or values do not go together.
    """

    task: Annotated[str, About("module:Class of the task, such as digits_cnn:DigitsCNN")]
    task_settings: Annotated[dict[str, Any], About("the task's own: --task_settings.width 64")] = (
        field(default_factory=dict)
    )
    output_dir: Annotated[str, About("folder of the run", path=True)] = "runs/default"
    overwrite: Annotated[bool, About("allow a used output_dir: its contents are replaced")] = False
    seed: Annotated[int, About("of weights, data order, dropout", minimum=0, maximum=2**32 - 1)] = 0
    deterministic: Annotated[bool, About("deterministic algorithms only: slower, repeatable")] = (
        False
    )

    epochs: Annotated[int | None, About("passes over the data", minimum=1)] = None
    max_steps: Annotated[
        int | None,
        About("optimizer steps; beside epochs, the earlier end counts", minimum=1, maximum=10**15),
    ] = None
    max_time: Annotated[
        str | None,
        About("stop with checkpoint and model after this time of the process, such as 1h30m or 2d"),
    ] = None
    micro_batch_size: Annotated[int, About("examples per process and backward", minimum=1)] = 8
    accumulation_steps: Annotated[
        int | None,
        About("backwards per optimizer step; else from the launch files, else 1", minimum=1),
    ] = None
    global_batch_size: Annotated[
        int | None,
        About("examples per optimizer step: micro batch x accumulation x processes", minimum=1),
    ] = None
    evaluation_batch_size: Annotated[
        int | None, About("per process; else micro_batch_size", minimum=1)
    ] = None
    drop_last: Annotated[bool, About("leave out the last, short step of an epoch")] = False
    workers: Annotated[int, About("data loading processes per rank", minimum=0)] = 0
    timeout_minutes: Annotated[
        float,
        About("how long ranks wait for one another before the job fails", above=0, maximum=1e6),
    ] = 30.0
    hang_seconds: Annotated[
        float | None,
        About(
            "end the job where a rank is stopped or stuck so long; null: wait for timeout_minutes",
            above=0,
        ),
    ] = 10.0

    optimizer: Annotated[
        str | None,
        About(
            f"{', '.join(OPTIMIZERS)}, or a class: torch.optim.Muon; else from the DeepSpeed JSON, else adamw"
        ),
    ] = None
    optimizer_settings: Annotated[
        dict[str, Any],
        About("of an optimizer named by its class: its arguments beside lr and weight_decay"),
    ] = field(default_factory=dict)
    lr: Annotated[float, About("learning rate", above=0)] = 1e-3
    lr_scaling: Annotated[
        Literal["none", "linear", "sqrt"], About("how lr follows the global batch")
    ] = "none"
    reference_batch_size: Annotated[
        int | None, About("the global batch that lr belongs to", minimum=1)
    ] = None
    weight_decay: Annotated[float, About("decay of the weights", minimum=0)] = 0.01
    betas: Annotated[tuple[float, float], About("of adamw and adam", minimum=0, below=1)] = (
        0.9,
        0.999,
    )
    eps: Annotated[float, About("of adamw and adam", above=0)] = 1e-8
    momentum: Annotated[float, About("of sgd", minimum=0, below=1)] = 0.9
    schedule: Annotated[
        str | None,
        About(
            f"{', '.join(SCHEDULES)}, or torch:ExponentialLR; else from the DeepSpeed JSON, else constant"
        ),
    ] = None
    schedule_settings: Annotated[
        dict[str, Any],
        About("step: milestones, gamma; wsd: decay_steps or decay_fraction; torch: its own"),
    ] = field(default_factory=dict)
    warmup_steps: Annotated[int, About("optimizer steps in which lr rises", minimum=0)] = 0
    warmup_samples: Annotated[int | None, About("the same, in samples", minimum=1)] = None
    warmup_fraction: Annotated[
        float | None, About("the same, in parts of the whole run", above=0, maximum=1)
    ] = None
    final_lr_ratio: Annotated[
        float,
        About(f"lr at the end of {', '.join(TO_FINAL)} as a fraction of lr", minimum=0, maximum=1),
    ] = 0.0
    max_grad_norm: Annotated[
        float | None,
        About("clip to this norm, 0: do not; else from the launch files, else 0", minimum=0),
    ] = None

    mixed_precision: Annotated[Precision | None, About("else from the launch files, else 'no'")] = (
        None
    )
    float32: Annotated[
        Literal["exact", "tf32"],
        About("products of float32 on GPUs; tf32: much faster, three digits"),
    ] = "exact"
    sync_batchnorm: Annotated[
        bool, About("BatchNorm over the micro-batches of all ranks; GPUs only")
    ] = False
    compile: Annotated[bool, About("torch.compile the model")] = False
    find_unused_parameters: Annotated[
        bool,
        About(
            "a step may leave parameters out, other ones on each process: heads, experts; slower"
        ),
    ] = False
    bucket_cap_mb: Annotated[
        int | None, About("DDP exchanges gradients in buckets of this many MiB", minimum=1)
    ] = None
    sync_each_batch: Annotated[
        bool,
        About("exchange gradients in each micro-batch: more traffic, and no rank keeps whole ones"),
    ] = False
    ema_decay: Annotated[
        float | None, About("keep a moving average of the weights", above=0, below=1)
    ] = None
    export_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        About("of the exported model; auto: that of the files which it started from, else float32"),
    ] = "auto"
    on_nan: Annotated[
        Literal["stop", "skip"],
        About("what a gradient that is not finite does: end the run, or leave the step out"),
    ] = "stop"
    checks: Annotated[
        Literal["all", "none"],
        About("what looks for numbers that would be silently wrong; none changes a number"),
    ] = "all"
    replica_check_every: Annotated[
        int | None,
        About(
            "steps after which ranks' copies of weights are compared bit by bit; saves too",
            minimum=1,
        ),
    ] = None

    log_every: Annotated[int, About("optimizer steps", minimum=1)] = 10
    eval_every: Annotated[
        int | str | None, About(f"{_INTERVAL}; else at the end", minimum=1, wanted=_INTERVAL)
    ] = None
    save_every: Annotated[
        int | str | None, About(f"{_INTERVAL}; else at the end", minimum=1, wanted=_INTERVAL)
    ] = None
    best_metric: Annotated[str | None, About("keep the best model by this, such as eval/loss")] = (
        None
    )
    best_mode: Annotated[Literal["min", "max"], About("which best_metric is the best")] = "min"
    early_stop_patience: Annotated[
        int | None,
        About("stop after this many evaluations without a better best_metric", minimum=1),
    ] = None

    resume: Annotated[
        str,
        About(
            "'auto': go on from the newest complete checkpoint in output_dir; or a path", path=True
        ),
    ] = "none"
    weights: Annotated[
        str | None, About("start with these: a folder of safetensors, or a checkpoint", path=True)
    ] = None
    allow_config_change: Annotated[
        bool, About("resume although settings that change the numbers differ")
    ] = False
    keep_last: Annotated[
        int, About("newest checkpoints that stay; 0 writes none at all", minimum=0)
    ] = 2
    keep_every: Annotated[
        int | None, About("checkpoints of a multiple of these steps stay as well", minimum=1)
    ] = None
    save_in_background: Annotated[bool, About("write checkpoints while training goes on")] = True
    on_save_error: Annotated[
        Literal["stop", "continue"],
        About("what a checkpoint that cannot be written does to the run"),
    ] = "stop"

    trackers: Annotated[
        list[str],
        About(
            "wandb, trackio, tensorboard, or another of Accelerate's, by name",
            wanted="a list such as [wandb]",
        ),
    ] = field(default_factory=list)
    project: Annotated[str, About("of the trackers")] = "samecurve"
    experiment: Annotated[
        str | None, About("runs to compare share it: W&B's group; else the task's name")
    ] = None
    track_model: Annotated[bool, About("upload the exported model to W&B, as an artifact")] = False
    profile_steps: Annotated[str | None, About("trace these optimizer steps, such as 10-12")] = None

    def __post_init__(self) -> None:
        check = Validator("TrainConfig")
        check.settings(TrainConfig, vars(self))
        check_rules(
            check,
            vars(self),
            {key for key, default in DEFAULTS.items() if vars(self)[key] != default},
        )
        if check.problems:
            raise ConfigError(check.problems)
        for key in _PATHS:
            path = vars(self)[key]
            if (
                path is not None and "\0" not in path
            ):  # which no path has, and the user database refuses
                object.__setattr__(self, key, os.path.expanduser(path))
        object.__setattr__(self, "task_settings", plain(self.task_settings))


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        setting.name: default_of(setting)
        for setting in dataclasses.fields(TrainConfig)
        if setting.name != "task"
    }
)
GROUPS = {
    "task": "What is trained, and where the results go",
    "epochs": "How long, in which portions",
    "optimizer": "Optimizer and schedule",
    "mixed_precision": "Numbers",
    "log_every": "Logging, evaluation, saving",
    "resume": "Checkpoints",
    "trackers": "Trackers and profiling",
}


def without_effect(optimizer: str | None) -> dict[str, str]:
    """Return the keys that change nothing under an optimizer, and why."""
    if optimizer not in (None, *OPTIMIZERS):
        rule = f"has no effect on optimizer {optimizer}; write it into optimizer_settings"
        return dict.fromkeys(("betas", "eps", "momentum"), rule)
    if optimizer == "sgd":
        return {key: "has no effect on optimizer sgd; remove it" for key in ("betas", "eps")}
    return {
        "momentum": f"has no effect on optimizer {optimizer or 'adamw'}; remove it, or set optimizer: sgd"
    }


def check_rules(check: Validator, values: Mapping[str, Any], given: Collection[str]) -> None:
    """Record a problem for each rule between values that does not hold. What is wrong already
    breaks no rule.

    Args:
        check: has looked at each value alone.
        values: by key; keys that are absent count with their defaults.
        given: the keys that were written down.
    """
    # A misspelt epochs is one mistake and not also a missing one.
    wrong = {problem.key.split(".")[0] for problem in check.problems} | {
        key[0] for key in check.meant
    }
    right = {key: value for key, value in values.items() if key not in wrong}
    whole = SimpleNamespace(**{**DEFAULTS, **right})
    for needed, broken, rule in _rules(whole, given):
        if broken and not wrong & set(needed):
            check.record((needed[0],), rule, right.get(needed[0]))
    if whole.schedule is not None and "schedule_settings" not in wrong:
        check_schedule(check, whole.schedule, whole.schedule_settings)


def _rules(
    c: SimpleNamespace, given: Collection[str]
) -> Iterator[tuple[tuple[str, ...], bool, str]]:
    """Yield the keys that a rule is about (first the one to name), whether it is broken, and its
    words.
    """
    if "task" in vars(c):
        form = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
        yield (
            ("task",),
            not re.fullmatch(form, c.task),
            "must be module:Class, such as digits_cnn:DigitsCNN",
        )
    yield ("output_dir",), not c.output_dir, "must not be empty"
    for key in _PATHS:
        yield (key,), "\0" in (vars(c)[key] or ""), "no path can hold a character of code 0"
    yield ("resume",), not c.resume, "must be 'none', 'auto' or the path of a checkpoint"
    rule = "would delete what resume: auto goes on from; remove one of them"
    yield ("overwrite", "resume"), c.overwrite and c.resume == "auto", rule
    for key in ("eval_every", "save_every"):
        every = vars(c)[key]
        yield (
            (key,),
            isinstance(every, str) and not _EPOCHS.fullmatch(every),
            f"must be {_INTERVAL} or null",
        )

    yield (
        ("epochs", "max_steps"),
        c.epochs is None and c.max_steps is None,
        "epochs or max_steps is required",
    )
    rule = "must be a time such as 90s, 45m, 1h30m or 2d"
    yield ("max_time",), c.max_time is not None and not seconds_of(c.max_time), rule
    warmups = [key for key in WARMUPS if vars(c)[key]]
    rule = f"says in another unit what {warmups[0]} says; keep one of them" if warmups else ""
    yield tuple(warmups[-1:] or ["warmup_steps"]), len(warmups) > 1, rule
    rule = (
        "needs warm-up, after which it falls: set warmup_steps, warmup_samples or warmup_fraction"
    )
    yield ("schedule", "warmup_steps"), c.schedule == "inverse_sqrt" and not warmups, rule
    rule = f"has no effect on schedule {c.schedule}; remove it"
    yield (
        ("final_lr_ratio", "schedule"),
        c.final_lr_ratio > 0 and c.schedule not in (None, *TO_FINAL),
        rule,
    )

    window = c.micro_batch_size * (c.accumulation_steps or 1)
    by = f"micro_batch_size {c.micro_batch_size}"
    if c.accumulation_steps is not None:
        by += f" x accumulation_steps {c.accumulation_steps} = {window}"
    batch = ("global_batch_size", "micro_batch_size", "accumulation_steps")
    yield batch, (c.global_batch_size or 0) % window != 0, f"must be a multiple of {by}"

    name = str(c.optimizer or OPTIMIZERS[0])
    wrong = name not in OPTIMIZERS and not re.fullmatch(r"[A-Za-z_][\w.]*[.:][A-Za-z_]\w*", name)
    known = (*OPTIMIZERS, "a class such as torch.optim.Muon")
    yield ("optimizer",), wrong, f"no such optimizer; {did_you_mean(name, known)}"
    rule = f"has no effect on optimizer {name}, whose settings are keys; or name a class, such as torch.optim.AdamW"
    yield (
        ("optimizer_settings", "optimizer"),
        bool(c.optimizer_settings) and name in OPTIMIZERS,
        rule,
    )
    for key, rule in without_effect(None if wrong else c.optimizer).items():
        yield (key, "optimizer"), key in given, rule

    yield ("trackers",), len(set(c.trackers)) < len(c.trackers), "names one twice"
    yield (
        ("track_model", "trackers"),
        c.track_model and "wandb" not in c.trackers,
        "needs wandb among the trackers",
    )
    if c.profile_steps is not None:
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", c.profile_steps)
        fine = found and 2 <= int(found[1]) <= int(found[2] or found[1])
        yield (
            ("profile_steps",),
            not fine,
            "must be steps such as 10-12, from 2 on: the first step warms up",
        )
        has_end = fine and c.max_steps is not None
        behind = has_end and profiled_steps(c.profile_steps)[0] > c.max_steps
        yield (
            ("profile_steps", "max_steps"),
            bool(behind),
            f"begins behind the last step, max_steps {c.max_steps}",
        )
    rule = "must be an evaluation value, such as eval/loss"
    yield (
        ("best_metric",),
        c.best_metric is not None and not re.fullmatch("eval/.+", c.best_metric),
        rule,
    )
    for key, other, rule in _NEEDS:
        yield (key, other), vars(c)[key] not in _NOTHING and vars(c)[other] in _NOTHING, rule


def profiled_steps(text: str) -> tuple[int, int]:
    """Return first and last step of ``profile_steps``."""
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def every_steps(value: int | str | None, steps_per_epoch: int | None) -> int | None:
    """Return ``eval_every`` or ``save_every`` in optimizer steps; None stays None."""
    if not isinstance(value, str):
        return value
    epochs = _EPOCHS.fullmatch(value)
    assert epochs and steps_per_epoch, f"{value!r} passed no check"
    return int(epochs[1]) * steps_per_epoch
