"""Build the Accelerator that the plan describes, and check the result.

Without a GPU Accelerate turns an FSDP or DeepSpeed file with ``use_cpu`` into DDP.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from ..config.arguments import kind_of
from ..config.documents import read_document
from ..distributed import heartbeat
from ..distributed.started_by import Launcher, detect
from ..errors import COMMAND_LINE, LaunchError, Origin, Sourced, usage_error
from ..private.accelerate import forget_states
from ..run_plan import Plan
from ..strategies import Strategy, strategy_class
from .request import Request, visible_gpus
from .resolve import resolve

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..config.train_config import TrainConfig

# Variables that `accelerate launch` makes from a file. The file itself was read, strictly.
# Accelerate's plugins would read these variables a second time, loosely.
_MADE_BY_LAUNCH = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
_KEPT = ("ACCELERATE_LOG_LEVEL", "ACCELERATE_DEBUG_MODE", "ACCELERATE_CPU_AFFINITY")


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A verified start: the plan, the Accelerator that runs it and the strategy to train with.

    The Accelerator connects the processes, for a loop without the trainer. The trainer makes
    another strategy for each training.
    """

    plan: Plan
    accelerator: Accelerator
    strategy: Strategy


def launch(
    config: TrainConfig,
    *,
    origins: Mapping[str, Origin] | None = None,
    accel_config: str | None = None,
    deepspeed: str | None = None,
    optimizer_built_by: str | None = None,
) -> Launched:
    """Turn files, launcher and machine into a running, verified Accelerator.

    Collective: call once on every rank.

    Args:
        origins: of the config's values, by key, for messages.
        accel_config, deepspeed: a launch file, for launchers that do not read such files.
        optimizer_built_by: the method of the task that builds an optimizer, if there is one.

    Raises:
        ConfigError, LaunchError: another run than the requested run would start.
    """
    launcher = detect()
    request = read_request_of(launcher, accel_config=accel_config, deepspeed=deepspeed)
    # DeepSpeed's launcher replaces an empty CUDA_VISIBLE_DEVICES by a list of GPUs.
    on_cpu = launcher.name == "deepspeed" and os.environ.get("DS_ACCELERATOR") == "cpu"
    if on_cpu or (request and request.use_cpu):
        # torch and DeepSpeed take a visible GPU if no device is named.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""

    plan = resolve(
        config,
        request,
        launcher,
        visible_gpus(),
        origins or {},
        optimizer_built_by=optimizer_built_by,
    )
    timeout = timedelta(minutes=config.timeout_minutes)
    cls = strategy_class(plan.strategy, config)
    _connect(plan, launcher, cls, timeout)
    heartbeat.start(timeout)
    with heartbeat.watched_building():
        accelerator = _accelerator(plan, cls)
    _check_accelerator(plan, accelerator)
    return Launched(plan=plan, accelerator=accelerator, strategy=cls(plan, accelerator))


def read_request_of(
    launcher: Launcher, *, accel_config: str | None, deepspeed: str | None
) -> Request | None:
    """Read the request of the launch files, and return None if there are none."""
    file = accel_config or deepspeed
    if file and (launcher.name == "accelerate" or (accel_config and deepspeed)):
        raise usage_error("", file, "another file describes this job already; remove this one")
    if launcher.name == "accelerate":
        from .files.accelerate_file import read_accelerate_file, read_launch_flags

        return read_accelerate_file(*read_launch_flags(launcher.arguments))
    if file:
        return read_launch_file(file)
    if launcher.name == "deepspeed":
        raise LaunchError(
            "started by the deepspeed launcher, but no configuration: add --deepspeed "
            "ds_configs/zero2.json"
        )
    return None


def read_launch_file(path: str, processes: int | None = None) -> Request:
    """Read an accelerate file or a DeepSpeed JSON. A given number of processes replaces its own."""
    if kind_of(read_document(path).data) == "deepspeed":
        from .files.deepspeed_file import read_deepspeed_file

        return read_deepspeed_file(path)
    from .files.accelerate_file import read_accelerate_file

    number = Sourced(processes, Origin(COMMAND_LINE, key="--processes"))
    return read_accelerate_file(path, overrides={"num_processes": number} if processes else {})


def _connect(plan: Plan, launcher: Launcher, cls: type[Strategy], timeout: timedelta) -> None:
    """Prepare this process for its strategy and device, and connect it to the others."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    # Accelerate keeps settings for the whole process. The settings of an earlier launch must not
    # reach this launch. The process group stays.
    forget_states()

    for name in list(os.environ):
        if name.startswith(_MADE_BY_LAUNCH) and name not in _KEPT:
            del os.environ[name]

    if plan.device == "cuda":
        # The GPU of the local rank, or the only GPU that this process sees.
        torch.cuda.set_device(launcher.local_rank % visible_gpus())
    else:
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    cls.prepare_process(plan)

    if plan.strategy != "single":
        state = PartialState(backend=cls.backend(plan), timeout=timeout)
        if plan.device == "cuda":
            # In DDP and in wait_for_everyone Accelerate takes the local rank as the GPU's number,
            # which is 0 if a process sees a single GPU.
            state.local_process_index = torch.cuda.current_device()
        if plan.device == "cpu" and not plan.deepspeed:
            # Without the cpu flag, and with the backend named, Accelerate connects the processes,
            # and the shared state says that nothing is distributed.
            name = "MULTI_CPU" if plan.strategy == "ddp" else "MULTI_GPU"
            state.distributed_type = DistributedType(name)


def _accelerator(plan: Plan, cls: type[Strategy]) -> Accelerator:
    import torch
    from accelerate import Accelerator

    from ..private.torch import import_dynamo

    import_dynamo()  # the constructor of every optimizer of torch would import dynamo

    tf32 = plan.float32 == "tf32" and plan.device == "cuda"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32  # torch's default is True: convolutions are not exact

    # With a rank in the environment, and a GPU, Accelerate takes a single process for several.
    hidden = {}
    if plan.strategy == "single":
        from ..distributed.rank_variables import RANKS

        hidden = {name: os.environ.pop(name) for name in RANKS if name in os.environ}
    accelerator = Accelerator(
        mixed_precision=plan.mixed_precision,
        gradient_accumulation_steps=plan.accumulation_steps,
        # The schedule advances once per optimizer step here. Accelerate's wrapper would advance
        # the schedule world-size times.
        step_scheduler_with_optimizer=False,
        **cls.accelerator_arguments(plan),
    )
    os.environ.update(hidden)

    if plan.mixed_precision == "fp16" and plan.device == "cpu":
        # Accelerate silently drops fp16 on a CPU. torch has both the autocast and the scaler.
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu")
    return accelerator


def _check_accelerator(plan: Plan, accelerator: Accelerator) -> None:
    """Raise LaunchError if Accelerate made something else of the plan."""
    kind = accelerator.distributed_type.value
    expected = {"single": "NO", "ddp": "MULTI_", "fsdp": "FSDP"}.get(plan.strategy, "DEEPSPEED")
    planned = (plan.world_size, plan.device, plan.mixed_precision)
    made = (accelerator.num_processes, accelerator.device.type, accelerator.mixed_precision)
    if made != planned or not kind.startswith(expected):
        raise LaunchError(f"asked for {expected}, {planned}, but Accelerate runs {kind}, {made}")
