"""What the main thread of this process waits for: another rank, or something outside of the job.

Ranks wait for each other on locks within their processes (C++ wakes them when a message came), and
so does what is stuck. A main thread in another call of the kernel (a socket, a pipe, a process, a
file, a sleep) waits for something outside of the job, and so does one in a block of
``waits_outside``. The frames of the thread only ever excuse a rank or choose between two words:
which rank is behind is counted (``judge.py``).
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..distributed import agreement, votes
from ..private.python import child_processes

_HERE = Path(__file__).parent
_STDLIB = os.path.dirname(os.__file__)
_LIBRARIES = ("site-packages", "dist-packages", _STDLIB)
_WATCH_FILES = tuple(str(_HERE / name) for name in ("watchdog.py", "own_row.py", "waits.py"))
_AGREEMENT_FILES = (agreement.__file__, votes.__file__)
_DISTRIBUTED = f"torch{os.sep}distributed{os.sep}"
_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")

# Debuggers, and clients that wait on a lock for threads of their own, which wait for a network.
# What waits for it in the main thread itself is seen in the kernel.
_CLIENT_FILES = ("pdb.py", "bdb.py", "cmd.py", "pydevd.py", "asyn.py", "base_events.py")
_CLIENT_PACKAGES = (
    "huggingface_hub",
    "fsspec",
    "botocore",
    "boto3",
    "gcsfs",
    "s3fs",
    "adlfs",
    "wandb",
    "mlflow",
)

# Numbers of system calls. Those of waits for locks, and of poll, select and epoll_wait in their
# forms.
_KNOWN_MACHINES = ("x86_64", "aarch64", "riscv64")
_NEW_LOCKS = {449, 455}  # futex_waitv and futex_wait, on all machines
if platform.machine() == "x86_64":
    _LOCKS = {202} | _NEW_LOCKS
    _POLLS = {7, 23, 232, 270, 271, 281}
else:  # machines that came later share their numbers
    _LOCKS = {98} | _NEW_LOCKS
    _POLLS = {22, 72, 73}

_declared: list[str] = []


@contextlib.contextmanager
def waits_outside(target: str) -> Iterator[None]:
    """Excuse this rank in the block: it waits, on a lock, for something outside of the job.

    Args:
        target: a disk, the server of a tracker.
    """
    _declared.append(target)
    try:
        yield
    finally:
        _declared.remove(target)


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What the main thread is in.

    Args:
        text: the call and the innermost line that is not a library's.
        in_collective: it is in a call of torch.distributed, as far as its frames show.
        outside: what it waits for outside of the job; "" for nothing.
    """

    text: str
    in_collective: bool
    outside: str


def doing(thread: int, native_thread: int) -> Doing:
    """Return what a thread of this process is in.

    Args:
        thread: its identifier in Python; ``native_thread``: in the kernel.
    """
    return doing_in(frames_of(thread), native_thread)


def doing_in(frames: Sequence[FrameType], native_thread: int) -> Doing:
    """Return what a thread is in, by its frames, the innermost first."""
    frames = [frame for frame in frames if frame.f_code.co_filename not in _WATCH_FILES]
    in_collective = _is_in_collective(frames)
    outside = "" if in_collective else _outside(frames, native_thread)
    text = _text(frames, in_collective=in_collective)
    return Doing(text=text, in_collective=in_collective, outside=outside)


def frames_of(thread: int) -> list[FrameType]:
    """List the frames of a thread, the innermost first."""
    frame = sys._current_frames().get(thread)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _text(frames: Sequence[FrameType], *, in_collective: bool) -> str:
    """Return such as ``all_reduce (my_task.py:17)``."""
    if not frames:
        return ""
    own = frames[0]
    for frame in frames:
        if not _is_library(frame):
            own = frame
            break

    name = _name(own)
    if in_collective:
        for frame in frames:
            # torch puts "wrapper" around its collectives.
            if _DISTRIBUTED in frame.f_code.co_filename and _name(frame) != "wrapper":
                name = _name(frame)
    return f"{name} ({os.path.relpath(own.f_code.co_filename)}:{own.f_lineno})"


def _name(frame: FrameType) -> str:
    return frame.f_code.co_name


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith("<") or any(part in file for part in _LIBRARIES)


def _is_in_collective(frames: Sequence[FrameType]) -> bool:
    from ..private.torch import BACKWARD_FUNCTION

    # It waits for the gradients of other ranks, which no frame of Python shows.
    if any(_name(frame) == BACKWARD_FUNCTION for frame in frames[:3]):
        return True
    for depth, frame in enumerate(frames):
        file = frame.f_code.co_filename
        if file in _AGREEMENT_FILES:
            # It waits in C++; what it calls on the main process alone is no collective.
            return depth == 0
        if _DISTRIBUTED in file:
            return True
        if not _is_library(frame):
            return False
    return False


def _outside(frames: Sequence[FrameType], native_thread: int) -> str:
    """Return what a thread in no collective waits for outside of the job; "" for nothing."""
    if _declared:
        return _declared[-1]

    files = [frame.f_code.co_filename for frame in frames]
    if any(os.path.basename(file) in _CLIENT_FILES for file in files[:6]):
        return "a client or a debugger"
    if any(_is_of_client(file) for file in files):
        return "a client"

    if any(file.endswith(_LOADER) for file in files):
        return _outside_of_loaders()
    call = system_call(f"/proc/self/task/{native_thread}/syscall")
    if call is None or call in _LOCKS:
        return ""
    return f"system call {call}"


def _is_of_client(file: str) -> bool:
    return any(f"-packages{os.sep}{package}{os.sep}" in file for package in _CLIENT_PACKAGES)


def _outside_of_loaders() -> str:
    """Return what loader processes wait for; "" where they work, have no work, or are stuck."""
    workers = child_processes()
    for worker in workers:
        call = system_call(f"/proc/{worker.pid}/syscall")
        # Those that have no work wait for it in poll.
        if call is not None and call not in _LOCKS and call not in _POLLS:
            return "a loader process that waits"
    return ""


def system_call(path: str) -> int | None:
    """Return the number of the system call in which a thread waits; None where it runs.

    None also where it is not known.

    Args:
        path: of ``syscall`` in /proc, of the thread.
    """
    if platform.machine() not in _KNOWN_MACHINES:
        return None
    try:
        with open(path, encoding="ascii") as file:
            number = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return number if number >= 0 else None


def collectives_begun() -> dict[str, tuple[str, int]]:
    """Return how many collectives this rank has begun in each of its process groups.

    Groups whose backend counts nothing are left out.

    Returns:
        A name to show and the number, by the group's own name. Own names are the same on all ranks
        of a group; several groups of a mesh are shown by one name.
    """
    from ..private import torch as private_torch

    begun = {}
    for group in private_torch.process_groups():
        with contextlib.suppress(RuntimeError):
            number = private_torch.collectives_begun(group)
            begun[str(group.group_name)] = (_shown_name(group), number)
    return begun


def _shown_name(group: Any) -> str:
    has_description = group.group_desc not in ("", "undefined")
    return str(group.group_desc if has_description else group.group_name)
