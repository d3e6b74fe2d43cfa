"""The plan of a run, resolved from the files, the launcher, the training config and the machine.

If two places give different values, the run ends here, before anything starts, with both of them
named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..config.train_config import TrainConfig
from ..distributed.launcher import Launcher
from ..errors import DEFAULT, ConfigError, LaunchError, Origin, Problem, Sourced
from ..plan import Plan
from .cpu_rehearsal import rehearsal_notices, rehearsal_precision, rehearsed
from .reconcile import Reconciler, choose_optimizer, choose_schedule
from .request import Request, Strategy

# Fields of the plan that are as in the training config.
_AS_CONFIGURED = (
    *("lr_scaling", "warmup_samples", "find_unused_parameters", "sync_each_batch"),
    *("float32", "bucket_cap_mb"),
)


def resolve(
    config: TrainConfig,
    request: Request | None,
    launcher: Launcher,
    gpus: int,
    origins: Mapping[str, Origin],
    *,
    optimizer_built_by: str | None = None,
) -> Plan:
    """Compare the config, the request and the launched processes, and return the plan.

    Args:
        gpus: how many this machine has.
        origins: of the config's values, for messages.
        optimizer_built_by: the method by which the task builds an optimizer of its own, if it does.

    Raises:
        ConfigError: two places disagree, or the batch product does not fit.
        LaunchError: the processes that run are not those that were asked for.
    """
    world = launcher.world_size
    if request is None:  # several processes are replicas
        origin = Origin("the number of processes")
        request = Request(strategy="ddp" if world > 1 else "single", strategy_origin=origin)
    both = Reconciler(config, origins)
    strategy = _strategy(request, launcher, both)
    device = _device(request, launcher, gpus)

    if request.dynamo and both.is_given("compile") and not config.compile:
        rule = f"disagrees with {request.origins['dynamo']}; keep one of the two"
        both.refuse(both.configured("compile"), rule)
    precision = both.agree("mixed_precision", request.mixed_precision) or "no"
    micro = both.agree("micro_batch_size", request.micro_batch_size)
    reduce_dtype = _reduce_dtype(config, request, precision, both)
    global_batch = both.agree("global_batch_size", request.global_batch_size)
    accumulation = both.agree("accumulation_steps", request.accumulation_steps)
    clip = both.agree("max_grad_norm", request.max_grad_norm)
    optimizer, settings, lr = choose_optimizer(config, request, both, optimizer_built_by)
    schedule, lr = choose_schedule(config, request, both, lr)
    if both.problems:
        raise ConfigError(both.problems)

    accumulation = _accumulation(global_batch, micro, accumulation, world, both.origins)
    batch = micro * accumulation * world
    if strategy == "fsdp":
        _check_reduction(config, accumulation, both)
    if config.warmup_samples is not None:
        schedule["warmup_steps"] = -(-config.warmup_samples // batch)  # rounded up
    reference = config.reference_batch_size or batch

    notices = [*request.notices, *both.notices]
    rehearsal = device == "cpu" and strategy != "single"
    if rehearsal:
        precision_origin = both.origins.get("mixed_precision", DEFAULT)
        notices += rehearsal_notices(request, Sourced(precision, precision_origin))
        request = rehearsed(request)
        precision = rehearsal_precision(strategy, precision)
    deepspeed = request.deepspeed
    if deepspeed and config.reduce_dtype:
        names = {"float32": "fp32", "bf16": "bf16"}
        deepspeed = {**deepspeed, "communication_data_type": names[config.reduce_dtype]}

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
        mixed_precision=precision,
        micro_batch_size=micro,
        accumulation_steps=accumulation,
        global_batch_size=batch,
        max_grad_norm=clip or None,
        reduce_dtype=reduce_dtype,
        optimizer=optimizer,
        optimizer_settings=settings,
        lr=scaled_lr(lr, config.lr_scaling, reference, batch),
        lr_reference=lr,
        reference_batch_size=reference,
        compile=config.compile or bool(request.dynamo),
        fsdp=request.fsdp,
        deepspeed=deepspeed,
        dynamo=dynamo,
        files=request.files,
        notices=tuple(dict.fromkeys(notices)),
        origins={**request.origins, **both.origins, "strategy": request.strategy_origin},
        **schedule,
        **{key: getattr(config, key) for key in _AS_CONFIGURED},
    )

    # max_steps ends the run at the latest. With epochs as well, only the data know the length.
    has_open_length = config.epochs is not None and plan.warmup_fraction is not None
    if config.max_steps is None or has_open_length:
        return plan
    return plan.with_length(config.max_steps)


def check_partitions(request: Request, world: int) -> None:
    """Raise LaunchError if groups with a copy of the model each do not divide the processes."""
    copies = request.fsdp.get("dp_replicate_size", 1)
    if world % copies:
        origin = request.origins["fsdp.dp_replicate_size"]
        raise LaunchError(f"{origin}: {copies}: must divide the number of processes, {world}")


def scaled_lr(lr: float, rule: str, reference_batch: int, batch: int) -> float:
    """Return the learning rate for the global batch that runs.

    Args:
        lr: belongs to ``reference_batch`` (in samples).
        rule: ``linear`` (Goyal et al. 2017), ``sqrt`` (Malladi et al. 2022, for Adam) or ``none``.
    """
    ratio = batch / reference_batch
    factors = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}
    return lr * factors[rule]


def _strategy(request: Request, launcher: Launcher, both: Reconciler) -> Strategy:
    """Return the strategy that runs. DDP on one process that a launcher started is none.

    Raises:
        LaunchError: other processes run than were asked for.
    """
    world = launcher.world_size
    is_alone = request.stage_0 or launcher.name != "python"
    if request.strategy == "ddp" and world == 1 and is_alone:
        origin = request.strategy_origin
        both.notices.append(f"{origin}: {launcher.name} runs one process, thus without DDP")
        return "single"

    requested = request.world_size
    if request.strategy == "single":
        requested = Sourced(1, request.strategy_origin)
    is_other = requested is not None and requested.value != world
    if is_other or (request.strategy == "ddp" and world == 1):
        origin = request.strategy_origin if requested is None else requested.origin
        count = "several" if requested is None else requested.value
        hint = "launch as many, or change the file"
        if launcher.name == "python":
            hint = "plain python starts one process: use accelerate launch, torchrun or deepspeed"
        raise LaunchError(
            f"{origin}: asks for {count} processes, but {world} run under {launcher.name}; {hint}"
        )
    check_partitions(request, world)
    return request.strategy


def _device(request: Request, launcher: Launcher, gpus: int) -> str:
    """Return ``cuda`` or ``cpu``.

    Raises:
        LaunchError: there are fewer GPUs than processes on this machine.
    """
    if not gpus or request.use_cpu:
        return "cpu"
    # Launchers that start one process a rank may show each rank its own GPU only (srun
    # --gpus-per-task=1).
    sees_own_only = gpus == 1 and launcher.name in ("srun", "mpirun", "environment")
    if launcher.local_world_size > gpus and not sees_own_only:
        raise LaunchError(
            f"{launcher.local_world_size} processes on this machine, but only {gpus} GPUs are "
            f"visible; launch at most {gpus}, or set use_cpu: true to rehearse on the CPU"
        )
    return "cuda"


def _reduce_dtype(config: TrainConfig, request: Request, precision: str, both: Reconciler) -> str:
    """Return the dtype in which gradients travel, and record a dtype that cannot run."""
    requested = None
    in_file = str(request.deepspeed.get("communication_data_type") or "").lower()
    if in_file:
        key = "deepspeed.communication_data_type"
        origin = request.origins.get(key, request.strategy_origin)
        requested = Sourced("float32" if in_file == "fp32" else in_file, origin)
    if config.reduce_dtype == "bf16" and precision == "fp16":
        rule = "not supported beside mixed_precision fp16, whose loss scale looks for infinite"
        both.refuse(both.configured("reduce_dtype"), f"{rule} gradients of fp16; take bf16")
    return str(both.agree("reduce_dtype", requested) or "float32")


def _check_reduction(config: TrainConfig, accumulation: int, both: Reconciler) -> None:
    """Raise ConfigError if micro-batches would add up in bf16: FSDP2 adds up in the reduction."""
    if config.reduce_dtype == "bf16" and accumulation > 1 and not config.sync_each_batch:
        rule = (
            f"under FSDP2 the {accumulation} micro-batches of a step would add up in bf16; set "
            "sync_each_batch: true, with which they add up in float32, or leave it out"
        )
        raise ConfigError(both.configured("reduce_dtype").problem(rule))


def _accumulation(
    global_batch: int | None,
    micro: int,
    accumulation: int | None,
    world: int,
    origins: Mapping[str, Origin],
) -> int:
    """Return the accumulation steps. If they are open, they follow from the global batch.

    Raises:
        ConfigError: the global batch is not the product of the others.
    """
    unit = micro * world * (accumulation or 1)
    if global_batch is None or global_batch == unit:
        return accumulation or 1
    if accumulation is None and global_batch % unit == 0:
        return global_batch // unit

    product = f"micro_batch_size {micro} x world_size {world}"
    relation = "a multiple of" if accumulation is None else f"{accumulation} times"
    rule = f"must be {relation} {product} = {micro * world}"
    origin = origins.get("global_batch_size", DEFAULT.named("global_batch_size"))
    raise ConfigError(Problem(origin=origin, value=global_batch, rule=rule))
