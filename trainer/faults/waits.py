"""What this process waits for: another rank of the job, or something outside of it.

Ranks wait for each other on locks within their processes (C++ wakes them when a message came), and
so does what is stuck. A main thread in another call of the kernel (a socket, a pipe, a process, a
file, a sleep) waits for something outside of the job, and so does one in a block of
``waits_outside``. The frames of the thread only ever let a rank alone or choose between two words:
which rank is late is counted (``judge.py``).
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..distributed import agreement, votes

_HERE = Path(__file__).parent
_STDLIB = os.path.dirname(os.__file__)
_LIBRARIES = ("site-packages", "dist-packages", _STDLIB)
_WATCH = tuple(str(_HERE / name) for name in ("watchdog.py", "waits.py"))
_DISTRIBUTED = f"torch{os.sep}distributed{os.sep}"
_AGREEMENT = (agreement.__file__, votes.__file__)
_BACKWARD = (
    "_engine_run_backward"  # waits for the gradients of other ranks, which no frame of Python shows
)
_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")
# Debuggers, and clients that wait on a lock for threads of their own, which wait for a network.
# Whatever waits for it in the main thread itself is seen in the kernel.
_CLIENTS = ("pdb.py", "bdb.py", "cmd.py", "pydevd.py", "asyn.py", "base_events.py")
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

# Numbers of system calls: of x86-64, and those that newer machines share.
_NEW_LOCKS = {449, 455}  # futex_waitv, futex_wait
_X86 = platform.machine() == "x86_64"
_LOCKS = {202 if _X86 else 98} | _NEW_LOCKS
_POLLS = (
    {7, 23, 232, 270, 271, 281} if _X86 else {22, 72, 73}
)  # poll, select and epoll_wait in their forms
_KNOWN_MACHINES = ("x86_64", "aarch64", "riscv64")

_declared: list[str] = []


@contextlib.contextmanager
def waits_outside(what: str) -> Iterator[None]:
    """Let this rank alone in the block: it waits, on a lock, for something outside of the job.

    Args:
        what: a disk, the server of a tracker.
    """
    _declared.append(what)
    try:
        yield
    finally:
        _declared.remove(what)


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
    """Say what a thread of this process is in.

    Args:
        thread: its identifier in Python; ``native_thread``: in the kernel.
    """
    return doing_in(frames_of(thread), native_thread)


def doing_in(frames: Sequence[FrameType], native_thread: int) -> Doing:
    frames = [frame for frame in frames if frame.f_code.co_filename not in _WATCH]
    in_collective = _is_in_collective(frames)
    outside = "" if in_collective else _outside(frames, native_thread)
    return Doing(text=_text(frames), in_collective=in_collective, outside=outside)


def frames_of(thread: int) -> list[FrameType]:
    """List the frames of a thread, the innermost first."""
    frame = sys._current_frames().get(thread)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _text(frames: Sequence[FrameType]) -> str:
    if not frames:
        return ""
    own = next((frame for frame in frames if not _is_library(frame)), frames[0])
    # torch puts "wrapper" around its collectives.
    calls = [
        frame
        for frame in frames
        if _DISTRIBUTED in frame.f_code.co_filename and _name(frame) != "wrapper"
    ]
    inner = list(calls) if _is_in_collective(frames) else []
    name = _name(inner[-1] if inner else own)
    return f"{name} ({os.path.relpath(own.f_code.co_filename)}:{own.f_lineno})"


def _name(frame: FrameType) -> str:
    return frame.f_code.co_name


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith("<") or any(part in file for part in _LIBRARIES)


def _is_in_collective(frames: Sequence[FrameType]) -> bool:
    if any(_name(frame) == _BACKWARD for frame in frames[:3]):
        return True
    for depth, frame in enumerate(frames):
        file = frame.f_code.co_filename
        if file in _AGREEMENT:
            return (
                depth == 0
            )  # it waits in C++; what it calls on the main process alone is no collective
        if _DISTRIBUTED in file:
            return True
        if not _is_library(frame):
            return False
    return False


def _outside(frames: Sequence[FrameType], native_thread: int) -> str:
    if _declared:
        return _declared[-1]
    files = [frame.f_code.co_filename for frame in frames]
    if any(os.path.basename(file) in _CLIENTS for file in files[:6]):
        return "a client or a debugger"
    if any(
        f"-packages{os.sep}{package}{os.sep}" in file
        for file in files
        for package in _CLIENT_PACKAGES
    ):
        return "a client"

    if any(file.endswith(_LOADER) for file in files):
        # It waits for its loader processes. Those that wait for work do so in poll.
        workers = [child.pid for child in list(multiprocessing.process._children)]  # type: ignore[attr-defined]
        calls = {system_call(f"/proc/{pid}/syscall") for pid in workers}
        return "a loader process that waits" if calls - _LOCKS - _POLLS - {None} else ""
    call = system_call(f"/proc/self/task/{native_thread}/syscall")
    return "" if call is None or call in _LOCKS else f"system call {call}"


def system_call(path: str) -> int | None:
    """Return the number of the call of the kernel in which a thread waits; None where it runs, or
    nobody knows.
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
    """Return how many collectives this rank has begun in each of its groups, with a name to show,
    by the group's own.

    The own names are the same on all ranks of a group; several groups of a mesh are shown by one
    name. Groups whose backend counts nothing are left out.
    """
    begun = {}
    for group in list(sys.modules["torch.distributed"].distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError):
            begun[str(group.group_name)] = (
                _shown(group),
                int(group._get_sequence_number_for_group()),
            )
    return begun


def _shown(group: Any) -> str:
    return str(group.group_name if group.group_desc in ("", "undefined") else group.group_desc)
