r"""``trainer evaluate RUN | MODEL``: measure a model on evaluation sets, without training.

    trainer evaluate runs/digits
    trainer evaluate runs/digits/best --predictions predictions.jsonl
    trainer evaluate runs/digits/checkpoints/step-00000040
    trainer evaluate path/to/model digits.yaml --evaluation_batch_size 64
    accelerate launch --config_file accel_configs/fsdp.yaml -m trainer evaluate runs/digits
    torchrun --nproc_per_node 2 -m trainer evaluate runs/digits accel_configs/fsdp.yaml

RUN is the folder of a run: the exported model is measured with the run's task and settings. A
folder of safetensors needs a config. The values are printed, and written to
RUN/evaluations/NAME.json. NAME is the measured folder (model, best, step-00000040). No other file
of the run is touched, so the run may be training.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from ..checkpoint.disk import read_json
from ..checkpoint.exported import exported_file
from ..checkpoint.store import MANIFEST
from ..config.arguments import sort_files
from ..config.paths import LocalPath
from ..distributed.exit import run_and_exit
from ..errors import TrainerError, usage_error
from ..reporting.directory import json_text
from ..script import launch_as, load_config, load_task
from ..text import metrics_text
from .finished_runs import Run as Training
from .finished_runs import import_code_of, read_run
from .usage import read_words

if TYPE_CHECKING:
    from ..run import Run


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    sets: Annotated[str | None, "such as clean,noisy; else all"] = None
    out: Annotated[LocalPath | None, "JSON file of the values"] = None
    predictions: Annotated[
        LocalPath | None,
        "FILE.jsonl of Task.prediction_step; FILE.NAME.jsonl of a named set",
    ] = None


def run(argv: Sequence[str]) -> NoReturn:
    """Evaluate, and end the process with the right exit code."""
    run_and_exit(lambda: evaluate(argv))


def evaluate(argv: Sequence[str]) -> dict[str, float]:
    """Evaluate as the command does, without leaving the process. Return the values. Collective.

    Raises:
        ConfigError, LaunchError, DataError, CheckpointError: before the first batch.
    """
    from .predictions import write_predictions

    options, settings, words = read_words(__doc__, Options, argv)
    target, *files = sorted(words, key=os.path.isfile) or ["."]
    weights, training = find_model(Path(target))
    if training.path and not sort_files(files)[0]:
        files.append(f"{training.path}/config.yaml")
    run = _build([*files, *settings], weights, training)
    run.say(f"evaluates {weights} (step {run.step:,})")
    for notice in run.setup.notices:
        run.say(f"note: {notice}")

    sets = run.evaluator.chosen(options.sets.split(",") if options.sets else None)
    predicted = {}
    if options.predictions:
        predicted = write_predictions(run, sets, Path(options.predictions))
    values = run.evaluate(sets)
    if run.stopping:
        raise TrainerError("stopped by a signal; no values were written")
    run.say(metrics_text(values))

    of_run = f"{training.path}/evaluations/{weights.resolve().name}.json"
    out = options.out or (training.path and of_run)
    if out and run.is_main:
        facts = dict(
            run.facts,
            evaluated=str(weights),
            step=run.step,
            samples=run.samples,
            predictions=predicted,
            values=values,
        )
        file = Path(out)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json_text(facts))
        run.say(f"values: {out}")
    run.close()
    return values


def find_model(target: Path) -> tuple[Path, Training]:
    """Return the folder of a model or checkpoint, and its run, which is empty if there is none."""
    weights = target if exported_file(target) else target / "model"
    if not exported_file(weights):
        raise usage_error(
            "",
            str(target),
            "holds no model (safetensors) and no checkpoint; of a run that has not ended give "
            "RUN/checkpoints/NAME",
        )
    for folder in weights.resolve().parents[:2]:
        if (folder / "plan.json").is_file():
            return weights, read_run(folder)
    return weights, Training(name="", path="")


def _trained(weights: Path, summary: Mapping[str, Any]) -> tuple[int, int]:
    """Return the steps and samples of a model's training. 0 if no file tells."""
    for name in (MANIFEST, "best.json"):
        if (weights / name).is_file():
            facts = read_json(weights / name)
            return facts["step"], facts["samples"]
    return summary.get("steps", 0), summary.get("samples", 0)


def _build(words: Sequence[str], weights: Path, training: Training) -> Run:
    """Build a run that evaluates a model with the config of its training."""
    from ..building.build import build_for_evaluation

    import_code_of(training)
    loaded = load_config(words)
    for key in loaded.texts.keys() & {"weights", "output_dir", "resume"}:
        raise usage_error(key, loaded.texts[key], "is no setting of an evaluation")
    task, config = load_task(loaded)
    config = dataclasses.replace(
        config,
        # The training's cut of the global batch need not fit these processes.
        global_batch_size=None,
        accumulation_steps=None,
        micro_batch_size=config.micro_batch_size or training.plan.get("micro_batch_size", 8),
        context_parallel=config.context_parallel if "context_parallel" in loaded.texts else 1,
    )
    launched = launch_as(loaded, task, config)

    # A task of its own for the model reads the files itself.
    own = None if training.path else task.for_model(weights)
    run = build_for_evaluation(
        own or task, config, None if own else weights, launched, origins=loaded.origins
    )
    run.position.step, run.position.samples = _trained(weights, training.summary)
    return run
