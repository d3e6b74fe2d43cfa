"""Starts the ranks of test jobs by forking a process that has imported the packages.

That saves seconds for each rank.

    python rank_starter.py SOCKET [fake]

Listens on a Unix socket until standard input ends. Each connection has a process, whose id comes
first. The process reads jobs as lines of JSON and answers each with the exit code. The ranks are processes of their own, connected over gloo by
the variables that srun or mpirun users set (RANK, WORLD_SIZE, MASTER_ADDR). What a launcher itself
does is tested with the launchers. With ``fake`` the ranks are those of rehearsals, on a fake GPU.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

GRACE = 30.0  # seconds between SIGTERM and SIGKILL, as torchrun has it
# has torch count GPUs without the driver, which no fork outlives
NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
# Of a rehearsal, which replaces names of torch before DeepSpeed is imported.
FAKE_PACKAGES = (
    "accelerate",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "transformers.models.llama.modeling_llama",
)
PACKAGES = (
    "accelerate",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "peft",
    "sklearn.datasets",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torchmetrics.classification",
    "transformers.models.llama.modeling_llama",
)


def main() -> None:
    os.dup2(2, 1)  # packages print while they are imported
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    is_fake = sys.argv[2:] == ["fake"]
    if is_fake:
        load_fake_gpu()
    os.environ[NVML] = "1"
    import_packages(FAKE_PACKAGES if is_fake else PACKAGES, hidden)
    del os.environ[NVML]

    forks = hidden or is_fake or can_compute_in_a_fork()
    if not forks:
        print(
            "CUDA was started by an import, so each rank is a fresh Python: slower", file=sys.stderr
        )

    with socket.socket(socket.AF_UNIX) as listening:
        # Under another name first: whoever finds the socket can connect.
        listening.bind(f"{sys.argv[1]}.new")
        listening.listen()
        os.rename(f"{sys.argv[1]}.new", sys.argv[1])
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # processes of connections that have ended
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:  # pytest has ended
                return
            connection, _ = listening.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(connection, forks)
            connection.close()


def answer(connection: socket.socket, forks: bool) -> NoReturn:
    """Run the jobs of a process of pytest until the connection ends, and leave."""
    with contextlib.suppress(OSError), connection.makefile("rw") as file:
        print(os.getpid(), file=file, flush=True)
        for line in file:
            print(json.dumps(run_job(json.loads(line), forks)), file=file, flush=True)
    os._exit(0)


def load_fake_gpu() -> None:
    """Load the fake GPU, which must be there before torch is imported."""
    from trainer.rehearsal.device_guard import load_guard

    load_guard()


def import_packages(packages: tuple[str, ...], hidden: bool) -> None:
    """Import what is slow, installed, and starts no threads; nothing of the package under test.

    Args:
        packages: their names.
        hidden: whether this process sees no GPU.
    """
    for name in packages:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    if hidden and "deepspeed" in sys.modules:
        # Each engine asks, and the answer compiles small programs; where GPUs are it asks the
        # driver.
        _ = sys.modules["deepspeed"].ops.__compatible_ops__
    # A collection of garbage in a rank would walk over all of these packages, and copy their pages.
    gc.collect()
    gc.freeze()


def can_compute_in_a_fork() -> bool:
    """Try the GPU in a fork, which works as long as nothing has started CUDA in this process."""
    import torch

    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            torch.zeros(1, device="cuda")
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def run_job(job: dict[str, Any], forks: bool) -> int:
    """Start all ranks and wait; return the exit code of the first that failed.

    Its end ends the others, as a launcher has it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(max(1, job["world"])):
        pid = os.fork()
        if pid == 0:
            be_rank(job, rank, port, forks)
        children.append(pid)

    failed = 0
    kill_at = time.monotonic() + job["timeout"]
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            children.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and not failed:
                failed = code
                kill_at = min(kill_at, time.monotonic() + GRACE)
                send(children, signal.SIGTERM)
        elif time.monotonic() > kill_at:
            failed = failed or -signal.SIGKILL
            send(children, signal.SIGKILL)
        else:
            time.sleep(0.01)
    return failed


def send(children: list[int], number: signal.Signals) -> None:
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def variables_of(rank: int, world: int, port: int) -> dict[str, str]:
    """Return what srun and mpirun users set for a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def be_rank(job: dict[str, Any], rank: int, port: int, forks: bool) -> NoReturn:
    """Run the script as a freshly started Python would, and leave."""
    code = 0
    try:
        os.environ.clear()
        os.environ.update(job["environment"])
        world = job["world"]
        if world:
            os.environ.update(variables_of(rank, world, port))

        os.chdir(job["folder"])
        for number, path in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)

        if not forks:
            os.execv(sys.executable, [sys.executable, *job["words"]])
        faulthandler.enable()
        sys.argv = job["words"]
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
