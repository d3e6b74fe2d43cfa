"""What the lines of an evaluation say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from fake_run import fake_run, step_info
from one_process import fit, log_of, rows
from torch import nn

import trainer
from trainer.callbacks.progress import Progress


class Weighted(Plain):
    """Weights of classes, which are no tokens."""

    def weight(self, batch: Any) -> Any:
        return (batch["at"] % 2 + 1.0).sum()


class Tokens(Weighted):
    counts_tokens = True


@pytest.mark.parametrize(("task", "unit"), [(Weighted(), "samples/s"), (Tokens(), "tokens/s")])
def test_the_unit_of_speed_is_what_the_task_says(task: Plain, unit: str, tmp_path: Path) -> None:
    fit(tmp_path / "run", task, max_steps=2, save_every=None)
    assert re.search(rf"norm [\d.]+  [\d.]+ {unit}", log_of(tmp_path / "run"))
    assert any("tokens_per_second" in row for row in rows(tmp_path / "run")) == (unit == "tokens/s")


@dataclass(frozen=True, kw_only=True)
class Squares(Plain):
    """A model of a single graph, or of two with a break between them."""

    breaks: bool

    def build_model(self) -> nn.Module:
        model = super().build_model()
        forward = model.forward

        def squared(batch: Any) -> Any:
            outputs = forward(batch)
            if self.breaks:
                torch._dynamo.graph_break()
            return outputs**2

        model.forward = squared
        return model


# dynamo looks at .grad of whatever it traces
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("breaks", "line"),
    [(False, "graphs compiled: 1"), (True, "graphs compiled: 2, graph breaks: 1")],
)
def test_graphs_and_their_breaks_are_counted_once(breaks: bool, line: str, tmp_path: Path) -> None:
    launch_file = tmp_path / "eager.yaml"
    launch_file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\n"
        "dynamo_config:\n  dynamo_backend: EAGER\n"
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    config = trainer.TrainConfig(
        task="brought_tasks:Plain", output_dir=str(tmp_path / "run"), max_steps=3, log_every=1,
        micro_batch_size=8, keep_last=0, compile=True, sanity_evaluation=False,
    )  # fmt: skip
    launched = trainer.launch(config, accel_config=str(launch_file))
    trainer.Trainer(Squares(breaks=breaks), config, launched).fit()
    assert [
        said for said in log_of(tmp_path / "run").splitlines() if said.startswith("graphs")
    ] == [line]


def test_lines_are_seconds_apart_and_the_estimate_comes_when_it_says_something() -> None:
    """Of 345 logged steps in two seconds, of 1,000 steps in 200 s, and of those in 5,000 s."""
    given = {
        "loss": 1.0,
        "lr": 0.1,
        "grad_norm": 1.0,
        "samples_per_second": 9.0,
        "peak_memory_bytes": 1,
    }
    for steps, seconds, most in ((345, 2, 4), (1_000, 200, 75), (1_000, 5_000, 515)):
        run = fake_run(total_steps=steps, plan=SimpleNamespace(compile=False))
        progress = Progress()
        for step in range(1, steps + 1):
            spent = step * seconds / steps
            metrics = {**given, "seconds": spent, "eta_seconds": 0.4 + seconds - spent}
            progress.on_step(run, step_info(step, metrics=metrics, is_last=step == steps))
        lines = run.said
        assert lines[0].startswith("step 1/") and lines[-1].startswith(f"step {steps}/")
        assert len(lines) <= most
        left = [line.split("eta ")[1].split("  ")[0] for line in lines]
        assert left[0] == "?" and all(text[-1] in "0?" for text in left)
        assert (left[-1] == "?") == (seconds == 2)
