"""The plan: what will run, resolved from the files, the launcher, the training config and machine.

Where two places give different values the run ends here, before anything starts, with both of them
named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config.train_config import TrainConfig
from ..distributed.launcher import Launcher
from ..errors import DEFAULT, ConfigError, LaunchError, Origin, Problem, Sourced
from ..plan import Plan
from .cpu_rehearsal import rehearsal_changes, rehearsal_notices, rehearsal_precision
from .gpu_defaults import overlapped
from .reconcile import Reconciler, choose_optimizer, choose_schedule
from .request import Request, Strategy

# Fields of the plan that are as in the training config.
_AS_CONFIGURED = (
    "lr_scaling",
    "warmup_samples",
    "find_unused_parameters",
    "sync_each_batch",
    "float32",
    "bucket_cap_mb",
)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """The global batch: ``micro x accumulation x world`` items."""

    micro: int
    accumulation: int
    world: int

    @property
    def size(self) -> int:
        return self.micro * self.accumulation * self.world


@dataclass(frozen=True, kw_only=True)
class _Engine:
    """What the strategy's engine runs with, after the changes for a rehearsal on CPUs."""

    precision: str
    fsdp: dict[str, Any]
    deepspeed: dict[str, Any]
    notices: tuple[str, ...] = ()


def resolve(
    config: TrainConfig,
    request: Request | None,
    launcher: Launcher,
    gpus: int,
    origins: Mapping[str, Origin],
    *,
    optimizer_built_by: str | None = None,
) -> Plan:
    """Compare the config, the request and the launched processes, and return what will run.

    Args:
        gpus: how many this machine has.
        origins: of the config's values, for messages.
        optimizer_built_by: the method by which the task builds an optimizer of its own, if it does.

    Raises:
        ConfigError: two places disagree, or the batch product does not fit.
        LaunchError: the processes that run are not those that were asked for.
    """
    world = launcher.world_size
    if request is None:
        request = _request_by_processes(world)
    both = Reconciler(config, origins)
    strategy = _strategy(request, launcher, both)
    device = _device(request, launcher, gpus)

    _check_config(config, strategy, device, both)
    precision = both.agree("mixed_precision", request.mixed_precision) or "no"
    micro = both.agree("micro_batch_size", request.micro_batch_size)
    reduce_dtype = _reduce_dtype(config, request, strategy, precision, both)
    global_batch = both.agree("global_batch_size", request.global_batch_size)
    accumulation = both.agree("accumulation_steps", request.accumulation_steps)
    clip = both.agree("max_grad_norm", request.max_grad_norm)
    optimizer, settings, lr = choose_optimizer(config, request, both, optimizer_built_by)
    schedule, lr = choose_schedule(config, request, both, lr)
    _check_compile(config, request, both)
    if both.problems:
        raise ConfigError(both.problems)

    batch = _fit_batch(global_batch, micro, accumulation, world, both.origins)
    if strategy == "fsdp":
        _check_reduction(config, batch, both)
    if config.warmup_samples is not None:
        schedule["warmup_steps"] = -(-config.warmup_samples // batch.size)  # rounded up
    reference = config.reference_batch_size or batch.size

    rehearsal = device == "cpu" and strategy != "single"
    engine = _Engine(precision=precision, fsdp=request.fsdp, deepspeed=request.deepspeed)
    if rehearsal:
        engine = _rehearsed(request, strategy, precision, both)
    engine = _with_exchange(engine, config, strategy, device)
    notices = [*request.notices, *both.notices, *_task_defaults(both), *engine.notices]

    dynamo = request.dynamo
    if config.compile and not dynamo:
        dynamo = {"backend": "inductor"}
    plan = Plan(
        strategy=strategy,
        launcher=launcher.name,
        world_size=world,
        num_machines=launcher.num_machines or request.num_machines,
        device=device,
        rehearsal=rehearsal,
        mixed_precision=engine.precision,
        micro_batch_size=micro,
        accumulation_steps=batch.accumulation,
        global_batch_size=batch.size,
        max_grad_norm=clip or None,
        reduce_dtype=reduce_dtype,
        optimizer=optimizer,
        optimizer_settings=settings,
        lr=scaled_lr(lr, config.lr_scaling, reference, batch.size),
        lr_reference=lr,
        reference_batch_size=reference,
        compile=config.compile or bool(request.dynamo),
        fsdp=engine.fsdp,
        deepspeed=engine.deepspeed,
        dynamo=dynamo,
        files=request.files,
        notices=tuple(dict.fromkeys(notices)),
        origins={**request.origins, **both.origins, "strategy": request.strategy_origin},
        **schedule,
        **{key: getattr(config, key) for key in _AS_CONFIGURED},
    )

    # max_steps ends the run at the latest. With epochs beside it, only the data know its length.
    has_open_length = config.epochs is not None and plan.warmup_fraction is not None
    if config.max_steps is None or has_open_length:
        return plan
    return plan.with_length(config.max_steps)


def check_partitions(request: Request, world: int) -> None:
    """Raise LaunchError where groups with a copy of the parameters do not divide the processes."""
    zero = request.deepspeed.get("zero_optimization", {})
    group_sizes = {
        "deepspeed.zero_optimization.zero_hpz_partition_size": zero.get("zero_hpz_partition_size"),
        "fsdp.dp_replicate_size": request.fsdp.get("dp_replicate_size"),
    }

    for key, size in group_sizes.items():
        if size and world % size:
            raise LaunchError(
                f"{request.origins[key]}: {size}: must divide the number of processes, {world}"
            )


def scaled_lr(lr: float, rule: str, reference_batch: int, batch: int) -> float:
    """Return the learning rate for the global batch that runs.

    Args:
        lr: belongs to ``reference_batch`` (in samples).
        rule: ``linear`` (Goyal et al. 2017), ``sqrt`` (Malladi et al. 2022, for Adam) or ``none``.
    """
    ratio = batch / reference_batch
    factors = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}
    return lr * factors[rule]


def _request_by_processes(world: int) -> Request:
    """Return the request where no file names a strategy: several processes are replicas."""
    return Request(
        strategy="ddp" if world > 1 else "single",
        strategy_origin=Origin("the number of processes"),
    )


def _strategy(request: Request, launcher: Launcher, both: Reconciler) -> Strategy:
    """Return the strategy that runs: DDP on one process is none, where a launcher started it."""
    may_be_alone = request.stage_0 or launcher.name != "python"
    if request.strategy == "ddp" and launcher.world_size == 1 and may_be_alone:
        origin = request.strategy_origin
        both.notices.append(f"{origin}: {launcher.name} runs one process, thus without DDP")
        return "single"
    _check_world(request, launcher)
    return request.strategy


def _device(request: Request, launcher: Launcher, gpus: int) -> str:
    """Return ``cuda`` or ``cpu``.

    Raises:
        LaunchError: there are fewer GPUs than processes on this machine.
    """
    if not gpus or request.use_cpu:
        return "cpu"
    # Launchers that start one process a rank may show each a GPU of its own only (srun
    # --gpus-per-task=1).
    sees_own_only = gpus == 1 and launcher.name in ("srun", "mpirun", "environment")
    if launcher.local_world_size > gpus and not sees_own_only:
        raise LaunchError(
            f"{launcher.local_world_size} processes on this machine, but only {gpus} GPUs are "
            f"visible; launch at most {gpus}, or set use_cpu: true to rehearse on the CPU"
        )
    return "cuda"


def _check_config(config: TrainConfig, strategy: str, device: str, both: Reconciler) -> None:
    """Refuse, or note, settings of the config that this strategy or device does not have."""
    if config.sync_batchnorm and device == "cpu":
        both.refuse(both.configured("sync_batchnorm"), "torch has it on GPUs only")
    elif config.sync_batchnorm and strategy.startswith("zero"):
        rule = "not offered under DeepSpeed; use DDP or FSDP2"
        both.refuse(both.configured("sync_batchnorm"), rule)

    if config.float32 == "tf32" and device == "cpu":
        both.notice(both.configured("float32"), "tf32 has no effect on a CPU")
    for key, owner in (("sync_each_batch", "fsdp"), ("bucket_cap_mb", "ddp")):
        if getattr(config, key) and strategy != owner:
            text = f"no effect under {strategy}: gradients are kept as without it"
            both.notice(both.configured(key), text)


def _check_compile(config: TrainConfig, request: Request, both: Reconciler) -> None:
    if request.dynamo and both.is_given("compile") and not config.compile:
        rule = f"disagrees with {request.origins['dynamo']}; keep one of the two"
        both.refuse(both.configured("compile"), rule)


def _reduce_dtype(
    config: TrainConfig, request: Request, strategy: str, precision: str, both: Reconciler
) -> str:
    """Return the dtype of gradients on their way to other ranks; record why it cannot be."""
    requested = None
    in_file = str(request.deepspeed.get("communication_data_type") or "").lower()
    if in_file:
        key = "deepspeed.communication_data_type"
        origin = request.origins.get(key, request.strategy_origin)
        requested = Sourced("float32" if in_file == "fp32" else in_file, origin)
    found = both.agree("reduce_dtype", requested) or "float32"

    if config.reduce_dtype == "bf16":
        configured = both.configured("reduce_dtype")
        if strategy == "single":
            both.notice(configured, "no effect in one process: nothing is exchanged")
        elif precision == "fp16":
            rule = "not supported beside mixed_precision fp16, whose loss scale looks for infinite"
            both.refuse(configured, f"{rule} gradients of fp16; take mixed_precision: bf16")
    return str(found)


def _check_reduction(config: TrainConfig, batch: _Batch, both: Reconciler) -> None:
    """Refuse what would add up in bf16: FSDP2 adds up whole gradients as it reduces them.

    Raises:
        ConfigError: several micro-batches are added up before the exchange.
    """
    if config.reduce_dtype == "bf16" and batch.accumulation > 1 and not config.sync_each_batch:
        rule = (
            f"under FSDP2 the {batch.accumulation} micro-batches of a step would add up in bf16; "
            "set sync_each_batch: true, with which they add up in float32, or leave it out"
        )
        raise ConfigError(both.configured("reduce_dtype").problem(rule))


def _rehearsed(request: Request, strategy: str, precision: str, both: Reconciler) -> _Engine:
    """Return what a rehearsal on CPUs runs with."""
    requested = request.mixed_precision
    if requested is None:
        requested = Sourced(precision, both.origins.get("mixed_precision", DEFAULT))
    fsdp, deepspeed = rehearsal_changes(request)
    return _Engine(
        precision=rehearsal_precision(strategy, precision),
        fsdp=fsdp,
        deepspeed=deepspeed,
        notices=rehearsal_notices(replace(request, mixed_precision=requested)),
    )


def _with_exchange(engine: _Engine, config: TrainConfig, strategy: str, device: str) -> _Engine:
    """Return an engine with what the config, and a GPU, add to how gradients are exchanged."""
    deepspeed = engine.deepspeed
    if strategy.startswith("zero") and config.reduce_dtype:
        names = {"float32": "fp32", "bf16": "bf16"}
        deepspeed = {**deepspeed, "communication_data_type": names[config.reduce_dtype]}
    if device == "cuda" and not config.find_unused_parameters:  # which exchanges at the end
        deepspeed = overlapped(deepspeed)
    return replace(engine, deepspeed=deepspeed)


def _task_defaults(both: Reconciler) -> list[str]:
    """Return one line with the values that are the task's defaults, if there are any."""
    keys = [key for key in both.origins if both.is_task_default(key)]
    if not keys:
        return []
    owner = both.origins[keys[0]].source.replace("default", "defaults", 1)
    values = ", ".join(f"{key} {getattr(both.config, key)}" for key in keys)
    return [
        f"{owner}, which starts from a pretrained model: {values}; "
        "set them in the config to change them"
    ]


def _check_world(request: Request, launcher: Launcher) -> None:
    """Raise LaunchError where other processes run than were asked for."""
    world = launcher.world_size
    requested = request.world_size
    by_python = "plain python starts one process: use accelerate launch"

    if requested is not None and requested.value != world:
        hint = "the processes that were launched must be as many"
        if launcher.name == "python":
            hint = f"{by_python}, torchrun or deepspeed"
        raise LaunchError(
            f"{requested.origin}: asks for {requested.value} processes, but {world} run under "
            f"{launcher.name}; {hint}"
        )

    if request.strategy == "single" and world > 1:
        raise LaunchError(
            f"{request.strategy_origin}: asks for one process, but {world} run; use "
            "distributed_type: MULTI_GPU for DDP"
        )

    if request.strategy == "ddp" and world == 1:
        raise LaunchError(f"{request.strategy_origin}: asks for DDP, but {by_python} or torchrun")
    check_partitions(request, world)


def _fit_batch(
    global_batch: int | None,
    micro: int,
    accumulation: int | None,
    world: int,
    origins: Mapping[str, Origin],
) -> _Batch:
    """Return the batch; where the accumulation is open, it follows from the global batch.

    Raises:
        ConfigError: the global batch is not the product of the others.
    """
    batch = _Batch(micro=micro, accumulation=accumulation or 1, world=world)
    unit = batch.size
    if global_batch is None or global_batch == unit:
        return batch
    if accumulation is None and global_batch % unit == 0:
        return replace(batch, accumulation=global_batch // unit)

    factors = f"micro_batch_size {micro} x world_size {world}"
    if accumulation is not None:
        product = f"{factors} x accumulation_steps {accumulation}"
        rule = f"must be {product} = {unit}; change one of them"
    else:
        below = global_batch // unit * unit
        nearest = [size for size in (below, below + unit) if size]
        sizes = " or ".join(str(size) for size in nearest)
        rule = f"must be a multiple of {factors} = {unit}; nearest that work: {sizes}"
    origin = origins.get("global_batch_size", DEFAULT.named("global_batch_size"))
    raise ConfigError(Problem(origin=origin, value=global_batch, rule=rule))
