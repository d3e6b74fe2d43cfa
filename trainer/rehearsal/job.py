"""A job to rehearse: its launch file for a number of GPUs, and the results of its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config.arguments import kind_of
from ..errors import LaunchError

_LAUNCH_FILE = "launch.json"  # an accelerate file may be JSON
# Without evaluations, trackers and files, which a rehearsal does not need.
_NONE = (
    "eval_every save_every best_metric early_stop_patience push_to_hub weights profile_steps "
    "epochs stop_at"
)
_OFF = {
    **dict.fromkeys(_NONE.split(), "null"),
    **dict.fromkeys(("sanity_evaluation", "compile", "overwrite"), "false"),
    "trackers": "[]",
    "resume": "none",
    "workers": "0",
    # The last step would save. A small data set is read as often as two steps need. A schedule of
    # the task may have a table of all steps.
    "max_steps": "1000000",
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job to rehearse.

    Args:
        launch_file: the content of an accelerate YAML or a DeepSpeed JSON, and ``file`` its name.
        words: the training config and its settings, as on a command line.
        gpus: all GPUs of the job, ``per_machine`` of them on a machine.
        gpu: their name, as in ``reporting/gpus.yaml``, or their memory (``24GiB``).
    """

    launch_file: dict[str, Any]
    words: Sequence[str]
    gpus: int
    gpu: str
    per_machine: int = 8
    file: str = "launch file"

    def with_settings(self, **settings: Any) -> Job:
        """Return the job with other values of training settings."""
        return replace(self, words=[*self.words, *(f"--{k}={v}" for k, v in settings.items())])

    def rehearse(self, ranks: Sequence[int] = (0,)) -> Iterator[dict[str, Any]]:
        """Rehearse ranks of the job, two at a time. Return results of ``one_rank.rehearse``.

        Raises:
            LaunchError: the job cannot run, or cannot be rehearsed.
        """
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            return pool.map(self._rehearse, ranks)

    def _rehearse(self, rank: int) -> dict[str, Any]:
        machine_size = min(self.gpus, self.per_machine)
        environment = {"OMP_NUM_THREADS": 1, "DS_ACCELERATOR": "cuda", "CUDA_VISIBLE_DEVICES": 0}
        if self.launch_file.get("distributed_type") != "NO":
            environment |= {
                "RANK": rank,
                "WORLD_SIZE": self.gpus,
                "LOCAL_RANK": rank % machine_size,
                "LOCAL_WORLD_SIZE": machine_size,
                "GROUP_RANK": rank // machine_size,
                "GROUP_WORLD_SIZE": self._machines,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": 0,
            }
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            job = self.with_settings(**_OFF, output_dir=folder / "run", **self._launched(folder))
            (folder / "request.json").write_text(json.dumps({**vars(job), "rank": rank}))
            done = subprocess.run(
                [sys.executable, "-m", __package__, name],
                env=os.environ | {key: str(value) for key, value in environment.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            result = folder / "result.json"
            if not result.exists():
                Path("rehearsal.log").write_text(done.stdout)
                last = done.stdout.strip().rpartition("\n")[2]
                raise LaunchError(f"rank {rank} ends with an error (rehearsal.log): {last}")
            made = f"{folder / _LAUNCH_FILE}:1"
            found: dict[str, Any] = json.loads(result.read_text().replace(made, self.file))
        if "error" in found:
            raise LaunchError(found["error"])
        return found

    @property
    def _machines(self) -> int:
        return -(-self.gpus // self.per_machine)

    def _launched(self, folder: Path) -> dict[str, Path]:
        """Write the launch file for this number of GPUs, and return the option that names it."""
        option = kind_of(self.launch_file)
        data = self.launch_file
        if option == "accel_config":
            processes = {"num_processes": self.gpus, "num_machines": self._machines}
            data = {**data, **processes, "machine_rank": 0, "use_cpu": False}
        path = folder / _LAUNCH_FILE
        path.write_text(json.dumps(data))
        return {option: path}
