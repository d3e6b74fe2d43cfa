"""A job to rehearse: its launch file for a number of GPUs, and the results of its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from ..config.arguments import kind_of
from ..errors import LaunchError
from .steps_alone import STEPS_ALONE

# The last step would save. A small data set is read as often as two steps need. A schedule of the
# task may have a table of all steps.
_OFF = (
    "--max_steps=1000000",
    "--epochs=null",
    "--stop_at=null",
    "--weights=null",
    "--resume=none",
    "--workers=0",
    "--compile=false",
    "--overwrite=false",
)


class Job(NamedTuple):
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
        return self._replace(words=[*self.words, *(f"--{k}={v}" for k, v in settings.items())])

    def rehearse(self, ranks: Sequence[int] = (0,)) -> Iterator[dict[str, Any]]:
        """Rehearse ranks of the job, two at a time. Return results of ``one_rank.rehearse``.

        Raises:
            LaunchError: the job cannot run, or cannot be rehearsed.
        """
        with ThreadPoolExecutor(2) as pool:
            return pool.map(self._rehearse, ranks)

    def _rehearse(self, rank: int) -> dict[str, Any]:
        machine_size = min(self.gpus, self.per_machine)
        environment = dict(
            os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cuda", CUDA_VISIBLE_DEVICES="0"
        )
        if self.launch_file.get("distributed_type") != "NO":
            environment |= {
                "RANK": f"{rank}",
                "WORLD_SIZE": f"{self.gpus}",
                "LOCAL_RANK": f"{rank % machine_size}",
                "LOCAL_WORLD_SIZE": f"{machine_size}",
            }
        option = kind_of(self.launch_file)
        data = self.launch_file
        if option == "accel_config":
            data = {**data, "num_processes": self.gpus, "use_cpu": False}
        with tempfile.TemporaryDirectory() as name:
            file = Path(name, "launch.json")  # an accelerate file may be JSON
            file.write_text(json.dumps(data))
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    __package__,
                    name,
                    self.gpu,
                    *self.words,
                    *STEPS_ALONE,
                    *_OFF,
                    f"--output_dir={name}/run",
                    f"--{option}={file}",
                ],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            result = Path(name, "result.json")
            if not result.exists():
                Path("rehearsal.log").write_text(done.stdout)
                *_, last = done.stdout.strip().split("\n")
                raise LaunchError(f"rank {rank} ends with an error (rehearsal.log): {last}")
            found: dict[str, Any] = json.loads(result.read_text().replace(f"{file}:1", self.file))
        if "error" in found:
            raise LaunchError(found["error"])
        return found


def rehearsed(jobs: Iterable[tuple[str, Job]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the result of a rank of each job by name. A job that cannot run is a printed line."""
    for name, job in jobs:
        try:
            (found,) = job.rehearse()
        except LaunchError as error:
            print(f"{name}: {error}")
        else:
            yield name, found
