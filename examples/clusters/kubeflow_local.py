"""A TrainJob without a cluster, to try it out: Kubeflow's SDK runs it on this machine, in an
environment of its own.

    pip install kubeflow
    python examples/clusters/kubeflow_local.py --processes 2 --output_dir runs/digits

Against a cluster the same call is ``TrainerClient().train(...)``, with an image that has this
repository.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.backends.localprocess.types import LocalProcessBackendConfig

ROOT = Path(__file__).resolve().parents[2]


def work(mapping: dict | None = None, **settings) -> None:
    """Train; the SDK copies the text of this function into the job, so it imports what it needs.

    The local backend calls it with one mapping of the settings, that of a cluster with each by its
    name.
    """
    import os
    import sys

    settings = mapping or settings
    os.chdir(settings["folder"])
    sys.path.append("examples/clusters")
    import kubeflow_train

    import trainer

    trainer.run_and_exit(lambda: kubeflow_train.train(settings["arguments"]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--config", default="examples/configs/digits_cnn.yaml")
    own, rest = parser.parse_known_args()
    settings = {"folder": str(ROOT), "arguments": ["--config", own.config, *rest]}
    client = TrainerClient(backend_config=LocalProcessBackendConfig())
    job = client.train(
        runtime="torch-distributed",
        trainer=CustomTrainer(
            func=work,
            func_args=settings,
            packages_to_install=[f"samecurve[examples] @ file://{ROOT}"],
            # The job sees these variables only; torchrun reads those that begin with PET_.
            env={
                **os.environ,
                "PET_NPROC_PER_NODE": str(own.processes),
                "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            },
        ),
    )
    ended = client.wait_for_job_status(job, status={"Complete", "Failed"}, timeout=1800)
    print(*client.get_job_logs(job), sep="\n")
    sys.exit(ended.status != "Complete")


if __name__ == "__main__":
    main()
