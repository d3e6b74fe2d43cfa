"""The training config: all keys with their limits. Keys of launch files are None by default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from ..errors import Origin
from ..text import seconds_of
from .annotations import defaults_of
from .interval import FORMS, Every
from .named_class import check_name
from .paths import local_path
from .rules import OPTIMIZERS, check_rules
from .schedule_keys import SCHEDULES, TO_FINAL
from .validate import Validator

Precision = Literal["no", "bf16", "fp16"]
_FROM_0, _FROM_1 = Field(ge=0), Field(ge=1)
Beta = Annotated[float, Field(ge=0, lt=1)]
HomePath = Annotated[
    str, Field(min_length=1), AfterValidator(local_path), AfterValidator(os.path.expanduser)
]


def _check_time(text: str) -> str:
    if not seconds_of(text):
        raise ValueError("must be a time such as 90s, 45m, 1h30m or 2d")
    return text


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All settings of a training run. ``--help`` prints them as a table.

    Raises:
        ConfigError: a value is impossible, or values do not go together.
    """

    task: Annotated[
        str,
        "module:Class of the task, such as digits_cnn:DigitsCNN",
        AfterValidator(check_name),
    ]
    task_settings: Annotated[dict[str, Any], "the task's own: --task_settings.width 64"] = field(
        default_factory=dict
    )
    output_dir: Annotated[
        HomePath,
        "folder of the run; placeholders: runs/{experiment}-lr{lr}",
    ] = "runs/default"
    overwrite: Annotated[bool, "allow a used output_dir: its contents are replaced"] = False
    seed: Annotated[int, "of weights, data order, dropout", Field(ge=0, le=2**32 - 1)] = 0
    deterministic: Annotated[bool, "deterministic algorithms only: slower, repeatable"] = False

    epochs: Annotated[int | None, "passes over the data", _FROM_1] = None
    max_steps: Annotated[
        int | None,
        "optimizer steps; beside epochs, the earlier end counts",
        Field(ge=1, le=10**15),
    ] = None
    max_time: Annotated[
        str | None,
        "stop with checkpoint and model after this time of the process, such as 1h30m or 2d",
        AfterValidator(_check_time),
    ] = None
    stop_at: Annotated[
        Every | None,
        f"end there, under the schedule of the whole run: {FORMS}",
    ] = None
    micro_batch_size: Annotated[
        int | None,
        "examples per process and backward; null: as global_batch_size needs",
        _FROM_1,
    ] = 8
    accumulation_steps: Annotated[
        int | None,
        "backwards per optimizer step; else from the launch files, else 1",
        _FROM_1,
    ] = None
    global_batch_size: Annotated[
        int | None,
        "examples per optimizer step: micro batch x accumulation x processes",
        _FROM_1,
    ] = None
    context_parallel: Annotated[
        int, "processes that share rows, each with a part of the tokens", _FROM_1
    ] = 1
    evaluation_batch_size: Annotated[int | None, "per process; else micro_batch_size", _FROM_1] = (
        None
    )
    drop_last: Annotated[bool, "leave out the last, short step of an epoch"] = False
    workers: Annotated[int, "data loading processes per rank", _FROM_0] = 0
    timeout_minutes: Annotated[
        float,
        "how long ranks wait for one another before the job fails",
        Field(gt=0, le=1e6),
    ] = 10.0

    optimizer: Annotated[
        str | None,
        (
            f"{', '.join(OPTIMIZERS)}, or a class: torch.optim.NAdam; else from "
            "the DeepSpeed JSON, else adamw"
        ),
        Field(pattern=rf"^({'|'.join(OPTIMIZERS)}|[A-Za-z_][\w.]*[.:][A-Za-z_]\w*)$"),
    ] = None
    optimizer_settings: Annotated[
        dict[str, Any],
        "of an optimizer named by its class: its arguments beside lr and weight_decay",
    ] = field(default_factory=dict)
    lr: Annotated[float, "learning rate", Field(gt=0)] = 1e-3
    lr_scaling: Annotated[Literal["none", "linear", "sqrt"], "how lr follows the global batch"] = (
        "none"
    )
    reference_batch_size: Annotated[int | None, "the global batch that lr belongs to", _FROM_1] = (
        None
    )
    weight_decay: Annotated[float, "decay of the weights", _FROM_0] = 0.01
    betas: Annotated[tuple[Beta, Beta], "of adamw and adam"] = (
        0.9,
        0.999,
    )
    eps: Annotated[float, "of adamw and adam", Field(gt=0)] = 1e-8
    momentum: Annotated[float, "of sgd", Field(ge=0, lt=1)] = 0.9
    schedule: Annotated[
        str | None,
        (
            f"{', '.join(SCHEDULES)}, or torch:ExponentialLR; else from the "
            "DeepSpeed JSON, else constant"
        ),
    ] = None
    schedule_settings: Annotated[
        dict[str, Any],
        "step: milestones, gamma; wsd: decay_steps or decay_fraction; torch: its own",
    ] = field(default_factory=dict)
    warmup_steps: Annotated[int, "optimizer steps in which lr rises", _FROM_0] = 0
    warmup_samples: Annotated[int | None, "the same, in samples", _FROM_1] = None
    warmup_fraction: Annotated[
        float | None, "the same, in parts of the whole run", Field(gt=0, le=1)
    ] = None
    final_lr_ratio: Annotated[
        float,
        f"lr at the end of {', '.join(TO_FINAL)} as a fraction of lr",
        Field(ge=0, le=1),
    ] = 0.0
    max_grad_norm: Annotated[
        float | None,
        "clip to this norm, 0: do not; else from the launch files, else 0",
        _FROM_0,
    ] = None

    mixed_precision: Annotated[Precision | None, "else from the launch files, else 'no'"] = None
    float32: Annotated[
        Literal["exact", "tf32"],
        "products of float32 on GPUs; tf32: much faster, three digits",
    ] = "exact"
    sync_batchnorm: Annotated[bool, "BatchNorm over the micro-batches of all ranks; GPUs only"] = (
        False
    )
    compile: Annotated[bool, "torch.compile the model"] = False
    find_unused_parameters: Annotated[
        bool,
        ("a step may leave parameters out, other ones on each process: heads, experts; slower"),
    ] = False
    bucket_cap_mb: Annotated[
        int | None, "DDP exchanges gradients in buckets of this many MiB", _FROM_1
    ] = None
    reduce_dtype: Annotated[
        Literal["float32", "bf16"] | None,
        "of gradients on their way to other ranks; bf16: half the traffic; else float32",
    ] = None
    sync_each_batch: Annotated[
        bool,
        "exchange gradients in each micro-batch: more traffic, and no rank keeps whole ones",
    ] = False
    same_bits: Annotated[
        bool,
        "the same numbers to the last bit on every layout: exact sums of the micro-batches",
    ] = False
    ema_decay: Annotated[
        float | None, "keep a moving average of the weights", Field(gt=0, lt=1)
    ] = None
    export_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "of the exported model; auto: that of the files which it started from, else float32",
    ] = "auto"
    on_nan: Annotated[
        Literal["stop", "skip"],
        "what a gradient that is not finite does: end the run, or leave the step out",
    ] = "stop"
    checks: Annotated[
        Literal["all", "none"],
        "what looks for numbers that would be silently wrong; none changes a number",
    ] = "all"

    log_every: Annotated[int, "optimizer steps", _FROM_1] = 10
    eval_every: Annotated[Every | None, f"{FORMS}; else at the end"] = None
    sanity_evaluation: Annotated[
        bool,
        (
            "evaluate one batch of each set before the first step, so that an error in it "
            "shows at once, and look whether the loss is a mean"
        ),
    ] = True
    save_every: Annotated[Every | None, f"{FORMS}; else at the end"] = None
    best_metric: Annotated[
        str | None,
        "keep the best model by this, such as eval/loss",
        Field(pattern="^eval/.+"),
    ] = None
    best_mode: Annotated[Literal["min", "max"], "which best_metric is the best"] = "min"
    early_stop_patience: Annotated[
        int | None,
        "stop after this many evaluations without a better best_metric",
        _FROM_1,
    ] = None

    resume: Annotated[
        HomePath,
        "'auto': continue from the newest complete checkpoint; or a path",
    ] = "none"
    weights: Annotated[
        HomePath | None,
        "start with these: a folder of safetensors, or a checkpoint",
    ] = None
    allow_config_change: Annotated[
        bool, "resume although settings that change the numbers differ"
    ] = False
    keep_last: Annotated[int, "newest checkpoints that stay; 0 writes none at all", _FROM_0] = 2
    keep_every: Annotated[
        int | None, "checkpoints of a multiple of these steps stay as well", _FROM_1
    ] = None
    save_in_background: Annotated[bool, "write checkpoints while training continues"] = True
    on_save_error: Annotated[
        Literal["stop", "continue"],
        "what a checkpoint that cannot be written does to the run",
    ] = "stop"

    callbacks: Annotated[
        list[str | dict[str, dict[str, Any] | None]],
        "module:Class of each, or {module:Class: {its settings}}",
    ] = field(default_factory=list)
    trackers: Annotated[
        list[str],
        "wandb, trackio, tensorboard, or another of Accelerate's, by name",
    ] = field(default_factory=list)
    project: Annotated[str, "of the trackers"] = "samecurve"
    experiment: Annotated[
        str | None, "runs to compare share it: W&B's group; else the task's name"
    ] = None
    run_name: Annotated[
        str | None,
        (
            "such as '{experiment}-lr{lr}-{strategy}x{world_size}-s{seed}'; else "
            "EXPERIMENT-STRATEGY-PROCESSES"
        ),
        Field(pattern=r"\S"),
    ] = None
    track_model: Annotated[bool, "upload the exported model to W&B, as an artifact"] = False
    profile_steps: Annotated[
        str | None,
        "trace these optimizer steps, such as 10-12",
        Field(pattern="^[0-9]{1,9}(-[0-9]{1,9})?$"),
    ] = None
    push_to_hub: Annotated[
        str | None,
        "USER/NAME on the Hugging Face Hub that gets each best model, and the last",
        Field(pattern=r"^[\w.-]+/[\w.-]+$"),
    ] = None
    hub_private: Annotated[bool, "create this repository as a private one"] = False

    def __post_init__(self) -> None:
        check = Validator(Origin("TrainConfig").named)
        values = check.settings(TrainConfig, vars(self))
        if values:
            vars(self).update(values)
            check_rules(check, self)
        check.end()


DEFAULTS: Mapping[str, Any] = MappingProxyType(defaults_of(TrainConfig))

# The first key of each group of the help, and the group's headline.
GROUPS = {
    "task": "Task and folder",
    "epochs": "Length and batches",
    "optimizer": "Optimizer and schedule",
    "mixed_precision": "Numbers",
    "log_every": "Logging, evaluation, saving",
    "resume": "Checkpoints",
    "callbacks": "Callbacks, trackers, profiling, the Hub",
}
