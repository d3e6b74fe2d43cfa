"""The line of a user's code that is running."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType

import torch

from ..distributed.signals import STANDARD_LIBRARY

_PACKAGES = f"{Path(torch.__file__).parents[1]}/"
_EXCHANGES = (f"{_PACKAGES}torch/distributed/fsdp/", f"{_PACKAGES}deepspeed/")
_TRAINER = f"{Path(__file__).parents[1]}/"
_TORCH = (
    f"{_PACKAGES}torch/",
    f"{_PACKAGES}deepspeed/accelerator/",
    f"{_PACKAGES}typing_extensions.py",
    f"{_TRAINER}rehearsal/",
    f"{_TRAINER}strategies/outside_reads.py",  # stands between a call of torch and torch
    "<",
)
_ENGINES = (f"{_PACKAGES}accelerate/", f"{_PACKAGES}deepspeed/")


def place_of_code(
    frames: Iterable[tuple[FrameType, int]] | None = None, *, of_engine: bool = False
) -> tuple[str, str]:
    """Return the line, ``folder/file.py:12``, and the function of the innermost frame that counts.

    Args:
        frames: with the numbers of their lines, the innermost first. Default: those that run.
        of_engine: whether code of DeepSpeed, Accelerate or the trainer counts.
    """
    for frame, number in frames or traceback.walk_stack(sys._getframe()):
        file = _shown(frame.f_code.co_filename, of_engine)
        if file:
            return f"{file}:{number}", frame.f_code.co_name
    return "", ""


def line(*, of_engine: bool = False) -> str:
    """Return the line of ``place_of_code``."""
    return place_of_code(of_engine=of_engine)[0]


def line_of(error: BaseException) -> str:
    """Return the innermost line of the task or the model that an error came from. "" if none."""
    return place_of_code(reversed([*traceback.walk_tb(error.__traceback__)]))[0]


def is_for_exchange() -> bool:
    """Return whether the code that gathers and reduces for an engine is running."""
    for frame, _ in traceback.walk_stack(sys._getframe()):
        if frame.f_code.co_filename.startswith(_EXCHANGES):
            return True
        if not frame.f_code.co_filename.startswith(_TORCH):
            return False
    # The thread of a backward pass, in which the engines' hooks follow the last use of a parameter.
    node = torch._C._current_autograd_node()
    return node is not None and node.name().endswith("AccumulateGrad")


@cache
def _shown(file: str, of_engine: bool) -> str:
    """Return folder and name of a file. "" if its lines do not count."""
    if file.startswith(_TORCH):
        return ""
    if file.startswith(STANDARD_LIBRARY) and "site-packages" not in file:
        return ""
    is_of_task = not file.startswith((_TRAINER, *_ENGINES)) or "/trainer/language/" in file
    return "/".join(Path(file).parts[-2:]) if is_of_task or of_engine else ""
