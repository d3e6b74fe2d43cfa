"""Determined's Core API off the cluster, with what its master would say: to stop, and a trial's
newest checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import determined as det

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples/clusters"))
import determined_train

import trainer

told: list[Any] = []


def report(
    self: object,
    group: str,
    steps_completed: int,
    metrics: dict[str, Any],
    batch_metrics: object = None,
) -> None:
    if group == "training":
        told.append((steps_completed, metrics))


def should_preempt(self: Any, auto_ack: bool = True) -> bool:
    self.asked = getattr(self, "asked", 0) + 10  # CoreAPI asks every tenth step
    return bool(self._dist.broadcast(self.asked == int(os.environ["PREEMPTED_AT"])))


def info_of(self: object) -> object:
    return SimpleNamespace(latest_checkpoint=os.environ["NEWEST"] or None)


def main() -> None:
    det.core.DummyTrainContext._report_trial_metrics = report
    det.core.DummyPreemptContext.should_preempt = should_preempt
    det.core.Context.info = property(info_of, lambda self, value: None)
    determined_train.main()
    if os.environ["RANK"] == "0":
        folder = Path(sys.argv[sys.argv.index("--output_dir") + 1])
        (folder / "told.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))


if __name__ == "__main__":
    trainer.run_and_exit(main)
