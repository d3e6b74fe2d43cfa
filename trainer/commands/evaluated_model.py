"""The model that ``trainer evaluate`` measures: a folder of safetensors, or a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.discover import inspect, listing
from ..checkpoint.export import exported_file
from ..checkpoint.store import MANIFEST
from ..checkpoint.untrusted import read_json
from ..errors import CheckpointError
from ..text import listed
from .usage import usage_error

CONFIG, PLAN = "config.yaml", "plan.json"


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    """A model to evaluate.

    Args:
        weights: folder of its files, or of a checkpoint.
        run: folder of its run. None if it belongs to none.
        step, samples: how long it was trained. 0 if that is not known.
    """

    weights: Path
    run: Path | None = None
    step: int = 0
    samples: int = 0


def find_model(
    target: Path, *, best: bool = False, checkpoint: str | None = None
) -> EvaluatedModel:
    """Find the model that a command line names.

    Args:
        target: folder of a run, of a checkpoint, or of a model.
        best: evaluate the run's ``best/``.
        checkpoint: evaluate the run's checkpoint of this name or step, or the ``latest``.

    Raises:
        ConfigError: there is no such model.
        CheckpointError: the checkpoint cannot be read.
    """
    folder = target
    if _is_run(target):
        folder = target / ("best" if best else "model")
        if checkpoint is not None:
            folder = _checkpoint_of(target, checkpoint)
    elif best or checkpoint is not None:
        rule = f"is no run (no {CONFIG} and {PLAN}), so it has neither --best nor --checkpoint"
        raise usage_error("", str(target), rule)

    run = next((path for path in folder.resolve().parents[:2] if _is_run(path)), None)
    if (folder / MANIFEST).exists():
        info = inspect(folder)
        if info.problem:
            raise CheckpointError(f"{folder}: {info.problem}")
        samples = info.manifest["samples"]
        return EvaluatedModel(weights=folder, run=run, step=info.step, samples=samples)

    if exported_file(folder) is None:
        rule = "holds no model (safetensors) and no checkpoint; a run that has not ended needs "
        raise usage_error("", str(folder), rule + "--checkpoint latest")
    files = [folder / "best.json", (run or folder) / "summary.json"]
    facts: dict[str, Any] = next((read_json(file) for file in files if file.is_file()), {})
    step = facts.get("step", facts.get("steps", 0))
    return EvaluatedModel(weights=folder, run=run, step=step, samples=facts.get("samples", 0))


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / PLAN).is_file()


def _checkpoint_of(run: Path, wanted: str) -> Path:
    """Return the newest readable checkpoint for ``latest``, or the checkpoint of a step."""
    found = listing(run / "checkpoints")  # the newest first
    step = wanted.removeprefix("step-")
    for info in found:
        if step in (str(info.step), f"{info.step:08}") or (wanted == "latest" and not info.problem):
            return info.path

    known = listed([info.path.name for info in found], 6)
    raise usage_error("checkpoint", wanted, f"{run} has no such checkpoint; there are: {known}")
