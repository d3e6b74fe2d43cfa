"""The plan of a run, resolved from the files, the launcher, the training config and the machine."""

from __future__ import annotations

from collections.abc import Mapping

from ..config.train_config import TrainConfig
from ..distributed.started_by import Launcher
from ..errors import LaunchError, Origin
from ..run_plan import Plan
from .reconcile import Reconciler, choose_optimizer, choose_schedule
from .request import Request, Strategy

# Keys of the training config that a launch file may give, too.
_IN_BOTH = (
    "compile", "mixed_precision", "micro_batch_size", "global_batch_size", "accumulation_steps",
    "max_grad_norm", "context_parallel",
)  # fmt: skip
# How lr grows with the batch. linear: Goyal et al. 2017, sqrt: Malladi et al. 2022, for Adam.
_EXPONENTS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}
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
    """Compare the config, the request and the launched processes, and return the plan.

    Args:
        gpus: the number of GPUs that this process sees.
        optimizer_built_by: the method of the task that builds an optimizer, or None.

    Raises:
        ConfigError: two places disagree, or the batch product does not fit.
        LaunchError: the processes that run are not those that were asked for.
    """
    world = launcher.world_size
    if request is None:  # several processes are replicas
        request = Request(
            strategy="ddp" if world > 1 else "single",
            strategy_origin=Origin("the number of processes"),
        )
    both = Reconciler(config, origins, request.settings)
    strategy = _strategy(request, launcher, both)
    device = _device(request, launcher, gpus)
    compiles, precision, micro, global_batch, steps, clip, context = map(both.agree, _IN_BOTH)
    optimizer, settings, lr = choose_optimizer(both, optimizer_built_by)
    schedule = choose_schedule(both)
    if world % context:
        rule = f"must divide the number of processes, {world}"
        both.fail(both.found("context_parallel"), rule)
    groups = world // context
    micro, steps = _cut(global_batch, micro, steps, groups, both)
    batch = micro * steps * groups
    if config.reduce_dtype == "bf16":
        _check_reduction(strategy, precision, steps, both)
    if compiles and strategy == "zero3":
        rule = (
            "ZeRO-3 gathers layers by hooks inside of compiled code, which torch then compiles in "
            "fragments; take FSDP2, or leave it out"
        )
        both.refuse(both.found("compile"), rule)
    both.end()
    if config.warmup_samples is not None:
        schedule["warmup_steps"] = -(-config.warmup_samples // batch)  # rounded up

    is_rehearsal = device == "cpu" and strategy != "single"
    lines: list[str] = []
    precision = precision or "no"
    if is_rehearsal and (request.fsdp or request.deepspeed):
        from .cpu_rehearsal import rehearsed

        asked = both.found("mixed_precision").meaning(precision)
        request, precision, lines = rehearsed(request, asked)
    reference = config.reference_batch_size or batch
    plan = Plan(
        strategy=strategy,
        launcher=launcher.name,
        world_size=world,
        context_parallel=context,
        device=device,
        rehearsal=is_rehearsal,
        mixed_precision=precision,
        micro_batch_size=micro,
        accumulation_steps=steps,
        global_batch_size=batch,
        max_grad_norm=clip or None,
        reduce_dtype=config.reduce_dtype or "float32",
        optimizer=optimizer,
        optimizer_settings=settings,
        lr=lr * (batch / reference) ** _EXPONENTS[config.lr_scaling],
        lr_reference=lr,
        reference_batch_size=reference,
        compile=compiles,
        fsdp=request.fsdp,
        deepspeed=request.deepspeed,
        dynamo=request.dynamo or ({"backend": "inductor"} if compiles else {}),
        files=request.files,
        notices=tuple(dict.fromkeys([*request.notices, *both.notices, *lines])),
        origins={**request.origins, **both.origins, "strategy": request.strategy_origin},
        **schedule,
        **{key: getattr(config, key) for key in _AS_CONFIGURED},
    )

    # max_steps ends the run at the latest. With epochs as well, only the data tell the length.
    has_open_length = config.epochs is not None and plan.warmup_fraction is not None
    if config.max_steps is None or has_open_length:
        return plan
    return plan.with_length(config.max_steps)


def _cut(
    global_batch: int | None, micro: int | None, steps: int | None, groups: int, both: Reconciler
) -> tuple[int, int]:
    """Return the size of a micro-batch, and their number in a step of each process.

    ``groups`` is the number of processes, or of groups of processes, with rows of their own.
    """
    found = both.found("global_batch_size")
    counted = "world_size" if "context_parallel" not in both.origins else "groups"
    if micro is None:
        shares = (steps or 1) * groups
        if not global_batch or global_batch % shares:
            rule = f"must be a multiple of {shares} (accumulation_steps {steps or 1} x {counted}"
            both.fail(found, f"{rule} {groups}), as micro_batch_size is null")
        return global_batch // shares, steps or 1

    accumulation = steps or max(1, (global_batch or 0) // (micro * groups))
    if global_batch not in (None, micro * accumulation * groups):
        rule = f"must be micro_batch_size {micro} x accumulation_steps {steps or 'N'} x {counted}"
        both.refuse(found, f"{rule} {groups}; micro_batch_size: null takes an equal share")
    return micro, accumulation


def _strategy(request: Request, launcher: Launcher, both: Reconciler) -> Strategy:
    """Return the strategy that runs. A single process that a launcher started runs without DDP."""
    world = launcher.world_size
    requested = request.world_size
    fits = requested is None or requested.value == world
    if request.strategy == "ddp" and world == 1 and (fits or launcher.name != "python"):
        origin = request.strategy_origin
        both.notices.append(f"{origin}: {launcher.name} runs one process, thus without DDP")
        return "single"
    if requested is not None and not fits:
        raise LaunchError(
            f"{requested.origin}: asks for {requested.value} processes, but {world} run under "
            f"{launcher.name}; launch as many (by accelerate launch, torchrun or deepspeed), or "
            "change the file"
        )
    copies = request.fsdp.get("dp_replicate_size", 1)
    if world % copies:
        origin = request.origins["fsdp.dp_replicate_size"]
        raise LaunchError(f"{origin}: {copies}: must divide the number of processes, {world}")
    return request.strategy


def _device(request: Request, launcher: Launcher, gpus: int) -> str:
    """Return ``cuda`` or ``cpu``. LaunchError: there are fewer GPUs than processes here."""
    if not gpus or request.use_cpu:
        return "cpu"
    # A launcher that starts each rank may show a rank a single GPU (srun --gpus-per-task=1).
    sees_own_only = gpus == 1 and launcher.name in ("srun", "mpirun", "environment")
    if launcher.local_world_size > gpus and not sees_own_only:
        raise LaunchError(
            f"{launcher.local_world_size} processes on this machine, but only {gpus} GPUs are "
            f"visible; launch at most {gpus}, or set use_cpu: true to rehearse on the CPU"
        )
    return "cuda"


def _check_reduction(strategy: str, precision: str, accumulation: int, both: Reconciler) -> None:
    """Record a problem if gradients cannot travel in bf16."""
    rule = ""
    if precision == "fp16":
        rule = (
            "not supported beside mixed_precision fp16, whose loss scale looks for infinite "
            "gradients of fp16; take bf16"
        )
    elif strategy == "fsdp" and accumulation > 1 and not both.config.sync_each_batch:
        rule = (  # FSDP2 adds up in the reduction
            f"under FSDP2 the {accumulation} micro-batches of a step would add up in bf16; set "
            "sync_each_batch: true, with which they add up in float32, or leave it out"
        )
    if rule:
        both.refuse(both.configured("reduce_dtype"), rule)
