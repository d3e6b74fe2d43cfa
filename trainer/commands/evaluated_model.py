"""What ``trainer evaluate`` is given: a run, one of its checkpoints, or a folder with a model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoint.discover import MANIFEST, CheckpointInfo, inspect, listing, step_of
from ..checkpoint.export import exported_file
from ..errors import CheckpointError, ConfigError
from ..text import did_you_mean, listed
from .usage import usage_error

CONFIG = "config.yaml"
LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    """A model to evaluate.

    Args:
        weights: the folder of its files, or of a checkpoint.
        name: of what it is, for a file's name: ``model``, ``best``, ``step-00000120``.
        run: the folder of the run that it belongs to; None where it belongs to none.
        step, samples: how long it was trained, as far as that is known.
        notices: lines for the banner.
    """

    weights: Path
    name: str
    run: Path | None = None
    step: int = 0
    samples: int = 0
    notices: tuple[str, ...] = ()

    @property
    def config(self) -> Path | None:
        """Return the training config of its run; None where it belongs to none."""
        return None if self.run is None else self.run / CONFIG

    @property
    def plan(self) -> Mapping[str, Any]:
        """Return what plan.json of its run holds."""
        return {} if self.run is None else _read_json(self.run / "plan.json")


def find_model(target: Path, *, best: bool = False, checkpoint: str = "") -> EvaluatedModel:
    """Find what the words of a command line name.

    Args:
        target: the folder of a run, of a checkpoint, or of a model.
        best: evaluate the run's ``best/``.
        checkpoint: evaluate the run's checkpoint of this name or step, or the ``latest``.

    Raises:
        ConfigError: there is no such folder, or no such thing in it.
        CheckpointError: the run has no checkpoint that can be read.
    """
    _check_exists(target)
    chosen = "best" if best else "checkpoint"
    if _is_run(target):
        if checkpoint:
            return _checkpoint_of(target, checkpoint)
        return _best_of(target) if best else _last_of(target)

    if best or checkpoint:
        value = "true" if best else checkpoint
        rule = f"{target} is no run (no {CONFIG}): give the run's folder, or leave --{chosen} out"
        raise usage_error(chosen, value, rule)
    if os.path.lexists(target / MANIFEST):
        run = target.resolve().parent.parent
        return _of_checkpoint(inspect(target), run if _is_run(run) else None)
    if any(target.glob("*.safetensors")):
        return _in_folder(target)

    rule = (
        f"holds neither a run ({CONFIG}), nor a checkpoint ({MANIFEST}), nor a model "
        "(.safetensors); give the folder of one of these"
    )
    raise usage_error("", str(target), rule)


def _check_exists(target: Path) -> None:
    if target.is_dir():
        return
    if target.exists():
        raise usage_error("", str(target), "is a file; give the folder of a run or of a model")

    siblings: list[str] = []
    if target.parent.is_dir():
        siblings = [entry.name for entry in target.parent.iterdir() if entry.is_dir()]
    hint = did_you_mean(target.name, siblings)
    raise usage_error("", str(target), f"no such folder; in {target.parent}: {hint}")


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and (folder / "plan.json").is_file()


# -- of a run -------------------------------------------------------------------------------------


def _last_of(run: Path) -> EvaluatedModel:
    """Return the model that a run exported at its end."""
    checkpoints = _usable(run)
    if exported_file(run / "model") is None:
        instead = "it has no checkpoint yet"
        if checkpoints:
            newest = checkpoints[0].path.name
            instead = f"--checkpoint {LATEST} evaluates {newest}, its newest checkpoint"
        rule = f"the run has not ended, so there is no model/ in it; {instead}"
        raise usage_error("", str(run), rule)

    summary = _read_json(run / "summary.json")
    steps = _number(summary.get("steps"))
    notices: tuple[str, ...] = ()
    if checkpoints and checkpoints[0].step > steps:
        notices = (f"the run went on after model/: it has {checkpoints[0].path.name}",)
    return EvaluatedModel(
        weights=run / "model",
        name="model",
        run=run,
        step=steps,
        samples=_number(summary.get("samples")),
        notices=notices,
    )


def _best_of(run: Path) -> EvaluatedModel:
    """Return the best model of a run."""
    if exported_file(run / "best") is None:
        rule = f"{run} holds no best/: a run keeps one where best_metric is set, once it evaluated"
        raise usage_error("best", None, rule)

    facts = _read_json(run / "best" / "best.json")
    if not facts:  # of a run of before 2026-11-24
        summary = _read_json(run / "summary.json").get("best")
        facts = summary if isinstance(summary, Mapping) else {}
    step = _number(facts.get("step"))
    return EvaluatedModel(weights=run / "best", name="best", run=run, step=step)


def _checkpoint_of(run: Path, wanted: str) -> EvaluatedModel:
    """Return the checkpoint of a run that is named by ``latest``, its name or its step."""
    found = listing(run / "checkpoints")
    if not found:
        raise CheckpointError(f"{run}: holds no checkpoints")

    if wanted == LATEST:
        for info in found:
            if not info.problem:
                return _of_checkpoint(info, run)
        problems = "; ".join(f"{info.path.name}: {info.problem}" for info in found)
        raise CheckpointError(f"{run}: no checkpoint can be read ({problems})")

    step = wanted.removeprefix("step-")
    for info in found:
        if step.isdigit() and int(step) == step_of(info.path):
            return _of_checkpoint(info, run)
    names = [info.path.name for info in found]
    raise _no_such_checkpoint(run, wanted, names)


def _no_such_checkpoint(run: Path, wanted: str, names: list[str]) -> ConfigError:
    if wanted.removeprefix("step-").isdigit():
        hint = f"there are {listed(names, 6)}"
    else:
        hint = did_you_mean(wanted, [*names, LATEST])
    return usage_error("checkpoint", wanted, f"{run} has no such checkpoint; {hint}")


def _usable(run: Path) -> list[CheckpointInfo]:
    return [info for info in listing(run / "checkpoints") if not info.problem]


def _of_checkpoint(info: CheckpointInfo, run: Path | None) -> EvaluatedModel:
    """Return a checkpoint as a model.

    Raises:
        CheckpointError: it cannot be read.
    """
    if info.problem:
        raise CheckpointError(f"{info.path}: {info.problem}")
    return EvaluatedModel(
        weights=info.path,
        name=info.path.name,
        run=run,
        step=info.step,
        samples=_number(info.manifest.get("samples")),
    )


# -- of none --------------------------------------------------------------------------------------


def _in_folder(folder: Path) -> EvaluatedModel:
    """Return the model in a folder of safetensors; one inside of a run's folder is of that run."""
    name = folder.resolve().name
    parent = folder.resolve().parent
    if name == "best" and _is_run(parent):
        return _best_of(parent)
    if name == "model" and _is_run(parent):
        return _last_of(parent)
    return EvaluatedModel(weights=folder, name=name)


def _read_json(path: Path) -> Mapping[str, Any]:
    """Return the object in a JSON file of a run; empty where there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int:
    """Return a whole number of a run's files; 0 where there is none."""
    return value if isinstance(value, int) else 0
