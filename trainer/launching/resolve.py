"""The plan: what will run, resolved from the files, the launcher, the training config and the
machine.

Where two places give different values the run ends here, before anything starts, with both of them
named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ..config.no_effect import without_effect
from ..config.train_config import TrainConfig
from ..distributed.launcher import Launcher
from ..errors import DEFAULT, ConfigError, LaunchError, Origin, Problem, Sourced
from ..plan import Plan
from .cpu_rehearsal import rehearsal_changes, rehearsal_notices, rehearsal_precision
from .reconcile import Reconciler, choose_optimizer, choose_schedule
from .request import Request

# Fields of the plan that are as in the training config.
_AS_CONFIGURED = (
    "lr_scaling", "warmup_samples", "find_unused_parameters", "sync_each_batch", "float32",
    "bucket_cap_mb",
)  # fmt: skip


def resolve(
    config: TrainConfig,
    request: Request | None,
    launcher: Launcher,
    gpus: int,
    origins: Mapping[str, Origin],
    *,
    optimizer_built_by: str | None = None,
) -> Plan:
    """Hold the config, the request and the launched processes against each other.

    Args:
        gpus: that this machine has.
        origins: of the config's values, for messages.
        optimizer_built_by: the method by which the task builds an optimizer of its own, if it does.

    Raises:
        ConfigError: two places disagree, or the batch product does not fit.
        LaunchError: the processes that run are not those that were asked for.
    """
    world = launcher.world_size
    if (
        request is None
    ):  # nobody named a strategy: replicas are the plain meaning of several processes
        request = Request(
            strategy="ddp" if world > 1 else "single",
            strategy_origin=Origin("the number of processes"),
        )
    both = Reconciler(config, origins)
    strategy = request.strategy
    if strategy == "ddp" and world == 1 and (request.stage_0 or launcher.name != "python"):
        both.notices.append(
            f"{request.strategy_origin}: {launcher.name} runs one process, thus without DDP"
        )
        strategy = "single"
    else:
        _check_world(request, launcher)
    device = "cuda" if gpus and not request.use_cpu else "cpu"
    # Those that start one process a rank may show each a GPU of its own only (srun
    # --gpus-per-task=1).
    own = gpus == 1 and launcher.name in ("srun", "mpirun", "environment")
    if device == "cuda" and launcher.local_world_size > gpus and not own:
        raise LaunchError(
            f"{launcher.local_world_size} processes on this machine, but only {gpus} GPUs are visible; "
            f"launch at most {gpus}, or set use_cpu: true to rehearse on the CPU"
        )

    if config.sync_batchnorm and (device == "cpu" or strategy.startswith("zero")):
        rule = (
            "torch has it on GPUs only"
            if device == "cpu"
            else "not offered under DeepSpeed; use DDP or FSDP2"
        )
        both.refuse(both.ours("sync_batchnorm"), rule)
    if config.float32 == "tf32" and device == "cpu":
        both.notice(both.ours("float32"), "tf32 has no effect on a CPU")
    for key, owner in (("sync_each_batch", "fsdp"), ("bucket_cap_mb", "ddp")):
        if getattr(config, key) and strategy != owner:
            both.notice(
                both.ours(key), f"no effect under {strategy}: gradients are kept as without it"
            )
    precision = both.agree("mixed_precision", request.mixed_precision) or "no"
    micro = both.agree("micro_batch_size", request.micro_batch_size)
    asked_global = both.agree("global_batch_size", request.global_batch_size)
    accumulation = both.agree("accumulation_steps", request.accumulation_steps)
    clip = both.agree("max_grad_norm", request.max_grad_norm)
    optimizer, settings, lr = choose_optimizer(config, request, both, optimizer_built_by)
    schedule, lr = choose_schedule(config, request, both, lr)
    for key, reason in without_effect(config, optimizer=optimizer, schedule=schedule["schedule"]):
        both.notice(both.ours(key), reason)
    if request.dynamo and both.says("compile") and not config.compile:
        both.refuse(
            both.ours("compile"), f"disagrees with {request.origins['dynamo']}; keep one of the two"
        )
    tensor_parallel = request.tensor_parallel_size
    if tensor_parallel > 1:
        beside = f"not supported beside tp_size {tensor_parallel}"
        if config.compile or request.dynamo:
            origin = request.origins["dynamo"] if request.dynamo else both.origin_of("compile")
            both.refuse(Sourced(True, origin), f"{beside}; leave it out")
        if precision == "fp16":
            # The scaler tells infinite gradients to the ranks of the first one's mesh only: others
            # would step.
            both.refuse(
                Sourced(precision, both.origin_of("mixed_precision")), f"{beside}; take bf16"
            )
    if both.problems:
        raise ConfigError(both.problems)
    accumulation = _fit_batch(asked_global, micro, accumulation, world, tensor_parallel, both)
    batch = micro * accumulation * world // tensor_parallel
    if config.warmup_samples is not None:
        schedule["warmup_steps"] = -(-config.warmup_samples // batch)
    reference = config.reference_batch_size or batch
    fsdp, deepspeed = request.fsdp, request.deepspeed
    rehearsal = device == "cpu" and strategy != "single"
    notices = [*request.notices, *both.notices, *_task_defaults(both)]
    if rehearsal:
        asked = request.mixed_precision or Sourced(
            precision, both.origins.get("mixed_precision", DEFAULT)
        )
        notices += rehearsal_notices(replace(request, mixed_precision=asked))
        precision, (fsdp, deepspeed) = (
            rehearsal_precision(strategy, precision),
            rehearsal_changes(request),
        )
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
        optimizer=optimizer,
        optimizer_settings=settings,
        lr=scaled_lr(lr, config.lr_scaling, reference, batch),
        lr_reference=lr,
        reference_batch_size=reference,
        compile=config.compile or bool(request.dynamo),
        fsdp=fsdp,
        deepspeed=deepspeed,
        dynamo=request.dynamo or ({"backend": "inductor"} if config.compile else {}),
        files=request.files,
        notices=tuple(dict.fromkeys(notices)),
        origins={**request.origins, **both.origins, "strategy": request.strategy_origin},
        **schedule,
        **{key: getattr(config, key) for key in _AS_CONFIGURED},
    )
    if config.max_steps is None or (config.epochs is not None and plan.warmup_fraction is not None):
        return plan
    return plan.with_length(config.max_steps)  # which ends the run at the latest


def _task_defaults(both: Reconciler) -> list[str]:
    """Tell in one line the values that hold because the task gives them and nobody says others;
    none: no line.
    """
    keys = [key for key in both.origins if both.is_task_default(key)]
    if not keys:
        return []
    owner = both.origins[keys[0]].source.replace("default", "defaults", 1)
    values = ", ".join(f"{key} {getattr(both.config, key)}" for key in keys)
    return [
        f"{owner}, which starts from a pretrained model: {values}; set them in the config to change them"
    ]


def _check_world(request: Request, launcher: Launcher) -> None:
    world = launcher.world_size
    asked = request.world_size
    if asked is not None and asked.value != world:
        hint = "the processes that were launched must be as many"
        if launcher.name == "python":
            hint = "plain python starts one process: use accelerate launch, torchrun or deepspeed"
        raise LaunchError(
            f"{asked.origin}: asks for {asked.value} processes, but {world} run under {launcher.name}; {hint}"
        )
    if request.strategy == "single" and world > 1:
        raise LaunchError(
            f"{request.strategy_origin}: asks for one process, but {world} run; use distributed_type: MULTI_GPU for DDP"
        )
    if request.strategy == "ddp" and world == 1:
        hint = "plain python starts one process: use accelerate launch or torchrun"
        raise LaunchError(f"{request.strategy_origin}: asks for DDP, but {hint}")
    check_partitions(request, world)


def check_partitions(request: Request, world: int) -> None:
    """Raise LaunchError where the groups that hold a second copy of the parameters do not divide
    the processes.
    """
    zero, left = request.deepspeed.get("zero_optimization", {}), world
    for key, groups in (
        (
            "deepspeed.zero_optimization.zero_hpz_partition_size",
            zero.get("zero_hpz_partition_size") or 1,
        ),
        ("fsdp.tp_size", request.tensor_parallel_size),
        ("fsdp.dp_replicate_size", request.fsdp.get("dp_replicate_size", 1)),
    ):
        if left % groups:
            of = f"{world}" if left == world else f"{world}, by tp_size {world // left}"
            raise LaunchError(
                f"{request.origins[key]}: {groups}: must divide the number of processes, {of}"
            )
        left //= groups


def _fit_batch(
    asked: int | None,
    micro: int,
    accumulation: int | None,
    world: int,
    tensor_parallel: int,
    both: Reconciler,
) -> int:
    if asked is None:
        return accumulation or 1
    unit = micro * (accumulation or 1) * world // tensor_parallel
    if asked == unit or (accumulation is None and asked % unit == 0):
        return (accumulation or 1) * asked // unit
    parts = f"micro_batch_size {micro} x world_size {world}" + f" / tp_size {tensor_parallel}" * (
        tensor_parallel > 1
    )
    if accumulation is not None:
        rule = f"must be {parts} x accumulation_steps {accumulation} = {unit}; change one of them"
    else:
        below, above = asked // unit * unit, -(-asked // unit) * unit
        near = " or ".join(str(n) for n in (below, above) if n)
        rule = f"must be a multiple of {parts} = {unit}; nearest that work: {near}"
    origin = both.origins.get("global_batch_size", DEFAULT.named("global_batch_size"))
    raise ConfigError(Problem(origin=origin, value=asked, rule=rule))


def scaled_lr(lr: float, rule: str, reference_batch: int, batch: int) -> float:
    """Return the learning rate for the global batch that runs.

    Args:
        lr: belongs to ``reference_batch`` (in samples).
        rule: ``linear`` (Goyal et al. 2017), ``sqrt`` (Malladi et al. 2022, for Adam) or ``none``.
    """
    ratio = batch / reference_batch
    return lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
