"""Requests, launchers and machines held against each other: what the plan says, and every disagreement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from origins import origin, sourced

from trainer import ConfigError, LaunchError, Plan, TrainConfig
from trainer.config.documents import Document
from trainer.config.validate import Validator
from trainer.distributed.launcher import Launcher
from trainer.errors import Sourced
from trainer.launching import Machine
from trainer.launching.files.sections import read_optimizer, read_scheduler
from trainer.launching.request import Request, Section
from trainer.launching.resolve import resolve
from trainer.launching.start import check_environment

CPU, FOUR_GPUS = Machine(gpus=0), Machine(gpus=4)
SAID = "train.yaml:7"
HOME = "ds.json:3"


def asked(value: Any, key: str = "") -> Sourced[Any]:
    return sourced(value, f"{HOME} ({key})" if key else HOME)


def request(strategy: Any = "zero2", **values: Any) -> Request:
    zero = {"zero_optimization": {"stage": int(strategy[-1])}} if strategy.startswith("zero") else {}
    return Request(
        **{"strategy": strategy, "strategy_origin": origin("a.yaml:2 (distributed_type)"), "deepspeed": zero} | values
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
    origins = {key: origin(f"{SAID} ({key})") for key in settings}
    return resolve(config, asks, launcher or launched(world), machine, origins, optimizer_built_by=built_by)


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
    asks = request("fsdp", world_size=sourced(2, "a.yaml:9 (num_processes)"))
    line = f"a.yaml:9 (num_processes): asks for 2 processes, but {world} run under {name}; {hint}"
    assert refusal(lambda: plan(asks, launcher=launched(world, name))) == line
    assert plan(asks, launcher=launched(2, name)).world_size == 2


def test_single_with_two_processes() -> None:
    line = (
        "a.yaml:2 (distributed_type): asks for one process, but 2 run; use distributed_type: MULTI_GPU for DDP"
    )  # fmt: skip
    assert refusal(lambda: plan(request("single"))) == line


@pytest.mark.parametrize("name", ["accelerate", "torchrun", "deepspeed", "environment"])
@pytest.mark.parametrize("asked", [None, sourced(2, "a.yaml:9 (num_processes)")])
def test_ddp_under_a_launcher_of_one_process(name: str, asked: Sourced[int] | None) -> None:
    made = plan(request("ddp", world_size=asked), launcher=launched(1, name))
    assert (made.strategy, made.world_size, made.rehearsal) == ("single", 1, False)
    assert made.notices == (f"a.yaml:2 (distributed_type): {name} runs one process, thus without DDP",)


def test_ddp_without_a_launcher() -> None:
    hint = "plain python starts one process: use accelerate launch or torchrun"
    line = f"a.yaml:2 (distributed_type): asks for DDP, but {hint}"
    assert refusal(lambda: plan(request("ddp"), launcher=launched(1, "python"))) == line


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_one_process_of_what_shards_runs_as_it_is(strategy: str) -> None:
    assert plan(request(strategy), launcher=launched(1, "accelerate")).strategy == strategy


def test_a_second_partition_that_does_not_divide_the_processes() -> None:
    origins = {
        key: origin(text)
        for key, text in {"deepspeed.zero_optimization.zero_hpz_partition_size": "ds.json:4 (hpz)"}.items()
    }
    zero = {"stage": 3, "zero_hpz_partition_size": 16}
    asks = request("zero3", deepspeed={"zero_optimization": zero}, origins=origins)
    assert refusal(lambda: plan(asks)) == "ds.json:4 (hpz): 16: must divide the number of processes, 2"
    assert plan(asks, world=32).strategy == "zero3"


def test_a_compiler_of_the_file_and_none_in_the_config() -> None:
    origins = {"dynamo": origin("a.yaml:4 (dynamo_backend)")}
    asks = request("ddp", dynamo={"backend": "inductor"}, origins=origins)
    assert plan(asks).compile
    config = TrainConfig(task="m:T", max_steps=10)
    line = "train.yaml:7: compile: false: disagrees with a.yaml:4 (dynamo_backend); keep one of the two"
    assert refusal(lambda: resolve(config, asks, launched(), CPU, {"compile": origin(SAID)})) == line


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
        f"{HOME}: train_batch_size: 64: must be micro_batch_size 8 x world_size 2 x "
        "accumulation_steps 2 = 32; change one of them"
    )
    asks = request(global_batch_size=asked(64, "train_batch_size"), accumulation_steps=asked(2))
    assert refusal(lambda: plan(asks, micro_batch_size=8)) == line


def test_the_json_alone_gives_the_batch() -> None:
    asks = request(micro_batch_size=asked(4), global_batch_size=asked(32), accumulation_steps=asked(4))
    made = plan(asks)
    assert (made.micro_batch_size, made.accumulation_steps, made.global_batch_size) == (4, 4, 32)
    assert made.origin("micro_batch_size").place == HOME


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
    assert made.origin(key).place == SAID


@pytest.mark.parametrize(("key", "ours", "theirs"), TWO_HOMES)
def test_the_files_alone(key: str, ours: Any, theirs: Any) -> None:
    made = plan(request(**{key: asked(theirs)}))
    assert (getattr(made, key), str(made.origin(key))) == (theirs, HOME)


def test_nobody_says_anything() -> None:
    made = plan(request())
    assert (made.mixed_precision, made.max_grad_norm, made.accumulation_steps) == ("no", None, 1)
    assert (made.optimizer, made.schedule, made.lr) == ("adamw", "constant", 1e-3)
    assert str(made.origin("mixed_precision")) == "default"
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
    (name, *rest): line
    for name, first in (("optimizer", 11), ("scheduler", 21))
    for line, rest in enumerate(((), ("type",), ("params",)), first)
}
OPTIMIZER, SCHEDULER = "ds.json:13: optimizer.params", "ds.json:23: scheduler.params"


def section(name: str, kind: str, params: dict[str, Any]) -> Section:
    """As it is read from lines 11 to 13 (optimizer) or 21 to 23 (scheduler) of ds.json."""
    doc = Document(path="ds.json", data={name: {"type": kind, "params": params}}, lines=LINES)
    check = Validator()
    found = (read_optimizer if name == "optimizer" else read_scheduler)(doc, check)
    if check.problems or found is None:
        raise ConfigError(check.problems)
    return found


def with_optimizer(kind: str = "AdamW", **params: Any) -> Request:
    return request(optimizer=section("optimizer", kind, params))


def with_scheduler(kind: str, **params: Any) -> Request:
    return request(scheduler=section("scheduler", kind, params))


AUTO = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")


def test_the_optimizer_of_the_json() -> None:
    made = plan(with_optimizer(lr=3e-4, betas=[0.9, 0.95], eps=1e-6, weight_decay=0.1))
    assert (made.optimizer, made.lr, str(made.origin("lr"))) == ("adamw", 3e-4, "ds.json:13 (optimizer.params.lr)")
    assert made.optimizer_settings == {"betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
    assert made.notices == (
        "ds.json:11 (optimizer): optimizer AdamW runs as torch's adamw, the same under every strategy",
    )


@pytest.mark.parametrize(
    ("kind", "params", "name"),
    [
        ("AdamW", {"torch_adam": True, "adam_w_mode": True, "amsgrad": False}, "adamw"),
        ("Adam", {"bias_correction": True}, "adamw"),
        ("adam", {"adam_w_mode": True}, "adamw"),
        ("Adam", {"adam_w_mode": False}, "adam"),
        ("Adam", {"adam_w_mode": False, "torch_adam": True}, "adam"),
        ("SGD", {"momentum": 0.8, "nesterov": False}, "sgd"),
    ],
)
def test_deepspeeds_names_for_optimizers(kind: str, params: dict[str, Any], name: str) -> None:
    made = plan(with_optimizer(kind, **params))
    assert made.optimizer == name
    assert set(made.optimizer_settings) == {"momentum" if name == "sgd" else "betas", "weight_decay"} | (
        set() if name == "sgd" else {"eps"}
    )


@pytest.mark.parametrize(
    ("kind", "params", "changed"),
    [
        ("AdamW", {}, {"weight_decay": 0.0}),
        ("AdamW", {"torch_adam": True}, {}),  # torch's own default is ours
        ("Adam", {"adam_w_mode": False, "torch_adam": True}, {"weight_decay": 0.0}),
        ("SGD", {}, {"momentum": 0.0, "weight_decay": 0.0}),
        ("AdamW", AUTO, {}),
    ],
)
def test_where_a_section_is_silent_the_engines_defaults_hold(
    kind: str, params: dict[str, Any], changed: dict[str, float]
) -> None:
    made = plan(with_optimizer(kind, **params))
    ours = {"weight_decay": 0.01, "momentum": 0.9}
    assert {key: made.optimizer_settings[key] for key in ours if key in made.optimizer_settings} == {
        key: changed.get(key, value) for key, value in ours.items() if key in made.optimizer_settings
    }
    told = [notice.rpartition(", ") for notice in made.notices if "DeepSpeed's default" in notice]
    assert {words: float(value) for words, _, value in told} == {
        f"ds.json:12: no optimizer.params.{key}: DeepSpeed's default holds": value for key, value in changed.items()
    }
    said = plan(with_optimizer(kind, **params), weight_decay=0.2)
    assert said.optimizer_settings["weight_decay"] == 0.2, "unless the training config says one"


def test_auto_leaves_the_config_its_values() -> None:
    made = plan(with_optimizer(**AUTO), lr=2e-3, weight_decay=0.2, optimizer="adamw")
    assert (made.lr, made.optimizer_settings["weight_decay"], made.origin("lr").place) == (2e-3, 0.2, SAID)


def test_equal_values_in_json_and_config() -> None:
    made = plan(with_optimizer(lr=2e-3, betas=[0.9, 0.95]), lr=2e-3, betas=(0.9, 0.95), optimizer="adamw")
    assert made.lr == 2e-3


NOT_OFFERED = (
    "not offered from a DeepSpeed JSON (AdamW, Adam, SGD are); build it in Task.build_optimizer, "
    "and remove this section"
)
NO_SCHEDULE = (
    "not offered (WarmupLR, WarmupDecayLR, WarmupCosineLR are); remove this section, "
    "and set schedule in the training config"
)


@pytest.mark.parametrize(
    ("name", "kind", "params", "line"),
    [
        ("optimizer", "Lion", {}, f"ds.json:12: optimizer.type: 'Lion': {NOT_OFFERED}"),
        (
            "optimizer",
            "ZeroOneAdam",
            {"cuda_aware": False},
            f"ds.json:12: optimizer.type: 'ZeroOneAdam': {NOT_OFFERED}",
        ),
        (
            "optimizer",
            "FusedAdam",
            {},
            "ds.json:12: optimizer.type: 'FusedAdam': is the class behind DeepSpeed's type \"AdamW\"; write that",
        ),
        ("optimizer", "AdamW", {"lr": -1e-4}, f"{OPTIMIZER}.lr: -0.0001: must be greater than 0"),
        ("optimizer", "AdamW", {"lr": "fast"}, f"{OPTIMIZER}.lr: 'fast': must be a number"),
        ("optimizer", "AdamW", {"betas": [0.9]}, f"{OPTIMIZER}.betas: [0.9]: must be a list of 2 values"),
        (
            "optimizer",
            "AdamW",
            {"freeze_step": 3},
            f"{OPTIMIZER}.freeze_step: 3: unknown key; known: adam_w_mode, amsgrad, betas, "
            "bias_correction, eps, fp32_optimizer_states, lr, set_grad_none, torch_adam, weight_decay",
        ),
        (
            "optimizer",
            "AdamW",
            {"bias_correction": False},
            f"{OPTIMIZER}.bias_correction: false: only true is offered; remove it",
        ),
        ("optimizer", "SGD", {"nesterov": True}, f"{OPTIMIZER}.nesterov: true: only false is offered; remove it"),
        (
            "optimizer",
            "AdamW",
            {"max_grad_norm": 1.0},
            f"{OPTIMIZER}.max_grad_norm: 1.0: is no setting of an optimizer; "
            'write "gradient_clipping" at the top level',
        ),
        ("scheduler", "OneCycle", {"cycle_min_lr": 1e-5}, f"ds.json:22: scheduler.type: 'OneCycle': {NO_SCHEDULE}"),
        (
            "scheduler",
            "WarmupDecayLr",
            {},
            "ds.json:22: scheduler.type: 'WarmupDecayLr': not offered (WarmupLR, WarmupDecayLR, WarmupCosineLR are); "
            "did you mean 'WarmupDecayLR'?",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"warmup_num_steps": "many"},
            f"{SCHEDULER}.warmup_num_steps: 'many': must be a whole number",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"warmup_type": "cubic"},
            f'{SCHEDULER}.warmup_type: \'cubic\': must be "linear" or "log"',
        ),
        (
            "scheduler",
            "WarmupLR",
            {"last_batch_iteration": 3},
            f"{SCHEDULER}.last_batch_iteration: 3: only -1 is offered; remove it",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"warmup_min_lr": 1e-5},
            f"{SCHEDULER}.warmup_min_lr: 1e-05: only 0.0 is offered; remove it",
        ),
        # Each type takes its own settings.
        (
            "scheduler",
            "WarmupLR",
            {"total_num_steps": 10},
            f"{SCHEDULER}.total_num_steps: 10: unknown key; known: last_batch_iteration, warmup_max_lr, warmup_min_lr, "
            "warmup_num_steps, warmup_type",
        ),
        (
            "scheduler",
            "WarmupCosineLR",
            {"warmup_max_lr": 1e-3},
            f"{SCHEDULER}.warmup_max_lr: 0.001: unknown key; known: cos_min_ratio, last_batch_iteration, "
            "total_num_steps, warmup_min_ratio, warmup_num_steps, warmup_type",
        ),
    ],
)
def test_sections_that_cannot_run(name: str, kind: str, params: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        section(name, kind, params)
    assert str(caught.value) == line


KEEP = 'keep one, or write "auto"'


@pytest.mark.parametrize(
    ("asks", "settings", "line"),
    [
        (
            with_optimizer("AdamW"),
            {"optimizer": "sgd"},
            f"ds.json:12: optimizer.type: 'AdamW': disagrees with optimizer 'sgd' at {SAID}; {KEEP}",
        ),
        (with_optimizer(lr=1e-4), {"lr": 1e-3}, f"{OPTIMIZER}.lr: 0.0001: disagrees with lr 0.001 at {SAID}; {KEEP}"),
        (
            with_scheduler("WarmupDecayLR"),
            {"schedule": "cosine"},
            f"ds.json:22: scheduler.type: 'WarmupDecayLR': disagrees with schedule 'cosine' at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupLR", warmup_num_steps=5),
            {"warmup_steps": 3},
            f"{SCHEDULER}.warmup_num_steps: 5: disagrees with warmup_steps 3 at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupLR", warmup_num_steps=5),
            {"warmup_fraction": 0.5},
            f"{SCHEDULER}.warmup_num_steps: 5: disagrees with warmup_fraction 0.5 at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupDecayLR", total_num_steps=500),
            {},
            f"{SCHEDULER}.total_num_steps: 500: disagrees with max_steps 10 at TrainConfig; {KEEP}",
        ),
        (
            with_scheduler("WarmupDecayLR", total_num_steps=500),
            {"epochs": 2, "max_steps": None},
            f'{SCHEDULER}.total_num_steps: 500: the length of this run follows from epochs 2 at {SAID}; write "auto"',
        ),
        (
            with_scheduler("WarmupLR", warmup_max_lr=0.1),
            {"lr": 1e-3},
            f"{SCHEDULER}.warmup_max_lr: 0.1: disagrees with lr 0.001 at {SAID}; {KEEP}",
        ),
        (
            with_scheduler("WarmupLR"),
            {"final_lr_ratio": 0.1},
            f"{SAID}: final_lr_ratio: 0.1: has no effect on schedule constant; remove it",
        ),
        (
            with_scheduler("WarmupDecayLR"),
            {"final_lr_ratio": 0.1},
            f"{SAID}: final_lr_ratio: 0.1: WarmupDecayLR at ds.json:21 (scheduler) ends at 0; remove one of the two",
        ),
        (
            with_scheduler("WarmupCosineLR", cos_min_ratio=0.2),
            {"final_lr_ratio": 0.1},
            f"{SCHEDULER}.cos_min_ratio: 0.2: disagrees with final_lr_ratio 0.1 at {SAID}; {KEEP}",
        ),
    ],
)
def test_sections_that_disagree(asks: Request, settings: dict[str, Any], line: str) -> None:
    assert refusal(lambda: plan(asks, **settings)) == line


def test_an_optimizer_in_the_json_and_in_code() -> None:
    line = (
        "ds.json:11: optimizer: 'AdamW': my_task:Mine.build_optimizer builds the optimizer already; "
        "remove one of the two"
    )
    assert refusal(lambda: plan(with_optimizer(), built_by="my_task:Mine.build_optimizer")) == line
    assert plan(request(), built_by="my_task:Mine.build_optimizer").optimizer == "adamw"


@pytest.mark.parametrize(
    ("kind", "schedule"), [("WarmupLR", "constant"), ("WarmupDecayLR", "linear"), ("WarmupCosineLR", "cosine")]
)
def test_the_scheduler_of_the_json(kind: str, schedule: str) -> None:
    ending = {"cos_min_ratio": 0.25} if kind == "WarmupCosineLR" else {}
    made = plan(with_scheduler(kind, warmup_num_steps=4, warmup_type="linear", **ending))
    assert (made.schedule, made.warmup_steps, made.notices) == (schedule, 4, ())
    assert (made.schedule_settings, made.final_lr_ratio) == ({}, ending.get("cos_min_ratio", 0.0))
    assert str(made.origin("schedule")) == "ds.json:21 (scheduler)"
    logarithmic = plan(with_scheduler(kind, warmup_num_steps=4, warmup_type="log", **ending))
    assert (logarithmic.schedule_settings, logarithmic.notices) == ({"warmup_type": "log"}, ())
    assert plan(with_scheduler(kind, warmup_num_steps=4, **ending), warmup_steps=4, schedule=schedule).notices == (
        "ds.json:22: no scheduler.params.warmup_type: DeepSpeed's default holds, log: a logarithmic warm-up; "
        'write "linear" for a straight one',
    )


def test_a_schedule_without_warm_up_has_no_kind_of_it() -> None:
    made = plan(with_scheduler("WarmupLR", warmup_num_steps="auto"))
    assert (made.warmup_steps, made.schedule_settings, made.notices) == (0, {}, ())


def test_where_a_schedule_is_silent_the_engines_defaults_hold() -> None:
    made = plan(with_scheduler("WarmupCosineLR", warmup_type="linear"))
    assert (made.warmup_steps, made.final_lr_ratio) == (1000, 1e-4)
    assert made.notices == (
        "ds.json:22: no scheduler.params.warmup_num_steps: DeepSpeed's default holds, 1000",
        "ds.json:22: no scheduler.params.cos_min_ratio: DeepSpeed's default holds, 0.0001",
        "ds.json:21: warmup_steps: the warm-up of 1000 steps is longer than the run: "
        "the rate never reaches its full value",
    )
    said = plan(with_scheduler("WarmupCosineLR", warmup_type="linear"), warmup_fraction=0.5, final_lr_ratio=0.1)
    assert (said.warmup_steps, said.final_lr_ratio, said.notices) == (5, 0.1, ())


def test_the_rate_after_warm_up_may_stand_in_the_schedule_alone() -> None:
    made = plan(with_scheduler("WarmupDecayLR", warmup_num_steps=2, warmup_type="linear", warmup_max_lr=3e-4))
    assert (made.lr, str(made.origin("lr"))) == (3e-4, "ds.json:23 (scheduler.params.warmup_max_lr)")
    silent = with_scheduler("WarmupDecayLR", warmup_num_steps=2, warmup_type="linear")
    assert (plan(silent).lr, plan(silent).notices) == (1e-3, ())
    assert plan(silent, lr=3e-4).notices == (
        "ds.json:22: no scheduler.params.warmup_max_lr: DeepSpeed would rise to its default, 0.001; "
        f"lr 0.0003 at {SAID} holds",
    )


def test_a_run_that_ends_in_its_warm_up_is_told_once() -> None:
    made = plan(None, warmup_steps=11)
    rule = "the warm-up of 11 steps is longer than the run: the rate never reaches its full value"
    assert made.notices == (f"{SAID}: warmup_steps: {rule}",)
    assert made.with_length(7).notices == made.notices, "not again where the run turns out even shorter"
    assert plan(None, warmup_steps=10).notices == ()
    by_epochs = plan(None, epochs=1, max_steps=None, warmup_samples=90, micro_batch_size=8)
    assert by_epochs.notices == ()
    rule = "the warm-up of 6 steps is longer than the run: the rate never reaches its full value"
    assert by_epochs.with_length(5).notices == (f"{SAID}: warmup_samples: {rule}",)


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
    origins = {
        key: origin(text)
        for key, text in {
            "deepspeed.zero_optimization.overlap_comm": f"{HOME} (zero_optimization.overlap_comm)"
        }.items()
    }
    asks = request("zero3", deepspeed={"zero_optimization": zero, "fp16": {"loss_scale": 0}}, origins=origins)
    made = plan(asks)
    assert made.deepspeed == {"zero_optimization": zero}
    assert made.notices == (
        f"{HOME} (zero_optimization.overlap_comm): no effect in a rehearsal: gloo has no streams to overlap on",
    )
    assert plan(asks, machine=FOUR_GPUS).notices == ()


def test_what_gpus_alone_can_do_is_left_out_of_a_rehearsal() -> None:
    zero = {
        "stage": 3,
        "zero_quantized_weights": True,
        "zero_quantized_gradients": True,
        "zero_hpz_partition_size": 2,
        "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
    }
    origins = {
        key: origin(text)
        for key, text in {f"deepspeed.zero_optimization.{key}": f"{HOME} ({key})" for key in zero}.items()
    }
    asks = request("zero3", deepspeed={"zero_optimization": zero}, origins=origins)
    made = plan(asks)
    assert made.deepspeed == {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}}
    quantized = "left out of a rehearsal: DeepSpeed quantizes on GPUs only; the numbers are those without"
    assert made.notices == (
        f"{HOME} (zero_quantized_weights): {quantized}",
        f"{HOME} (zero_quantized_gradients): {quantized}",
        f"{HOME} (offload_param): left out of a rehearsal: the parameters stay in memory",
    )
    on_gpus = plan(asks, machine=FOUR_GPUS)
    assert (on_gpus.deepspeed, on_gpus.notices) == ({"zero_optimization": zero}, ())


@pytest.mark.parametrize(
    ("name", "stray", "settings", "refused"),
    [
        ("torchrun", "bf16", {}, True),
        ("torchrun", "bf16", {"mixed_precision": "no"}, True),
        ("torchrun", "BF16", {"mixed_precision": "bf16"}, False),
        ("torchrun", "fp16", {"mixed_precision": "fp16"}, False),  # rehearsed in bf16
        ("torchrun", "no", {"mixed_precision": "bf16"}, False),  # what a launcher around this one sets for nothing
        ("accelerate", "no", {"mixed_precision": "bf16"}, False),
        ("accelerate", "fp16", {"mixed_precision": "fp16"}, False),
    ],
)
def test_a_stray_precision_of_the_environment(
    name: str, stray: str, settings: dict[str, str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", stray)
    launcher, asked = launched(2, name), settings.get("mixed_precision", "no")
    made = plan(request("zero2"), launcher=launcher, **settings)
    if not refused:
        check_environment(made, launcher, asked)
        return
    home = SAID if settings else "default"
    with pytest.raises(LaunchError) as caught:
        check_environment(made, launcher, asked)
    assert str(caught.value) == (
        f"ACCELERATE_MIXED_PRECISION=bf16 is set, but mixed_precision is no ({home}); unset it, "
        "or write mixed_precision: bf16"
    )


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
    half = {"communication_data_type": "bf16", "zero_optimization": {"stage": 2}}
    assert plan(request(deepspeed=half)).precision["reduction"] == "bf16"
    assert told["precision"] == {"parameters": "fp32", "compute": "bf16", "reduction": "fp32", "buffers": "fp32"}
    assert {"strategy", "world_size", "launcher", "device", "mixed_precision", "global_batch_size", "lr"} <= set(told)
