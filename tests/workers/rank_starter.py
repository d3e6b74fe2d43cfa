"""Starts the ranks of test jobs by forking a process that has imported the packages: seconds saved for each rank.

Reads jobs as lines of JSON and answers each with its exit code. The ranks are processes of their own, connected over
gloo by the variables that srun or mpirun users set (RANK, WORLD_SIZE, MASTER_ADDR); what a launcher itself does is
tested with the launchers.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

GRACE = 30.0  # seconds between SIGTERM and SIGKILL, as torchrun has it


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # packages print while they are imported
    import_packages()
    for line in sys.stdin:
        print(json.dumps(run_job(json.loads(line))), file=answers, flush=True)


def import_packages() -> None:
    """Import what is slow and starts no threads; nothing of the package under test."""
    import accelerate  # noqa: F401
    import deepspeed
    import deepspeed.runtime.zero.muon.muon_optimizer
    import peft  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch.distributed.checkpoint
    import torch.distributed.fsdp  # noqa: F401
    import torchmetrics.classification  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    _ = deepspeed.ops.__compatible_ops__  # each engine asks, and the answer compiles small programs


def run_job(job: dict[str, Any]) -> int:
    """Start all ranks and wait; the exit code of the first that failed, whose end ends the others."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(max(1, job["world"])):
        pid = os.fork()
        if pid == 0:
            be_rank(job, rank, port)
        children.append(pid)
    failed, kill_at = 0, time.monotonic() + job["timeout"]
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            children.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            if code and not failed:
                failed, kill_at = code, min(kill_at, time.monotonic() + GRACE)
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


def be_rank(job: dict[str, Any], rank: int, port: int) -> NoReturn:
    """Run the script as a freshly started Python would, and leave."""
    code = 0
    try:
        world = job["world"]
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        ranks |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.clear()
        os.environ.update(job["environment"] | ({name: str(value) for name, value in ranks.items()} if world else {}))
        os.chdir(job["folder"])
        for number, path in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
        faulthandler.enable()
        sys.argv = job["words"]
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
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
