"""How one process ends: its exit code and its last line."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from launchers import ROOT, clean_environment, completed, ranks
from torch.distributed import DistNetworkError

from trainer.distributed.exit import claim_first_error, is_lost_peer

RUNS = """
import sys, trainer
from trainer.errors import *
from trainer.distributed.exit import Stopped
def main():
    {}
trainer.run_and_exit(main)
"""


def ended(does: str) -> subprocess.CompletedProcess[str]:
    """Return a process that does this as the main function of a job."""
    words = [sys.executable, "-c", RUNS.format(does)]
    return completed(words)


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise Stopped(15, step=1, total_steps=2)", 143, ""),
        (
            "raise Origin('a.yaml', 1, 'lr').error('is wrong')",
            2,
            "a.yaml:1: lr: is wrong",
        ),
        ("raise LaunchError('two, but one runs')", 2, "two, but one runs"),
        ("raise DataError('no rows')", 1, "no rows"),
    ],
)
def test_exit_codes(does: str, code: int, said: str) -> None:
    done = ended(does)
    assert (done.returncode, done.stderr.strip()) == (code, said)


def test_other_errors_keep_their_traceback() -> None:
    done = ended("[].pop()")
    assert done.returncode == 1
    assert done.stderr.startswith("\nTraceback") and done.stderr.endswith(
        "\nIndexError: pop from empty list\n"
    )


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("[../gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1234", True),
        (
            "NCCL error in: ../NCCLUtils.hpp:268, remote process exited or there was a network error",
            True,
        ),
        (
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely",
            True,
        ),
        ("NCCL communicator was aborted on rank 3.", True),
        (
            "NCCL error: invalid usage. Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
            False,
        ),
        ("CUDA out of memory", False),
        (DistNetworkError("failed to recv, got 0 bytes"), True),
        # of a data server, or of a tracker
        ("[Errno 104] Connection reset by peer", False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
        (BrokenPipeError(32, "Broken pipe"), False),
    ],
)
def test_errors_of_a_rank_that_is_gone(said: str | Exception, lost: bool) -> None:
    error = RuntimeError(said) if isinstance(said, str) else said
    assert is_lost_peer(error) is lost


def test_an_error_before_the_processes_are_connected() -> None:
    """All ranks read the same files, so the first of each machine tells it; the others only where
    nobody ended them.
    """
    words = [sys.executable, "-c", RUNS.format("raise LaunchError('two, but three run')")]
    told = {}
    for rank in ("0", "1"):
        environment = clean_environment({"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"})
        with subprocess.Popen(
            words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            begin = time.monotonic()
            told[rank] = (
                process.communicate(timeout=60)[1].strip(),
                process.returncode,
                time.monotonic() - begin > 4,
            )
    assert told == {
        "0": ("rank 0: two, but three run", 2, False),
        "1": ("rank 1: two, but three run", 2, True),
    }


def test_a_store_that_never_answers_keeps_no_rank_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of a machine whose cable was cut (tests/clusters): the wait for its answer has no
    time-out.
    """
    mended = threading.Event()
    store = SimpleNamespace(compare_set=lambda *_: mended.wait())
    connected = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 1,
    )
    monkeypatch.setattr("trainer.private.torch.default_store", lambda: store)
    monkeypatch.setitem(sys.modules, "torch.distributed", connected)
    begin = time.monotonic()
    assert claim_first_error() is None and time.monotonic() - begin < 10
    mended.set()


def test_the_process_of_the_store_leaves_behind_the_groups_of_all_ranks() -> None:
    """Threads of NCCL's groups look into the store, and print their stacks without a store."""
    done = ranks(["tests/workers/leaving.py", "slow"])
    assert (done.returncode, done.stdout) == (0, "the store is there\n"), done.stderr

    begin = time.monotonic()
    done = ranks(["tests/workers/leaving.py", "gone"], timeout=60)
    assert done.returncode == 9 and time.monotonic() - begin < 30, "nobody waits for a dead rank"
