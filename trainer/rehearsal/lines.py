"""The line of a user's code that is running."""

from __future__ import annotations

import sys
import traceback
from functools import cache
from pathlib import Path
from types import FrameType

import torch

from ..distributed.signals import STANDARD_LIBRARY

_PACKAGES = Path(torch.__file__).parents[1]
_TORCH = tuple(f"{_PACKAGES}/{name}/" for name in ("torch", "deepspeed/accelerator"))
_TORCH += (str(Path(__file__).parent), f"{_PACKAGES}/typing_extensions.py", "<")
_ENGINES = tuple(f"{_PACKAGES}/{name}/" for name in ("accelerate", "deepspeed"))
_EXCHANGES = tuple(f"{_PACKAGES}/{name}/" for name in ("torch/distributed/fsdp", "deepspeed"))
_TRAINER = str(Path(__file__).parents[1])


def frame_of_code(*, of_engine: bool = False) -> FrameType | None:
    """Return the innermost frame of Python that is neither torch's nor the library's.

    Args:
        of_engine: whether code of DeepSpeed, Accelerate or the trainer counts. Otherwise the frame
            is of the task or the model, and None if no such code runs.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _shown(frame.f_code.co_filename, of_engine):
        frame = frame.f_back
    return frame


def line(*, of_engine: bool = False) -> str:
    """Return the line of ``frame_of_code``, as ``folder/file.py:12``. "" without a frame."""
    frame = frame_of_code(of_engine=of_engine)
    if frame is None:
        return ""
    return f"{_shown(frame.f_code.co_filename, of_engine)}:{frame.f_lineno}"


def line_of(error: BaseException) -> str:
    """Return the innermost line of the task or the model that an error came from. "" if none."""
    frames = traceback.walk_tb(error.__traceback__)
    files = [(_shown(frame.f_code.co_filename, False), number) for frame, number in frames]
    return next((f"{file}:{number}" for file, number in reversed(files) if file), "")


def is_for_exchange() -> bool:
    """Return whether the code that gathers and reduces for an engine is running."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_EXCHANGES):
            return True
        if not file.startswith(_TORCH):
            return False
        frame = frame.f_back  # type: ignore[assignment]
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
    own_tasks = str(Path(_TRAINER) / "language")
    is_of_engine = file.startswith(_ENGINES) or (
        file.startswith(_TRAINER) and not file.startswith(own_tasks)
    )
    if is_of_engine and not of_engine:
        return ""
    return "/".join(Path(file).parts[-2:])
