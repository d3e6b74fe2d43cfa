r"""The training script of a TrainJob: it tells Kubeflow Trainer how far it is.

    torchrun --nproc_per_node 2 examples/clusters/kubeflow_train.py \
        --config examples/configs/digits_cnn.yaml

Where the cluster has the feature gate TrainJobStatus, each pod is given
KUBEFLOW_TRAINER_SERVER_URL, the path of a token and that of a certificate; `kubectl get trainjob -o
yaml` then shows the progress. Elsewhere nothing is sent.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import trainer


class KubeflowProgress(trainer.Callback):
    """Pushes progress, remaining time and metrics of logged steps; a server that is slow or gone
    holds nothing up.
    """

    def __init__(self) -> None:
        self.url = os.environ.get("KUBEFLOW_TRAINER_SERVER_URL")
        self.sending = threading.Thread()

    def on_step(self, run: trainer.Run, info: trainer.StepInfo) -> None:
        if self.url is None or not run.is_main or info.metrics is None:
            return
        if info.is_last and self.sending.ident is not None:
            self.sending.join()
        if self.sending.is_alive():
            return  # the next one tells more
        numbers = {**info.metrics, **(info.evaluation or {})}
        status = {
            "progressPercentage": 100 * info.step // run.total_steps,
            "estimatedRemainingSeconds": int(info.metrics["eta_seconds"]),
            "lastUpdatedTime": datetime.now(timezone.utc).isoformat(),
            "metrics": [{"name": name, "value": str(value)} for name, value in numbers.items()][
                :256
            ],
        }
        self.sending = threading.Thread(target=self._send, args=(status,), daemon=True)
        self.sending.start()

    def on_end(self, run: trainer.Run, summary: Mapping[str, object]) -> None:
        if self.sending.ident is not None:
            self.sending.join()

    def _send(self, status: Mapping[str, object]) -> None:
        token = (
            Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text().strip()
        )  # it is renewed now and then
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        body = json.dumps({"trainerStatus": status}).encode()
        context = ssl.create_default_context(
            cafile=os.environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
        )
        request = urllib.request.Request(str(self.url), body, headers, method="POST")
        try:
            urllib.request.urlopen(request, timeout=5, context=context).close()
        except OSError as error:
            print(f"kubeflow: the progress could not be sent: {error}", file=sys.stderr)


def train(argv: Sequence[str]) -> None:
    loaded = trainer.load_config(argv)
    task, config = trainer.load_task(loaded)
    launched = trainer.launch(
        config, origins=loaded.origins, accel_config=loaded.accel_config, deepspeed=loaded.deepspeed
    )
    training = trainer.Trainer(
        task, config, launched, callbacks=[KubeflowProgress()], origins=loaded.origins
    )
    training.fit()
    training.close()


if __name__ == "__main__":
    trainer.run_and_exit(lambda: train(sys.argv[1:]))
