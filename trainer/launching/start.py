"""Build the Accelerator that the plan describes, and check that it is what came out.

Accelerate on a machine without a GPU turns most requests into something else: an
FSDP or DeepSpeed file with ``use_cpu`` becomes DDP, two processes become two unconnected trainings. All
of that is wrapped here, in one place.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..distributed.launcher import Launcher, detect
from ..errors import COMMAND_LINE, ConfigError, LaunchError, Origin, Problem, Sourced
from ..plan import Plan
from ..strategies import Strategy, strategy_class
from ..text import renamed_arguments
from .request import Request, visible_gpus
from .resolve import resolve

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..config.train_config import TrainConfig

# Variables that `accelerate launch` makes from its file. The file itself was read, strictly; what is left in
# the environment would be read a second time, loosely, by Accelerate's plugins.
_MADE_BY_LAUNCH = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")
_KEPT = ("ACCELERATE_LOG_LEVEL", "ACCELERATE_DEBUG_MODE", "ACCELERATE_CPU_AFFINITY")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A verified start: the plan, the Accelerator that runs it and the strategy to train with.

    Args:
        plan: what runs.
        accelerator: connects the processes; for a loop of your own.
        strategy: wraps, steps and shards the model; the trainer makes one of its own for each training.
    """

    plan: Plan
    accelerator: Accelerator
    strategy: Strategy


@renamed_arguments(where="origins")
def launch(
    config: TrainConfig,
    *,
    origins: Mapping[str, Origin] | None = None,
    accel_config: str | None = None,
    deepspeed: str | None = None,
    optimizer_built_by: str | None = None,
) -> Launched:
    """Turn files, launcher and machine into a running, verified Accelerator. Collective: call it once on every rank.

    Args:
        config: the training config; batch, precision and clipping are held against the launch files.
        origins: of the config's values, by key, for messages.
        accel_config: an accelerate YAML, for launchers that do not read one.
        deepspeed: a DeepSpeed JSON, for the ``deepspeed`` launcher or torchrun.
        optimizer_built_by: the method by which the task builds an optimizer of its own; the JSON must have none then.

    Raises:
        ConfigError, LaunchError: what would run is not what was asked for.
    """
    launcher = detect()
    request = read_request_of(launcher, accel_config=accel_config, deepspeed=deepspeed)
    if launcher.name == "deepspeed" and os.environ.get("DS_ACCELERATOR") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # DeepSpeed's launcher replaces an empty one by a list of GPUs
    plan = resolve(config, request, launcher, visible_gpus(), origins or {}, optimizer_built_by=optimizer_built_by)
    asked = (
        plan.mixed_precision if request is None or request.mixed_precision is None else request.mixed_precision.value
    )
    check_environment(plan, launcher, config.mixed_precision or asked)
    accelerator = _accelerator(plan, launcher)
    _check_accelerator(plan, accelerator)
    return Launched(plan=plan, accelerator=accelerator, strategy=strategy_class(plan.strategy)(plan, accelerator))


def read_request_of(launcher: Launcher, *, accel_config: str | None, deepspeed: str | None) -> Request | None:
    """Read what the files ask for, wherever their names were typed; None where nothing was asked."""
    if launcher.name == "deepspeed" and not (accel_config or deepspeed):
        raise LaunchError(
            "started by the deepspeed launcher, but no configuration: add --deepspeed ds_configs/zero2.json"
        )
    if launcher.name != "accelerate" and not (accel_config or deepspeed):
        return None
    from .files import read as files  # which a training without them does not need

    key, path = ("deepspeed", deepspeed) if deepspeed else ("accel_config", accel_config)
    named = Sourced(path, Origin(COMMAND_LINE, key=key))
    if accel_config and deepspeed:
        raise ConfigError(named.problem("two homes for one job: give --accel_config or --deepspeed, not both"))
    if launcher.name == "accelerate":
        own, flags = files.read_launch_flags(list(launcher.arguments))
        if deepspeed or (accel_config and (own is None or os.path.realpath(own) != os.path.realpath(accel_config))):
            raise ConfigError(named.problem("accelerate launch has a file of its own already; remove this one"))
        return files.read_accelerate_file(own, overrides=flags)
    return files.read_accelerate_file(accel_config) if accel_config else files.read_deepspeed_file(str(deepspeed))


def check_environment(plan: Plan, launcher: Launcher, precision: str) -> None:
    """Hold the variables that Accelerate obeys against the plan; a stray one must not pass unseen.

    Args:
        precision: the one that was asked for, which may not be the one that a rehearsal runs in.
    """
    says = {
        "ACCELERATE_USE_DEEPSPEED": plan.strategy.startswith("zero"),
        "ACCELERATE_USE_FSDP": plan.strategy == "fsdp",
    }
    for name, expected in says.items():
        value = os.environ.get(name, "").lower()
        if value == "true" and not expected:
            raise LaunchError(f"{name}=true is set, but {plan.strategy} was asked for; unset it or name its file")
    # accelerate launch makes its variable from file and flags, which were read; "no" is what it sets for nothing typed.
    stray = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if launcher.name != "accelerate" and stray not in ("no", precision):
        raise LaunchError(
            f"ACCELERATE_MIXED_PRECISION={stray} is set, but mixed_precision is {precision} "
            f"({plan.origin('mixed_precision').place}); unset it, or write mixed_precision: {stray}"
        )


def _accelerator(plan: Plan, launcher: Launcher) -> Accelerator:
    import torch
    from accelerate import Accelerator, PartialState
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import DistributedType

    # Accelerate keeps its settings for the whole process: those of an earlier launch must not reach this one. The
    # process group stays.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()

    for name in list(os.environ):
        if name.startswith(_MADE_BY_LAUNCH) and name not in _KEPT:
            del os.environ[name]
    if plan.deepspeed and launcher.name == "python":
        # DeepSpeed wants a process group also for one process.
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")
    if plan.deepspeed:
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        if plan.device == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"
        _check_engine_config(plan)
    if plan.device == "cpu":
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
        if plan.deepspeed:
            _without_compiled_op()
        if plan.strategy != "single":
            # Without the cpu flag, and with the backend named, Accelerate connects the processes and then
            # believes that there is nothing distributed: tell its shared state what it has become.
            state = PartialState(backend="gloo")
            if not plan.deepspeed:
                becomes = DistributedType.MULTI_CPU if plan.strategy == "ddp" else DistributedType.MULTI_GPU
                state._shared_state["distributed_type"] = becomes
    arguments: dict[str, Any] = strategy_class(plan.strategy).accelerator_arguments(plan)
    # With a rank in the environment, and a GPU there, Accelerate takes one process for several.
    hidden = {name: os.environ.pop(name) for name in _RANKS if plan.strategy == "single" and name in os.environ}
    accelerator = Accelerator(
        mixed_precision=plan.mixed_precision,
        gradient_accumulation_steps=plan.accumulation_steps,
        # Steps are counted by us, once per optimizer step; Accelerate's wrapper steps world-size times.
        step_scheduler_with_optimizer=False,
        **arguments,
    )
    os.environ.update(hidden)
    if plan.mixed_precision == "fp16" and plan.device == "cpu" and not plan.deepspeed:
        # Accelerate drops fp16 without a word on a CPU; torch has both the autocast and the scaler for it.
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler("cpu")
    return accelerator


def _check_engine_config(plan: Plan) -> None:
    """Let DeepSpeed read its configuration, so that what only it refuses is named like any other mistake.

    Raises:
        LaunchError: DeepSpeed is not installed, or transformers, which Accelerate asks for beside it.
        ConfigError: DeepSpeed refuses a value.
    """
    if find_spec("transformers") is None:
        raise LaunchError("Accelerate runs DeepSpeed with transformers only: pip install 'samecurve[deepspeed]'")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it logs to standard output, while it is imported and with every reading
    try:
        from deepspeed.runtime.config import DeepSpeedConfig

        DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **plan.deepspeed})
    except ImportError:
        raise LaunchError("DeepSpeed is not installed: pip install 'samecurve[deepspeed]'") from None
    except Exception as error:  # asserts, ValueErrors and its own
        details = error.errors()[0]["msg"] if hasattr(error, "errors") else str(error)
        said = details.strip().partition("\n")[0].removeprefix("Value error, ").rstrip(". ")
        origin = Origin(plan.files[-1]) if plan.files else plan.origin("strategy")
        raise ConfigError(Problem(origin=origin, rule=f"DeepSpeed: {said}")) from None
    finally:
        logging.disable(before)


def _without_compiled_op() -> None:
    """Keep DeepSpeed from compiling an operator that serves inference only.

    It wants a C++ compiler and 20 s at its first use; and whoever is killed in the meantime leaves a lock behind, on
    which every later job waits for ever, without a word.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _check_accelerator(plan: Plan, accelerator: Accelerator) -> None:
    kind = str(accelerator.distributed_type).rsplit(".", 1)[-1]
    expected = {
        "single": {"NO"},
        "ddp": {"MULTI_CPU", "MULTI_GPU"},
        "fsdp": {"FSDP"},
    }.get(plan.strategy, {"DEEPSPEED"})
    if kind not in expected:
        raise LaunchError(f"asked for {plan.strategy}, but Accelerate runs {kind}")
    if accelerator.num_processes != plan.world_size:
        raise LaunchError(f"asked for {plan.world_size} processes, but Accelerate connects {accelerator.num_processes}")
    if accelerator.device.type != plan.device:
        raise LaunchError(f"asked for {plan.device}, but Accelerate computes on {accelerator.device.type}")
    if accelerator.mixed_precision != plan.mixed_precision:
        raise LaunchError(
            f"asked for mixed_precision {plan.mixed_precision}, but Accelerate uses {accelerator.mixed_precision}"
        )
