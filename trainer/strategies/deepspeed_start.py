"""The environment that DeepSpeed needs in a process before it is connected to the others.

DeepSpeed reads environment variables instead of arguments, and does some work at its start that
costs time and memory for nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import nn

from ..errors import ConfigError, LaunchError, Origin, Problem
from ..plan import Plan
from ..private import deepspeed as private_deepspeed


def prepare_process(plan: Plan) -> None:
    """Set the environment that Accelerate and DeepSpeed read, and check DeepSpeed's configuration.

    Raises:
        LaunchError, ConfigError: as ``check_engine_config``.
    """
    if plan.launcher == "python":  # DeepSpeed wants a process group also for one process
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")

    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    if plan.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    else:
        # A process that sees only one GPU has to use number 0, and DeepSpeed takes the local rank
        # as the number. It also wants mpirun's local rank to be the same.
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
        os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)

    check_engine_config(plan)
    if plan.device == "cpu":
        without_compiled_op()


def check_engine_config(plan: Plan) -> None:
    """Let DeepSpeed read its configuration, and report what it refuses like any other mistake.

    Raises:
        LaunchError: DeepSpeed is not installed, or transformers, which Accelerate needs for it.
        ConfigError: DeepSpeed refuses a value.
    """
    if find_spec("transformers") is None:
        raise LaunchError(
            "Accelerate runs DeepSpeed with transformers only: pip install 'samecurve[deepspeed]'"
        )

    try:
        with private_deepspeed.quiet():
            from deepspeed.runtime.config import DeepSpeedConfig

            DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **plan.deepspeed})
    except ImportError:
        raise LaunchError(
            "DeepSpeed is not installed: pip install 'samecurve[deepspeed]'"
        ) from None
    except Exception as error:  # asserts, ValueErrors and its own
        origin = Origin(plan.files[-1]) if plan.files else plan.origin("strategy")
        rule = "DeepSpeed: " + " ".join(str(error).split())
        raise ConfigError(Problem(origin=origin, rule=rule)) from None


def without_compiled_op() -> None:
    """Keep DeepSpeed from compiling an operator that serves inference only.

    It needs a C++ compiler, and 20 s at its first use. A process that is killed meanwhile leaves a
    lock behind, on which every later job waits forever and silently.
    """
    private_deepspeed.switch_off_op("deepspeed_shm_comm")


@contextlib.contextmanager
def engine_start(model: nn.Module) -> Iterator[None]:
    """Keep the engine from gathering each parameter while it is built.

    Under ZeRO-3 it does so to register a hook on the parameter, which needs no values.
    """
    sharded = [p for p in model.parameters() if private_deepspeed.is_sharded(p)]
    methods = [private_deepspeed.stop_gathering(parameter) for parameter in sharded]
    try:
        yield
    finally:
        for parameter, (all_gather, partition) in zip(sharded, methods, strict=True):
            private_deepspeed.gather_again(parameter, all_gather, partition)
