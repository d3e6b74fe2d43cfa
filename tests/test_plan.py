"""Requests, launchers and machines held against each other: what the plan says, and every disagreement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainer import ConfigError, LaunchError, Plan, TrainConfig
from trainer.launching import Machine
from trainer.launching.launcher import Launcher
from trainer.launching.plan import resolve
from trainer.launching.request import Asked, Request

CPU, FOUR_GPUS = Machine(gpus=0), Machine(gpus=4)
SAID = "train.yaml:7"
HOME = "ds.json:3"


def asked(value: Any, key: str = "") -> Asked[Any]:
    return Asked(value=value, where=f"{HOME} ({key})" if key else HOME)


def request(strategy: Any = "zero2", **values: Any) -> Request:
    zero = {"zero_optimization": {"stage": int(strategy[-1])}} if strategy.startswith("zero") else {}
    return Request(
        **{"strategy": strategy, "strategy_where": "a.yaml:2 (distributed_type)", "deepspeed": zero} | values
    )


def launched(world: int = 2, name: Any = "torchrun", **values: Any) -> Launcher:
    return Launcher(**{"name": name, "world_size": world, "local_world_size": world} | values)


def plan(
    asks: Request | None = None,
    *,
    world: int = 2,
    launcher: Launcher | None = None,
    machine: Machine = CPU,
    built_by: str | None = None,
    **settings: Any,
) -> Plan:
    """The plan for a config with these settings, each of them written at train.yaml:7."""
    config = TrainConfig(**{"task": "m:T", "max_steps": 10} | settings)
    where = dict.fromkeys(settings, SAID)
    return resolve(config, asks, launcher or launched(world), machine, where, optimizer_built_by=built_by)


def refusal(make: Callable[[], Plan]) -> str:
    with pytest.raises((ConfigError, LaunchError)) as caught:
        make()
    return str(caught.value)


# Who runs


@pytest.mark.parametrize(
    ("asks", "world", "strategy", "rehearsal"),
    [
        (None, 1, "single", False),
        (None, 2, "ddp", True),
        (request("single"), 1, "single", False),
        (request("ddp"), 2, "ddp", True),
        (request("fsdp"), 2, "fsdp", True),
        (request("fsdp"), 1, "fsdp", True),
        (request("zero3"), 2, "zero3", True),
        (request("zero1"), 1, "zero1", True),
    ],
)
def test_the_strategy_is_the_one_asked_for(asks: Request | None, world: int, strategy: str, rehearsal: bool) -> None:
    made = plan(asks, world=world)
    assert (made.strategy, made.world_size, made.device, made.rehearsal) == (strategy, world, "cpu", rehearsal)
    on_gpus = plan(asks, world=world, machine=FOUR_GPUS)
    assert (on_gpus.strategy, on_gpus.device, on_gpus.rehearsal) == (strategy, "cuda", False)


def test_the_cpu_is_used_where_it_is_asked_for() -> None:
    made = plan(request("fsdp", use_cpu=True), world=8, machine=FOUR_GPUS)
    assert (made.device, made.rehearsal, made.strategy) == ("cpu", True, "fsdp")


def test_more_processes_than_gpus() -> None:
    line = (
        "5 processes on this machine, but only 4 GPUs are visible; "
        "launch at most 4, or set use_cpu: true to rehearse on the CPU"
    )
    assert refusal(lambda: plan(request("ddp"), world=5, machine=FOUR_GPUS)) == line
    assert plan(request("ddp"), world=4, machine=FOUR_GPUS).device == "cuda"
    # Two machines with four each: what counts is what runs on this one.
    two_machines = launched(8, local_world_size=4)
    assert plan(request("ddp", num_machines=2), launcher=two_machines, machine=FOUR_GPUS).world_size == 8


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("python", "plain python starts one process: use accelerate launch, torchrun or deepspeed"),
        ("accelerate", "the processes that were launched must be as many"),
        ("torchrun", "the processes that were launched must be as many"),
        ("deepspeed", "the processes that were launched must be as many"),
        ("environment", "the processes that were launched must be as many"),
    ],
)
def test_another_world_than_the_file_asks_for(name: str, hint: str) -> None:
    world = 1 if name == "python" else 3
    asks = request("fsdp", world_size=Asked(value=2, where="a.yaml:9 (num_processes)"))
    line = f"a.yaml:9 (num_processes): asks for 2 processes, but {world} run under {name}; {hint}"
    assert refusal(lambda: plan(asks, launcher=launched(world, name))) == line
    assert plan(asks, launcher=launched(2, name)).world_size == 2


def test_single_with_two_processes() -> None:
    line = (
        "a.yaml:2 (distributed_type): asks for one process, but 2 run; use distributed_type: MULTI_GPU for DDP"
    )  # fmt: skip
    assert refusal(lambda: plan(request("single"))) == line


def test_ddp_with_one_process() -> None:
    line = "a.yaml:2 (distributed_type): asks for DDP, but one process runs; launch at least two"
    assert refusal(lambda: plan(request("ddp"), world=1)) == line


# The batch


def test_the_batch_product() -> None:
    made = plan(None, world=4, micro_batch_size=8, accumulation_steps=3)
    assert (made.micro_batch_size, made.accumulation_steps, made.global_batch_size) == (8, 3, 96)
    assert plan(None, micro_batch_size=8).global_batch_size == 16


@pytest.mark.parametrize(("world", "steps"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_accumulation_follows_from_the_global_batch(world: int, steps: int) -> None:
    made = plan(None, world=world, micro_batch_size=8, global_batch_size=64)
    assert (made.accumulation_steps, made.global_batch_size) == (steps, 64)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (
            {"micro_batch_size": 8, "global_batch_size": 64},
            "64: must be a multiple of micro_batch_size 8 x world_size 3 = 24; nearest that work: 48 or 72",
        ),
        (
            {"micro_batch_size": 8, "global_batch_size": 16},
            "16: must be a multiple of micro_batch_size 8 x world_size 3 = 24; nearest that work: 24",
        ),
        (
            {"micro_batch_size": 8, "accumulation_steps": 2, "global_batch_size": 64},
            "64: must be micro_batch_size 8 x world_size 3 x accumulation_steps 2 = 48; change one of them",
        ),
    ],
)
def test_a_batch_that_does_not_fit(settings: dict[str, int], rule: str) -> None:
    assert refusal(lambda: plan(None, world=3, **settings)) == f"{SAID}: global_batch_size: {rule}"


def test_a_batch_of_the_json_that_does_not_fit() -> None:
    line = (
        f"{HOME} (train_batch_size): global_batch_size: 64: must be micro_batch_size 8 x world_size 2 x "
        "accumulation_steps 2 = 32; change one of them"
    )
    asks = request(global_batch_size=asked(64, "train_batch_size"), accumulation_steps=asked(2))
    assert refusal(lambda: plan(asks, micro_batch_size=8)) == line


def test_the_json_alone_gives_the_batch() -> None:
    asks = request(micro_batch_size=asked(4), global_batch_size=asked(32), accumulation_steps=asked(4))
    made = plan(asks)
    assert (made.micro_batch_size, made.accumulation_steps, made.global_batch_size) == (4, 4, 32)
    assert made.home("micro_batch_size") == HOME


# Values with two homes

TWO_HOMES = [
    ("micro_batch_size", 4, 8),
    ("accumulation_steps", 2, 4),
    ("global_batch_size", 64, 32),
    ("max_grad_norm", 1.0, 0.5),
    ("max_grad_norm", 0.0, 1.0),
    ("mixed_precision", "bf16", "no"),
    ("mixed_precision", "no", "bf16"),
]


@pytest.mark.parametrize(("key", "ours", "theirs"), TWO_HOMES)
def test_two_homes_that_differ(key: str, ours: Any, theirs: Any) -> None:
    line = f"{SAID}: {key}: {ours!r}: disagrees with {theirs!r} at {HOME}; keep one of the two, or make them equal"
    assert refusal(lambda: plan(request(**{key: asked(theirs)}), **{key: ours})) == line


@pytest.mark.parametrize(("key", "ours", "theirs"), TWO_HOMES)
def test_two_homes_that_agree(key: str, ours: Any, theirs: Any) -> None:
    made = plan(request(**{key: asked(ours)}), **{key: ours})
    assert getattr(made, key) == (ours or None)
    assert made.home(key) == SAID


@pytest.mark.parametrize(("key", "ours", "theirs"), TWO_HOMES)
def test_the_files_alone(key: str, ours: Any, theirs: Any) -> None:
    made = plan(request(**{key: asked(theirs)}))
    assert (getattr(made, key), made.home(key)) == (theirs, HOME)


def test_nobody_says_anything() -> None:
    made = plan(request())
    assert (made.mixed_precision, made.max_grad_norm, made.accumulation_steps) == ("no", None, 1)
    assert (made.optimizer, made.schedule, made.lr) == ("adamw", "constant", 1e-3)
    assert made.home("mixed_precision") == "default"
    assert made.notices == ()


def test_all_disagreements_at_once() -> None:
    asks = request(micro_batch_size=asked(4), accumulation_steps=asked(2), max_grad_norm=asked(1.0))
    text = refusal(lambda: plan(asks, micro_batch_size=8, accumulation_steps=4, max_grad_norm=2.0))
    assert [line.split(": ")[1] for line in text.splitlines()] == [
        "micro_batch_size", "accumulation_steps", "max_grad_norm"
    ]  # fmt: skip


def test_a_config_made_in_code_disagrees_as_well() -> None:
    """Without homes of its values, what differs from the defaults was said."""
    config = TrainConfig(task="m:T", max_steps=10, micro_batch_size=16)
    asks = request(micro_batch_size=asked(4))
    line = f"TrainConfig: micro_batch_size: 16: disagrees with 4 at {HOME}; keep one of the two, or make them equal"
    assert refusal(lambda: resolve(config, asks, launched(), CPU, {})) == line
    silent = TrainConfig(task="m:T", max_steps=10)
    assert resolve(silent, asks, launched(), CPU, {}).micro_batch_size == 4


# A DeepSpeed JSON's optimizer and scheduler

LINES = {
    "deepspeed.optimizer.type": "ds.json:12 (optimizer.type)",
    "deepspeed.optimizer.params.lr": "ds.json:14 (optimizer.params.lr)",
}


def with_optimizer(kind: str = "AdamW", **params: Any) -> Request:
    return request(optimizer=asked({"type": kind, "params": params}, "optimizer"), where=LINES)


def with_scheduler(kind: str, **params: Any) -> Request:
    return request(scheduler=asked({"type": kind, "params": params}, "scheduler"))


def test_the_optimizer_of_the_json() -> None:
    made = plan(with_optimizer(lr=3e-4, betas=[0.9, 0.95], eps=1e-6, weight_decay=0.1))
    assert (made.optimizer, made.lr, made.home("lr")) == ("adamw", 3e-4, f"{HOME} (optimizer)")
    assert made.optimizer_settings == {"betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
    assert made.notices == (
        f"{HOME} (optimizer): optimizer AdamW runs as torch's adamw, the same under every strategy",
    )


@pytest.mark.parametrize(
    ("kind", "params", "name"),
    [
        ("AdamW", {"torch_adam": True, "adam_w_mode": True}, "adamw"),
        ("Adam", {}, "adamw"),
        ("adam", {"adam_w_mode": True}, "adamw"),
        ("Adam", {"adam_w_mode": False}, "adam"),
        ("SGD", {"momentum": 0.8}, "sgd"),
    ],
)
def test_deepspeeds_names_for_optimizers(kind: str, params: dict[str, Any], name: str) -> None:
    made = plan(with_optimizer(kind, **params))
    assert made.optimizer == name
    assert set(made.optimizer_settings) == {"momentum" if name == "sgd" else "betas", "weight_decay"} | (
        set() if name == "sgd" else {"eps"}
    )


def test_auto_leaves_the_config_its_values() -> None:
    """The reader of the JSON leaves "auto" values out, so an empty section says nothing."""
    made = plan(with_optimizer(), lr=2e-3, weight_decay=0.2, optimizer="adamw")
    assert (made.lr, made.optimizer_settings["weight_decay"], made.home("lr")) == (2e-3, 0.2, SAID)


def test_equal_values_in_json_and_config() -> None:
    made = plan(with_optimizer(lr=2e-3, betas=[0.9, 0.95]), lr=2e-3, betas=(0.9, 0.95), optimizer="adamw")
    assert made.lr == 2e-3


@pytest.mark.parametrize(
    ("asks", "settings", "line"),
    [
        (
            with_optimizer("Lion"),
            {},
            "ds.json:12: optimizer.type: 'Lion': not offered from a DeepSpeed JSON (AdamW, Adam, SGD are); "
            "build it in Task.build_optimizer",
        ),
        (
            with_optimizer("AdamW"),
            {"optimizer": "sgd"},
            f"ds.json:12: optimizer.type: 'AdamW': disagrees with optimizer 'sgd' at {SAID}; remove one",
        ),
        (
            with_optimizer(lr=1e-4),
            {"lr": 1e-3},
            f'ds.json:14: optimizer.params.lr: 0.0001: disagrees with 0.001 at {SAID}; keep one, or write "auto"',
        ),
        (with_optimizer(lr=-1e-4), {}, "ds.json:14: optimizer.params.lr: -0.0001: must be greater than 0"),
        (with_optimizer(lr="fast"), {}, "ds.json:14: optimizer.params.lr: 'fast': must be a number"),
        (
            with_optimizer(betas=[0.9]),
            {},
            f"{HOME} (optimizer): optimizer.params.betas: [0.9]: must be a list of 2 values",
        ),
        (
            with_optimizer(freeze_step=3),
            {},
            f"{HOME} (optimizer): optimizer.params.freeze_step: 3: not a setting of adamw here; remove it",
        ),
        (
            with_scheduler("OneCycle"),
            {},
            f"{HOME} (scheduler): scheduler.type: 'OneCycle': not offered (WarmupLR, WarmupDecayLR, WarmupCosineLR "
            "are); use schedule and warmup_steps of the training config",
        ),
        (
            with_scheduler("WarmupDecayLR"),
            {"schedule": "cosine"},
            f"{HOME} (scheduler): scheduler.type: 'WarmupDecayLR': disagrees with schedule 'cosine' at {SAID}; "
            "remove one",
        ),
        (
            with_scheduler("WarmupLR", warmup_num_steps=5),
            {"warmup_steps": 3},
            f"{HOME} (scheduler): scheduler.params.warmup_num_steps: 5: disagrees with warmup_steps 3 at {SAID}; "
            "keep one",
        ),
        (
            with_scheduler("WarmupLR", warmup_num_steps=100),
            {},
            f"{HOME} (scheduler): scheduler.params.warmup_num_steps: 100: must be at most max_steps, 10",
        ),
        (
            with_scheduler("WarmupLR", warmup_num_steps="many"),
            {},
            f"{HOME} (scheduler): scheduler.params.warmup_num_steps: 'many': must be a whole number",
        ),
        (
            with_scheduler("WarmupLR", warmup_type="log"),
            {},
            f"{HOME} (scheduler): scheduler.params.warmup_type: 'log': only linear warm-up is offered; "
            'write "linear"',
        ),
        (
            with_scheduler("WarmupDecayLR", total_num_steps=500),
            {},
            f'{HOME} (scheduler): scheduler.params.total_num_steps: 500: this run has 10; write "auto"',
        ),
        (
            with_scheduler("WarmupLR", warmup_max_lr=0.1),
            {"lr": 1e-3},
            f'{HOME} (scheduler): scheduler.params.warmup_max_lr: 0.1: this run has 0.001; write "auto"',
        ),
        (
            with_scheduler("WarmupLR", last_batch_iteration=3),
            {},
            f"{HOME} (scheduler): scheduler.params.last_batch_iteration: 3: not offered; remove it",
        ),
    ],
)
def test_sections_that_disagree(asks: Request, settings: dict[str, Any], line: str) -> None:
    assert refusal(lambda: plan(asks, **settings)) == line


def test_an_optimizer_in_the_json_and_in_code() -> None:
    line = (
        f"{HOME}: optimizer: 'AdamW': my_task:Mine.build_optimizer builds the optimizer already; remove one of the two"
    )
    assert refusal(lambda: plan(with_optimizer(), built_by="my_task:Mine.build_optimizer")) == line
    assert plan(request(), built_by="my_task:Mine.build_optimizer").optimizer == "adamw"


@pytest.mark.parametrize(
    ("kind", "schedule"), [("WarmupLR", "constant"), ("WarmupDecayLR", "linear"), ("WarmupCosineLR", "cosine")]
)
def test_the_scheduler_of_the_json(kind: str, schedule: str) -> None:
    made = plan(with_scheduler(kind, warmup_num_steps=4, warmup_min_lr=0, warmup_max_lr=1e-3, warmup_type="linear"))
    assert (made.schedule, made.warmup_steps, made.notices) == (schedule, 4, ())
    assert plan(with_scheduler(kind, warmup_num_steps=4), warmup_steps=4, schedule=schedule).notices == (
        f"{HOME} (scheduler): {kind} warms up linearly here; DeepSpeed's default is logarithmic",
    )


# Rehearsal


@pytest.mark.parametrize(
    ("strategy", "runs"), [("zero1", "bf16"), ("zero3", "bf16"), ("fsdp", "fp16"), ("ddp", "fp16")]
)
def test_fp16_in_a_rehearsal(strategy: str, runs: str) -> None:
    said = (f"{HOME} (fp16.enabled): DeepSpeed has no fp16 on a CPU: rehearsed in bf16",) if runs == "bf16" else ()
    asks = request(strategy, mixed_precision=asked("fp16", "fp16.enabled"))
    made = plan(asks)
    assert (made.mixed_precision, made.notices) == (runs, said)
    assert plan(asks, mixed_precision="fp16").notices == said, "one line, also with two homes"
    on_gpus = plan(asks, machine=FOUR_GPUS)
    assert (on_gpus.mixed_precision, on_gpus.notices) == ("fp16", ())


def test_fp16_of_the_training_config_in_a_rehearsal() -> None:
    made = plan(request("zero2"), mixed_precision="fp16")
    assert made.mixed_precision == "bf16"
    assert made.notices == (f"{SAID}: DeepSpeed has no fp16 on a CPU: rehearsed in bf16",)


def test_what_has_no_effect_in_a_rehearsal() -> None:
    zero = {"stage": 3, "overlap_comm": True}
    where = {"deepspeed.zero_optimization.overlap_comm": f"{HOME} (zero_optimization.overlap_comm)"}
    asks = request("zero3", deepspeed={"zero_optimization": zero, "fp16": {"loss_scale": 0}}, where=where)
    made = plan(asks)
    assert made.deepspeed == {"zero_optimization": zero}
    assert made.notices == (
        f"{HOME} (zero_optimization.overlap_comm): no effect in a rehearsal: gloo has no streams to overlap on",
    )
    assert plan(asks, machine=FOUR_GPUS).notices == ()


# Learning rate


@pytest.mark.parametrize(("rule", "lr"), [("none", 1e-3), ("linear", 4e-3), ("sqrt", 2e-3)])
def test_the_learning_rate_follows_the_batch(rule: str, lr: float) -> None:
    scaling = {"lr_scaling": rule, "reference_batch_size": 16} if rule != "none" else {}
    made = plan(None, world=4, micro_batch_size=16, lr=1e-3, **scaling)
    assert made.lr == pytest.approx(lr, rel=1e-12)
    assert (made.lr_reference, made.lr_scaling, made.global_batch_size) == (1e-3, rule, 64)
    assert made.reference_batch_size == (64 if rule == "none" else 16)


def test_the_learning_rate_of_the_json_is_scaled_too() -> None:
    made = plan(with_optimizer(lr=1e-4), micro_batch_size=8, lr_scaling="linear", reference_batch_size=4)
    assert (made.lr_reference, made.lr) == (1e-4, pytest.approx(4e-4, rel=1e-12))


def test_what_is_written_beside_the_run() -> None:
    told = plan(request("fsdp", mixed_precision=asked("bf16")), micro_batch_size=4).as_dict()
    assert told["precision"] == {"parameters": "fp32", "compute": "bf16", "reduction": "fp32", "buffers": "fp32"}
    assert {"strategy", "world_size", "launcher", "device", "mixed_precision", "global_batch_size", "lr"} <= set(told)
