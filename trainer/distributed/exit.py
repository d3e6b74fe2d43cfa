"""The end of a process: the exit code is right, and the first error is the last line of a job.

A finished gloo job often aborts in its destructors and exits with SIGABRT (pytorch#190489: up to
four of ten runs). So the process leaves through ``os._exit``.

When one rank fails, the others fail a second later, with connection errors that bury the cause.
The first to fail claims the error in the store that all ranks share, and the others stay silent.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ..errors import TrainerError
from ..text import without_secrets
from .started_by import env_number

_CLAIM = "trainer/first_error"
_PATIENCE_SECONDS = 5.0  # the launcher ends the survivors of a failed job well within this
_STORE_SECONDS = 2.0
_SIGNS_OF_A_LOST_PEER = (
    "distnetworkerror",  # torch.distributed's own class
    "gloo/transport",
    # NCCL
    "ncclremoteerror",
    "remote process exited",
    "communicator was aborted",
)

_last_work: list[Callable[[], object]] = []
_at_the_end: Callable[[bool], object] = bool  # bool() has no effect
_is_written = False  # everything of the run is written


def when_failing(work: Callable[[], object]) -> Callable[[], None]:
    """Call ``work`` first when the job fails, to save data in memory. Return how to cancel."""
    _last_work.append(work)
    return lambda: _last_work.remove(work)


def at_the_end(work: Callable[[bool], object]) -> None:
    """Call ``work(has_failed)`` once an error is printed, or behind the ranks' last barrier."""
    global _at_the_end
    _at_the_end = work


def is_written() -> bool:
    """Return whether everything of the run is written, so that no rank is needed any more."""
    return _is_written


def meet_at_the_end(barrier: Callable[[], object]) -> bool:
    """Meet the other ranks once everything is written. Return whether all have come. Collective."""
    global _is_written
    _is_written = True
    return _meet(barrier)


def _meet(barrier: Callable[[], object]) -> bool:
    """Meet the other ranks. Once everything is written, the death of a rank is but a notice."""
    try:
        barrier()
    except RuntimeError as error:
        if not (_is_written and is_lost_peer(error)):
            raise
        print("notice: everything is written, and another rank is gone", file=sys.stderr)
        return False
    return True


class Stopped(Exception):
    """The end of a training that a signal asked to stop, with everything written."""

    def __init__(self, number: int, *, step: int, total_steps: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name} at step {step} of {total_steps}; everything "
            "up to there was written"
        )
        self.signal = number


def run_and_exit(main: Callable[[], object]) -> NoReturn:
    """Call ``main`` and leave the process with the right exit code, after every error."""
    faulthandler.enable()  # a crash in C++ tells the line of Python

    try:
        main()
        _close_groups()
        code = 0
    except SystemExit:
        raise  # Python prints the text and gives the code
    except Stopped as stopped:
        _write_error_file(str(stopped))  # the launcher reports a failure, by these words
        _close_groups()
        code = 128 + stopped.signal
    except KeyboardInterrupt:
        _do_last_work()
        code = 130
    except TrainerError as error:
        _fail(str(error), from_everyone=error.on_every_rank)
        code = error.exit_code
    except BaseException as error:  # (every error must end the job with the right name)
        _fail("".join(traceback.format_exception(error)), lost_peer=is_lost_peer(error))
        code = 1
    _flush_and_exit(code)


def end_at_once() -> NoReturn:
    """End this process from any thread, also if the main thread is stuck."""
    # The last work of callbacks may wait for a network.
    briefly(_do_last_work, _PATIENCE_SECONDS)
    _flush_and_exit(0 if _is_written else 1)


def briefly(work: Callable[[], object], seconds: float) -> threading.Thread:
    """Do work in a thread, and leave the thread behind after some seconds. Return the thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return thread


def _flush_and_exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _close_groups() -> None:
    dist = _connected()
    if not dist:
        return
    # A group that has gloo as well as NCCL meets on the CPU.
    devices = None
    if dist.get_backend() == "nccl":
        devices = [sys.modules["torch"].cuda.current_device()]
    has_all = _meet(lambda: dist.barrier(device_ids=devices))
    _at_the_end(False)
    if has_all:
        _destroy_groups(dist)


def _destroy_groups(dist: Any) -> None:
    """Close all groups. Rank 0 leaves last: NCCL's threads print stacks if the store is gone."""
    from ..private.torch import default_store

    store, rank, world = default_store(), dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()

    def leave() -> None:
        with suppress(Exception):  # another rank is gone meanwhile
            store.set(f"trainer/left/{rank}", "")
            if rank == 0:
                store.wait([f"trainer/left/{other}" for other in range(world)])

    briefly(leave, _PATIENCE_SECONDS)


def _connected() -> Any:
    """Return ``torch.distributed`` if this process is connected to others. None otherwise."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_initialized() else None


def _do_last_work() -> None:
    for work in _last_work:
        with suppress(Exception):  # (another error must not hide the first)
            work()


# -- the first error ------------------------------------------------------------------------------


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error of torch.distributed looks like the death of another rank."""
    text = f"{type(error).__name__}: {error}".lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS_OF_A_LOST_PEER)


def _fail(message: str, *, from_everyone: bool = False, lost_peer: bool = False) -> None:
    """Print an error once for the job. An error of everyone is printed on each machine."""
    _do_last_work()

    # The launcher ends all processes when one ends: this error must be printed first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    # None if there is no store to ask, as before the processes are connected, when every rank reads
    # the same files and finds the same fault.
    is_first = claim_first_error()
    another_prints = is_first is False
    is_second_here = from_everyone and env_number("LOCAL_RANK") > 0
    if another_prints or (is_first is None and (lost_peer or is_second_here)):
        # The launcher ends this process meanwhile, by a signal that training turned into a request.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_PATIENCE_SECONDS)
    if another_prints:
        return

    if lost_peer:
        message = (
            f"{message.rstrip()}\nanother process of this job ended silently (killed, out of "
            "memory, aborted in C++): look above for its last lines. If ranks use different "
            "parameters in one step, set find_unused_parameters: true"
        )
    print_error(message)

    with suppress(Exception):
        _at_the_end(True)


def print_error(message: str) -> None:
    """Print the error of a job, and write it to the launcher's error file."""
    _write_error_file(message)
    print_line(message.rstrip(), begin="\n")


def print_line(text: str, *, begin: str = "") -> None:
    """Print a text to stderr, with the rank in front if there are several."""
    rank = os.environ.get("RANK")
    prefix = f"rank {rank}: " if rank and env_number("WORLD_SIZE") > 1 else ""
    print(f"{begin}{prefix}{without_secrets(text)}", file=sys.stderr, flush=True)


def _write_error_file(message: str) -> None:
    """Write an error to the file that torchrun and accelerate print, if they name a file."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    report = {"message": without_secrets(message), "timestamp": int(time.time())}
    # A missing folder must not put another error in the place of this error.
    with suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump(report, file)


def claim_first_error(store: Any = None) -> bool | None:
    """Claim the first error. Return whether this rank has it, None if no store answers."""
    dist = _connected()
    if not dist:
        return None
    from ..private.torch import default_store  # imports torch, which is there

    rank = str(dist.get_rank())
    answers: list[bool] = []

    def ask() -> None:
        # If the rank that held the store is gone, its error was the first.
        with suppress(Exception):
            shared = store or default_store()
            answers.append(shared.compare_set(_CLAIM, "", rank).decode() == rank)

    # If a machine is cut off no answer comes, and the store's own time-out does not end the call: a
    # thread is left behind.
    briefly(ask, _STORE_SECONDS)
    return answers[0] if answers else None
