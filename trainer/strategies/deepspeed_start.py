"""What DeepSpeed asks of a process before it is connected to the others."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ..errors import ConfigError, LaunchError, Origin, Problem
from ..plan import Plan


def prepare_process(plan: Plan) -> None:
    """Set the environment that Accelerate and DeepSpeed read, and let DeepSpeed read its
    configuration.

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
        # Where each process sees a GPU of its own only, it is number 0; DeepSpeed takes the local
        # rank as it is, and wants mpirun's to be the same.
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
        os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)
    check_engine_config(plan)
    if plan.device == "cpu":
        without_compiled_op()


def check_engine_config(plan: Plan) -> None:
    """Let DeepSpeed read its configuration, so that what only it refuses is named like any other
    mistake.

    Raises:
        LaunchError: DeepSpeed is not installed, or transformers, which Accelerate asks for beside
            it.
        ConfigError: DeepSpeed refuses a value.
    """
    if find_spec("transformers") is None:
        raise LaunchError(
            "Accelerate runs DeepSpeed with transformers only: pip install 'samecurve[deepspeed]'"
        )
    before = logging.root.manager.disable
    logging.disable(
        logging.WARNING
    )  # it logs to standard output, while it is imported and with every reading
    try:
        from deepspeed.runtime.config import DeepSpeedConfig

        DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **plan.deepspeed})
    except ImportError:
        raise LaunchError(
            "DeepSpeed is not installed: pip install 'samecurve[deepspeed]'"
        ) from None
    except Exception as error:  # asserts, ValueErrors and its own
        details = error.errors()[0]["msg"] if hasattr(error, "errors") else str(error)
        said = details.strip().partition("\n")[0].removeprefix("Value error, ").rstrip(". ")
        origin = Origin(plan.files[-1]) if plan.files else plan.origin("strategy")
        raise ConfigError(Problem(origin=origin, rule=f"DeepSpeed: {said}")) from None
    finally:
        logging.disable(before)


def without_compiled_op() -> None:
    """Keep DeepSpeed from compiling an operator that serves inference only.

    It wants a C++ compiler and 20 s at its first use; and whoever is killed in the meantime leaves
    a lock behind, on which every later job waits for ever, without a word.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


@contextlib.contextmanager
def engine_start(model: nn.Module) -> Iterator[None]:
    """Leave out what the engine does for nothing while it is built.

    Under ZeRO-3 it would fetch each parameter whole to hang a hook on it, which needs no values. In
    the place of torch's Adagrad it would put another one, with a single group of the default
    settings, so that its state is that of the flat groups; ours has that already (``FirstState``).
    """
    divided: list[Any] = [
        parameter for parameter in model.parameters() if hasattr(parameter, "ds_id")
    ]
    own = [(parameter, parameter.all_gather, parameter.partition) for parameter in divided]
    adagrad = torch.optim.Adagrad
    torch.optim.Adagrad = type("NotAdagrad", (), {})  # type: ignore[misc, assignment]
    for parameter in divided:
        parameter.all_gather = parameter.partition = lambda *_, **__: None
    try:
        yield
    finally:
        torch.optim.Adagrad = adagrad  # type: ignore[misc]
        for parameter, all_gather, partition in own:
            parameter.all_gather, parameter.partition = all_gather, partition
