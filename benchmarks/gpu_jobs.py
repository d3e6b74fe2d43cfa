"""Jobs of the GPU benchmarks: processes with a time limit, whose results are kept at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHORTEST = 15.0  # seconds that a job needs at least: it is not begun with less


def prepare(*, rehearse: bool) -> int:
    """Set what all jobs of this process inherit, and end the job that runs where this is ended.

    Returns:
        how many processes fill the machine: one for each GPU.

    Raises:
        SystemExit: there is no GPU.
    """
    # Whoever ends this process ends its job: `timeout` does so by SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # So that a job finds what the one before has compiled.
    cache = Path(tempfile.gettempdir()) / "samecurve_gpu_inductor"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    if rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["DS_ACCELERATOR"] = "cpu"
        return 1

    # In a process of its own: CUDA stays out of this one.
    words = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    gpus = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    if gpus == 0:
        raise SystemExit("this needs a GPU; --rehearse runs its own code on a CPU")
    return gpus


def run(words: Sequence[str], *, limit: float, ranks: int = 0) -> dict[str, Any]:
    """Run a Python module, and return what it writes to the file that ``--out`` names, as JSON.

    Args:
        words: the module and its arguments.
        limit: seconds.
        ranks: of the job, which connect to each other; 0 for a process without a rank.

    Returns:
        The result; ``{"error": ...}`` where there is none.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, said = Path(folder) / "result.json", Path(folder) / "said"
        full = [sys.executable, "-m", *words, "--out", str(result)]
        port = free_port()
        processes = []
        with said.open("w") as output:
            for rank in range(max(1, ranks)):
                environment = dict(os.environ)
                if ranks:
                    environment |= variables_of(rank, ranks, port)
                process = subprocess.Popen(
                    full,
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                processes.append(process)

        ended = wait(processes, limit)
        if result.exists():
            return dict(json.loads(result.read_text()))
        return {"error": f"{said.read_text(errors='replace')[-3000:].strip()}\n{ended}"}


def wait(processes: Sequence[subprocess.Popen[Any]], limit: float) -> str:
    """Wait for all processes, and return how they ended. One that failed ends the others."""
    deadline = time.monotonic() + limit
    try:
        while True:
            codes = [process.poll() for process in processes]
            failed = [code for code in codes if code]
            if failed:
                return f"exit code {failed[0]}"
            if None not in codes:
                return "ended without a result"
            if time.monotonic() > deadline:
                return f"no result after {limit:.0f} s"
            time.sleep(0.05)
    finally:
        end(processes)


def end(processes: Sequence[subprocess.Popen[Any]]) -> None:
    """End processes that still run, each with all that it started: it has a group of its own."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables_of(rank: int, world: int, port: int) -> dict[str, str]:
    """Return what a launcher sets for a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Budget:
    """Seconds for a number of jobs, most wanted first."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self.seconds = seconds

    @property
    def spent(self) -> float:
        return time.monotonic() - self.began

    def jobs(self, names: Sequence[Any], limit: float) -> Iterator[tuple[Any, float]]:
        """Yield jobs and their limits as long as there is time, and name those that are left."""
        for number, name in enumerate(names):
            left = self.seconds - self.spent
            if left < SHORTEST:
                print(f"not run, the time is spent: {', '.join(map(str, names[number:]))}")
                return
            yield name, min(left, limit)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Write a row, which is then there whatever ends this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def last_lines(error: str) -> str:
    """Return what was said last, and how the job ended."""
    return " / ".join(error.strip().splitlines()[-2:])
