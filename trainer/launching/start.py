"""Build the Accelerator that the plan describes, and check that it is what came out.

Accelerate on a machine without a GPU turns most requests into something else: an
FSDP or DeepSpeed file with ``use_cpu`` becomes DDP, two processes become two unconnected trainings.
All of that is wrapped here, in one place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ..distributed.imports import uncollected
from ..distributed.launcher import RANKS, Launcher, detect
from ..errors import COMMAND_LINE, ConfigError, LaunchError, Origin, Sourced
from ..faults.watchdog import Watchdog
from ..plan import Plan
from ..strategies import Strategy, strategy_class
from .request import Request, visible_gpus
from .resolve import resolve

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..config.train_config import TrainConfig

# Variables that `accelerate launch` makes from its file. The file itself was read, strictly; what
# is left in the environment would be read a second time, loosely, by Accelerate's plugins.
_MADE_BY_LAUNCH = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
_KEPT = ("ACCELERATE_LOG_LEVEL", "ACCELERATE_DEBUG_MODE", "ACCELERATE_CPU_AFFINITY")


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A verified start: the plan, the Accelerator that runs it and the strategy to train with.

    Args:
        plan: what runs.
        accelerator: connects the processes; for a loop of your own.
        strategy: wraps, steps and shards the model; the trainer makes one of its own for each
            training.
    """

    plan: Plan
    accelerator: Accelerator
    strategy: Strategy


@uncollected()
def launch(
    config: TrainConfig,
    *,
    origins: Mapping[str, Origin] | None = None,
    accel_config: str | None = None,
    deepspeed: str | None = None,
    optimizer_built_by: str | None = None,
) -> Launched:
    """Turn files, launcher and machine into a running, verified Accelerator. Collective: call it
    once on every rank.

    Args:
        config: the training config; batch, precision and clipping are held against the launch
            files.
        origins: of the config's values, by key, for messages.
        accel_config: an accelerate YAML, for launchers that do not read one.
        deepspeed: a DeepSpeed JSON, for the ``deepspeed`` launcher or torchrun.
        optimizer_built_by: the method by which the task builds an optimizer of its own; the JSON
            must have none then.

    Raises:
        ConfigError, LaunchError: what would run is not what was asked for.
    """
    launcher = detect()
    request = read_request_of(launcher, accel_config=accel_config, deepspeed=deepspeed)
    # DeepSpeed's launcher replaces an empty CUDA_VISIBLE_DEVICES by a list of GPUs.
    on_cpu = launcher.name == "deepspeed" and os.environ.get("DS_ACCELERATOR") == "cpu"
    if on_cpu or (request is not None and request.use_cpu):
        _hide_gpus()
    plan = resolve(
        config,
        request,
        launcher,
        visible_gpus(),
        origins or {},
        optimizer_built_by=optimizer_built_by,
    )
    in_file = request.mixed_precision if request else None
    asked = config.mixed_precision or (in_file.value if in_file else plan.mixed_precision)
    check_environment(plan, launcher, asked, deepspeed_file=request is not None and request.stage_0)
    _connect(plan, launcher, timedelta(minutes=config.timeout_minutes))
    with _watched(plan, config):
        accelerator = _accelerator(plan)
    _check_accelerator(plan, accelerator)
    return Launched(
        plan=plan,
        accelerator=accelerator,
        strategy=strategy_class(plan.strategy)(plan, accelerator),
    )


def read_request_of(
    launcher: Launcher, *, accel_config: str | None, deepspeed: str | None
) -> Request | None:
    """Read what the files ask for, wherever their names were typed; None where nothing was asked."""
    if launcher.name == "deepspeed" and not (accel_config or deepspeed):
        raise LaunchError(
            "started by the deepspeed launcher, but no configuration: add --deepspeed ds_configs/zero2.json"
        )
    if launcher.name != "accelerate" and not (accel_config or deepspeed):
        return None
    # Which a training without them does not need.
    from .files.accelerate_file import read_accelerate_file, read_launch_flags
    from .files.deepspeed_file import read_deepspeed_file

    key, path = ("deepspeed", deepspeed) if deepspeed else ("accel_config", accel_config)
    named = Sourced(path, Origin(COMMAND_LINE, key=key))
    if accel_config and deepspeed:
        raise ConfigError(
            named.problem(
                "one job is described twice: give --accel_config or --deepspeed, not both"
            )
        )
    if launcher.name == "accelerate":
        own, flags = read_launch_flags(list(launcher.arguments))
        if deepspeed or (
            accel_config
            and (own is None or os.path.realpath(own) != os.path.realpath(accel_config))
        ):
            raise ConfigError(
                named.problem("accelerate launch has a file of its own already; remove this one")
            )
        return read_accelerate_file(own, overrides=flags)
    return (
        read_accelerate_file(accel_config) if accel_config else read_deepspeed_file(str(deepspeed))
    )


def check_environment(
    plan: Plan, launcher: Launcher, precision: str, *, deepspeed_file: bool = False
) -> None:
    """Hold the variables that Accelerate obeys against the plan; a stray one must not pass unseen.

    Args:
        precision: the one that was asked for, which may not be the one that a rehearsal runs in.
        deepspeed_file: the launch file is one of DeepSpeed: ``accelerate launch`` sets its
            variable, whatever runs.
    """
    families = {"ACCELERATE_USE_DEEPSPEED": "zero", "ACCELERATE_USE_FSDP": "fsdp"}
    if deepspeed_file:
        del families["ACCELERATE_USE_DEEPSPEED"]
    for name, family in families.items():
        if os.environ.get(name, "").lower() == "true" and not plan.strategy.startswith(family):
            raise LaunchError(
                f"{name}=true is set, but {plan.strategy} was asked for; unset it or name its file"
            )
    # accelerate launch makes its variable from file and flags, which were read; "no" is what it
    # sets for nothing typed.
    stray = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if launcher.name != "accelerate" and stray not in ("no", precision):
        raise LaunchError(
            f"ACCELERATE_MIXED_PRECISION={stray} is set, but mixed_precision is {precision} "
            f"({plan.origin('mixed_precision').place}); unset it, or write mixed_precision: {stray}"
        )
    if launcher.name == "accelerate":
        return
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("", "1", str(plan.accumulation_steps)):
        raise LaunchError(
            f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS={steps} is set, but accumulation_steps is "
            f"{plan.accumulation_steps}; unset it, or write accumulation_steps: {steps}"
        )
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    runs = str(plan.dynamo.get("backend", "inductor")).lower() if plan.compile else "no"
    if backend not in ("", "no", runs):
        what = f"compile runs {runs}" if plan.compile else "compile is false"
        raise LaunchError(
            f"ACCELERATE_DYNAMO_BACKEND={backend} is set, but {what}; unset it, or set compile: true"
        )


def _hide_gpus() -> None:
    """Keep this process to the CPU: torch and DeepSpeed take a GPU that they see wherever no device
    is named.
    """
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise LaunchError(
            "use_cpu: true, but this process uses a GPU already; start it with CUDA_VISIBLE_DEVICES=''"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _take_gpu(plan: Plan, launcher: Launcher) -> None:
    """Make this process's GPU the current one: the one of its local rank, or the only one that it
    sees.

    Raises:
        LaunchError: it cannot be used, which the driver that counts it does not know, or not in
            this precision.
    """
    import torch

    try:
        torch.cuda.set_device(launcher.local_rank % visible_gpus())
    except RuntimeError as error:
        raise LaunchError(
            f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, cannot use the GPUs of this machine: "
            f"{str(error).partition('. ')[0]}; update the driver, install a torch for an older CUDA, or set "
            "CUDA_VISIBLE_DEVICES='' to rehearse on the CPU"
        ) from None
    if plan.mixed_precision == "bf16" and not torch.cuda.is_bf16_supported():
        place = plan.origin("mixed_precision").place
        raise LaunchError(
            f"{place}: {torch.cuda.get_device_name()} has no bf16; set mixed_precision: fp16 or 'no'"
        )


def _connect(plan: Plan, launcher: Launcher, timeout: timedelta) -> None:
    """Prepare this process for its strategy and device, and connect it to the others."""
    from accelerate import PartialState
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DistributedType

    # Accelerate keeps its settings for the whole process: those of an earlier launch must not reach
    # this one. The process group stays.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()

    for name in list(os.environ):
        if name.startswith(_MADE_BY_LAUNCH) and name not in _KEPT:
            del os.environ[name]
    strategy = strategy_class(plan.strategy)
    if plan.device == "cuda":
        _take_gpu(plan, launcher)
    else:
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    strategy.prepare_process(plan)
    if plan.strategy != "single":
        state = PartialState(backend=strategy.backend(plan), timeout=timeout)
        if plan.device == "cpu" and not plan.deepspeed:
            # Without the cpu flag, and with the backend named, Accelerate connects the processes
            # and then believes that there is nothing distributed: tell its shared state what it has
            # become.
            becomes = (
                DistributedType.MULTI_CPU if plan.strategy == "ddp" else DistributedType.MULTI_GPU
            )
            state._shared_state["distributed_type"] = becomes


def _watched(plan: Plan, config: TrainConfig) -> AbstractContextManager[object]:
    """Return a watch over the ranks that are connected; nobody watches one process."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return nullcontext()
    return Watchdog(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        position=lambda: (0, "set-up", 0),
        hang_seconds=config.hang_seconds,
        gpu=plan.device == "cuda",
        advice=lambda: "training had not begun: start it again",
        log=lambda text: None,
    )


def _accelerator(plan: Plan) -> Accelerator:
    import torch
    import torch._dynamo  # every optimizer of torch imports it when it is made
    from accelerate import Accelerator

    tf32 = plan.float32 == "tf32" and plan.device == "cuda"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32  # which is torch's default: convolutions are not exact
    arguments = strategy_class(plan.strategy).accelerator_arguments(plan)
    # With a rank in the environment, and a GPU there, Accelerate takes one process for several.
    hidden = {
        name: os.environ.pop(name)
        for name in RANKS
        if plan.strategy == "single" and name in os.environ
    }
    accelerator = Accelerator(
        mixed_precision=plan.mixed_precision,
        gradient_accumulation_steps=plan.accumulation_steps,
        # Steps are counted by us, once per optimizer step; Accelerate's wrapper steps world-size
        # times.
        step_scheduler_with_optimizer=False,
        **arguments,
    )
    os.environ.update(hidden)
    if plan.mixed_precision == "fp16" and plan.device == "cpu" and not plan.deepspeed:
        # Accelerate drops fp16 without a word on a CPU; torch has both the autocast and the scaler
        # for it.
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu")
    return accelerator


def _check_accelerator(plan: Plan, accelerator: Accelerator) -> None:
    """Raise LaunchError where Accelerate made something else of the plan."""
    runs = str(accelerator.distributed_type).rsplit(".", 1)[-1]
    expected = {"single": ["NO"], "ddp": ["MULTI_CPU", "MULTI_GPU"], "fsdp": ["FSDP"]}.get(
        plan.strategy, ["DEEPSPEED"]
    )
    for name, asked, found in (
        ("strategy", plan.strategy, plan.strategy if runs in expected else runs),
        ("processes", plan.world_size, accelerator.num_processes),
        ("device", plan.device, accelerator.device.type),
        ("mixed_precision", plan.mixed_precision, accelerator.mixed_precision),
    ):
        if asked != found:
            raise LaunchError(f"{name}: asked for {asked}, but Accelerate runs {found}")
