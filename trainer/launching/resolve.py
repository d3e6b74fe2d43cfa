"""The plan of a run, resolved from the files, the launcher, the training config and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.rules import WITH_KEYS
from ..config.train_config import TrainConfig
from ..distributed.started_by import Launcher
from ..errors import LaunchError, Origin, Sourced, origin_of
from ..run_plan import Plan
from .reconcile import Reconciler
from .request import Request, Strategy

# How lr grows with the batch. linear: Goyal et al. 2017, sqrt: Malladi et al. 2022, for Adam.
_EXPONENTS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


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
    request = request or Request(  # several processes are replicas
        strategy="ddp" if world > 1 else "single",
        strategy_origin=Origin("the number of processes"),
    )
    chosen = Reconciler(config, origins, request.settings)
    strategy = _strategy(request, launcher, chosen)
    device = _device(request, launcher, gpus)
    if optimizer_built_by and "optimizer" in request.settings:
        rule = f"{optimizer_built_by} builds the optimizer already; remove one of the two"
        raise request.settings["optimizer"].error(rule)
    _choose_optimizer(chosen)
    copies = request.fsdp.get("dp_replicate_size", 1)
    groups = Sourced(copies, origin_of(request.origins, "fsdp.dp_replicate_size"))
    for found in (chosen.found("context_parallel"), groups):
        if world % found.value:
            raise found.error(f"must divide the number of processes, {world}")
    batch = _cut(world // chosen.context_parallel, chosen)
    if chosen.reduce_dtype == "bf16":
        _check_reduction(strategy, chosen)
    if chosen.compile and strategy == "zero3":
        rule = (
            "ZeRO-3 gathers layers by hooks inside of compiled code, which torch then compiles in "
            "fragments; take FSDP2, or leave it out"
        )
        raise chosen.found("compile").error(rule)

    if chosen.warmup_samples:
        chosen.warmup_steps = -(-chosen.warmup_samples // batch)  # rounded up
    if getattr(chosen, "warmup_type", None) == "log":
        chosen.schedule_settings = {**chosen.schedule_settings, "warmup_type": "log"}
    lr = chosen.lr
    reference = chosen.reference_batch_size or batch
    chosen.lr *= (batch / reference) ** _EXPONENTS[chosen.lr_scaling]
    chosen.reference_batch_size = reference
    chosen.max_grad_norm = chosen.max_grad_norm or None
    chosen.mixed_precision = chosen.mixed_precision or "no"
    chosen.reduce_dtype = chosen.reduce_dtype or "float32"
    chosen.schedule = chosen.schedule or "constant"
    is_rehearsal = device == "cpu" and strategy != "single"
    if is_rehearsal and (request.fsdp or request.deepspeed):
        from .cpu_rehearsal import rehearsed

        request = rehearsed(request, chosen)
    return Plan(
        **{key: value for key, value in vars(chosen).items() if key in Plan.__dataclass_fields__},
        strategy=strategy,
        launcher=launcher.name,
        world_size=world,
        device=device,
        rehearsal=is_rehearsal,
        lr_reference=lr,
        fsdp=request.fsdp,
        deepspeed=request.deepspeed,
        dynamo=request.dynamo or ({"backend": "inductor"} if chosen.compile else {}),
        files=request.files,
        notices=(*request.notices, *chosen.notes),
        origins={**request.origins, **chosen.places, "strategy": request.strategy_origin},
    )


def _choose_optimizer(chosen: Reconciler) -> None:
    """Choose the optimizer and all of its settings but the learning rate."""
    chosen.optimizer = chosen.optimizer or WITH_KEYS[0]
    if chosen.optimizer in WITH_KEYS:
        keys = ("momentum",) if chosen.optimizer == "sgd" else ("betas", "eps")
        settings = {key: getattr(chosen, key) for key in (*keys, "weight_decay")}
    else:
        from ..optim.optimizers import check_class

        settings = check_class(
            chosen.optimizer,
            chosen.optimizer_settings,
            chosen.places,
            lr=chosen.lr,
            decay=chosen.weight_decay,
            decay_given=chosen.is_given("weight_decay"),
        )
    chosen.optimizer_settings = settings


def _cut(groups: int, chosen: Reconciler) -> int:
    """Choose the size of a micro-batch and their number in a step. Return the global batch.

    ``groups`` is the number of processes, or of groups of processes, with rows of their own.
    """
    whole = chosen.global_batch_size or 0
    micro = chosen.micro_batch_size
    steps: Any = chosen.accumulation_steps or (None if micro else 1)
    rule = (
        f"must be micro_batch_size {micro or 'N'} x accumulation_steps {steps or 'N'} x {groups} "
        "(world_size / context_parallel); micro_batch_size: null takes an equal share"
    )
    micro = micro or max(1, whole // (steps * groups))
    steps = steps or max(1, whole // (micro * groups))
    batch: int = micro * steps * groups
    if whole != batch and (whole or not chosen.micro_batch_size):
        raise chosen.found("global_batch_size").error(rule)
    chosen.micro_batch_size = micro
    chosen.accumulation_steps = steps
    chosen.global_batch_size = batch
    return batch


def _strategy(request: Request, launcher: Launcher, chosen: Reconciler) -> Strategy:
    """Return the strategy that runs. A single process that a launcher started runs without DDP."""
    world = launcher.world_size
    requested = request.world_size
    fits = not requested or requested.value == world
    if request.strategy == "ddp" and world == 1 and (fits or launcher.name != "python"):
        origin = request.strategy_origin
        chosen.notes.append(f"{origin}: {launcher.name} runs one process, thus without DDP")
        return "single"
    if requested and not fits:
        raise LaunchError(
            f"{requested.origin}: asks for {requested.value} processes, but {world} run under "
            f"{launcher.name}; launch as many (by accelerate launch, torchrun or deepspeed), or "
            "change the file"
        )
    if request.strategy == "fsdp" and launcher.name == "python":
        rule = "needs a launcher for a single process too: torchrun --nproc_per_node 1"
        raise request.strategy_origin.error(rule)
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


def _check_reduction(strategy: str, chosen: Reconciler) -> None:
    """Raise ConfigError if gradients cannot travel in bf16."""
    rule = ""
    steps = chosen.accumulation_steps
    if chosen.mixed_precision == "fp16":
        rule = (
            "not supported beside mixed_precision fp16, whose loss scale looks for infinite "
            "gradients of fp16; take bf16"
        )
    elif strategy == "fsdp" and steps > 1 and not chosen.sync_each_batch:
        rule = (  # FSDP2 adds up in the reduction
            f"under FSDP2 the {steps} micro-batches of a step would add up in bf16; set "
            "sync_each_batch: true, with which they add up in float32, or leave it out"
        )
    if rule:
        raise chosen.found("reduce_dtype").error(rule)
