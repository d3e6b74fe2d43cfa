"""Leaving: the exit code is the truth, and the first error is the last thing a user reads.

A finished gloo job often aborts in its destructors and exits with SIGABRT (pytorch#190489: up to
four of ten runs). After a barrier, closing the groups and flushing, the process leaves through
``os._exit``.

When one rank fails, the others fail as well, a second later, with connection errors that bury the
cause. The first to fail claims the store that all ranks share; the others stay silent. torchrun and
accelerate print the claimed error at the very end, through the error file that they offer.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ..errors import TrainerError

_CLAIM = "trainer/first_error"
_PATIENCE_SECONDS = 5.0  # the launcher ends the survivors of a failed job well within this


_failing: list[Callable[[], object]] = []


def when_failing(work: Callable[[], object]) -> Callable[[], None]:
    """Have ``work`` done first when the job fails, which saves what is still in memory; return how
    to undo it.
    """
    _failing.append(work)
    return lambda: _failing.remove(work)


class Stopped(Exception):
    """Training ended early because a signal asked for it; everything was written. Exit code 128 +
    signal.
    """

    def __init__(self, number: int, *, step: int, total_steps: int) -> None:
        name = signal.Signals(number).name
        super().__init__(
            f"stopped by {name} at step {step} of {total_steps}; everything up to there was written"
        )
        self.signal = number


def run_and_exit(main: Callable[[], object]) -> NoReturn:
    """Call ``main`` and leave the process with the right exit code, whatever happens."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # under LC_ALL=C a name with an accent would end the run
            stream.reconfigure(errors="backslashreplace")
    try:
        main()
        _close_groups()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):  # Python itself would print it
            print(leaving.code, file=sys.stderr)
    except Stopped as stopped:
        _write_error_file(
            str(stopped)
        )  # the launcher reports a failure: this is what it should call it
        _close_groups()
        code = 128 + stopped.signal
    except KeyboardInterrupt:
        _save_what_is_left()
        code = 130
    except TrainerError as error:
        _tell(str(error), from_everyone=error.on_every_rank)
        code = error.exit_code
    except BaseException as error:  # (whatever it is, it must end the job with its own name)
        _tell("".join(traceback.format_exception(error)), lost_peer=is_lost_peer(error))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _close_groups() -> None:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        # On the GPU that is this process's own; a group that has gloo as well meets on the CPU.
        dist.barrier(
            device_ids=[sys.modules["torch"].cuda.current_device()]
            if dist.get_backend() == "nccl"
            else None
        )
        dist.destroy_process_group()


def _save_what_is_left() -> None:
    for work in _failing:
        with contextlib.suppress(Exception):  # (another error must not hide the one that is told)
            work()


def is_lost_peer(error: BaseException) -> bool:
    """Tell whether an error is what the death of another rank looks like from here."""
    text = str(error).lower()
    gloo = (
        "connection closed by peer",
        "connection reset",
        "connection refused",
        "broken pipe",
        "gloo/transport",
    )
    nccl = ("ncclremoteerror", "remote process exited", "communicator was aborted")
    return isinstance(error, RuntimeError | OSError) and any(
        sign in text for sign in (*gloo, *nccl)
    )


def _tell(message: str, *, from_everyone: bool = False, lost_peer: bool = False) -> None:
    """Print an error once for the whole job, and leave it in the launcher's error file.

    Args:
        from_everyone: it is the same on all ranks (a wrong config), so one of them on each machine
            tells it.
        lost_peer: it looks like the death of another rank, whose own error matters more.
    """
    _save_what_is_left()
    owner, rank = claim_first_error(), os.environ.get("RANK")
    silent = owner is not None and owner != rank
    # Before the processes are connected every rank reads the same files and finds the same fault.
    echo = owner is None and from_everyone and os.environ.get("LOCAL_RANK", "0") != "0"
    if silent or echo or (owner is None and lost_peer):
        signal.signal(
            signal.SIGTERM, signal.SIG_DFL
        )  # training turned it into a request to stop after a step
        time.sleep(_PATIENCE_SECONDS)  # another rank tells it; the launcher ends this one meanwhile
    if silent:
        return
    if lost_peer:
        message = (
            f"{message.rstrip()}\nanother process of this job ended without a word (killed, out of memory, aborted in "
            "C++): look above for what it printed. Where ranks use different parameters in one step, set "
            "find_unused_parameters: true"
        )
    _print(message)


def _print(message: str) -> None:
    _write_error_file(message)
    rank = os.environ.get("RANK")
    prefix = (
        f"rank {rank}: " if rank is not None and os.environ.get("WORLD_SIZE", "1") != "1" else ""
    )
    print(f"\n{prefix}{message.rstrip()}", file=sys.stderr, flush=True)


def end_at_once(message: str, *, before: Callable[[], object]) -> NoReturn:
    """Print an error and end this process from any thread, whatever its main thread waits for.

    Args:
        message: of a claimed error; "" where another rank tells it.
        before: is done when the message stands, before anything that may take long.
    """
    if message:
        _print(message)
    before()
    # What callbacks finish may wait for a network.
    saving = threading.Thread(target=_save_what_is_left, daemon=True)
    saving.start()
    saving.join(_PATIENCE_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _write_error_file(message: str) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        report = {
            "message": message,
            "extraInfo": {"py_callstack": message, "timestamp": str(int(time.time()))},
        }
        # A folder that is not there must not put its own error in the place of this one.
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            json.dump({"message": report}, file)


def claim_first_error(store: Any = None, *, take: bool = True) -> str | None:
    """Return the rank whose error came first, by a compare-and-set on the shared store; None where
    that is gone.

    Args:
        store: a connection of the caller's own; by default that of the process group.
        take: claim it for this rank where nobody has; else "" is returned then.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    answers: list[str] = []

    def ask() -> None:
        with contextlib.suppress(
            Exception
        ):  # (the rank that held the store is gone: then its error was the first)
            shared = store or dist.distributed_c10d._get_default_store()
            if take:
                answers.append(shared.compare_set(_CLAIM, "", str(dist.get_rank())).decode())
            else:
                answers.append(shared.get(_CLAIM).decode() if shared.check([_CLAIM]) else "")

    with _hushed():
        (asking := threading.Thread(target=ask, daemon=True)).start()
        asking.join(
            2.0
            # where a machine is cut off no answer comes, and the store's own time-out does not end it
        )
    return answers[0] if answers else None


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Silence stderr: of a store that is gone torch prints a C++ stack, below the error that
    matters.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
