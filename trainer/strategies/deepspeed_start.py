"""The environment that DeepSpeed needs before a process is connected to the others.

DeepSpeed reads environment variables instead of arguments, and compiles an operator at the start
that training does not use.
"""

from __future__ import annotations

import os

import torch

from ..private import deepspeed_engine as private_deepspeed
from ..run_plan import Plan


def prepare_process(plan: Plan) -> None:
    """Set the environment that Accelerate and DeepSpeed read."""
    if plan.launcher == "python":  # DeepSpeed wants a process group also for one process
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "0")

    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    if plan.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
        without_compiled_op()
    else:
        # DeepSpeed takes the local rank as the GPU's number, which is 0 if a process sees a single
        # GPU. DeepSpeed also wants mpirun's local rank to be the same.
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
        os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)


def without_compiled_op() -> None:
    """Keep DeepSpeed from compiling an operator that serves inference only.

    The operator needs a C++ compiler and takes 20 s at the first use. A process that is killed
    meanwhile leaves a lock behind, on which every later job waits forever and silently.
    """
    with private_deepspeed.quiet():  # at the import
        private_deepspeed.switch_off_op("deepspeed_shm_comm")
