"""Launchers, and the variables by which they give a process a rank, as torchrun calls them."""

from __future__ import annotations

from typing import Literal

Name = Literal["python", "accelerate", "torchrun", "deepspeed", "srun", "mpirun", "environment"]
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
